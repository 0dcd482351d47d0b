"""A small server that streams like vLLM: several tokens a chunk, usage last, faults on request."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

from aiohttp import web

Fault = Literal["http", "hang", "no_bytes", "disconnect", "error", "garbage", "no_usage", "abort"]


@dataclass
class Script:
    """How one request is answered. `fault` happens after half of the chunks were sent."""

    chunks: tuple[str, ...] = ("The answer", " is", " forty-two.")
    completion_tokens: int = 9
    prompt_tokens: int = 5
    finish_reason: str = "length"
    first_delay_seconds: float = 0.0
    chunk_delay_seconds: float = 0.0
    text_key: str = "content"
    metrics: dict[str, Any] | None = None  # beside the usage, as vLLM puts them
    bytes_per_write: int | None = None  # tear lines apart
    fault: Fault | None = None


@dataclass
class FakeServer:
    """Answers on 127.0.0.1 from a thread. `script(index, body)` decides the answer.

    `gate`: request i is only answered once request i + gate was received (or all `expected`
    were), which a client can only satisfy by refilling each free slot at once.
    """

    script: Callable[[int, dict[str, Any]], Script] = lambda index, body: Script()
    metrics: Callable[[int], str] = lambda answered: ""  # by the number of requests so far
    rpc: Callable[[str], list[dict[str, Any]] | None] = lambda method: None  # None: refused
    gate: int | None = None
    expected: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)  # of the worker extension
    in_flight: int = 0
    peak_in_flight: int = 0
    url: str = ""

    def __enter__(self) -> FakeServer:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)))
        self._thread.start()
        if not started.wait(10):
            raise RuntimeError("the fake server did not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._arrival = asyncio.Condition()
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/v1/completions", self._answer)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/collective_rpc", self._rpc)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.metrics(len(self.requests)))

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "served"}]})

    async def _rpc(self, request: web.Request) -> web.Response:
        method = (await request.json())["method"]
        self.calls.append(method)
        results = self.rpc(method)
        if results is None:
            return web.json_response({"error": {"message": "no such method"}}, status=500)
        return web.json_response({"results": results})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        index = len(self.requests)
        self.requests.append(body)
        self.paths.append(request.path)
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        try:
            await self._wait_for_gate(index)
            return await self._stream(request, self.script(index, body))
        finally:
            self.in_flight -= 1

    async def _wait_for_gate(self, index: int) -> None:
        async with self._arrival:
            self._arrival.notify_all()
            if self.gate is not None:
                needed = min(index + self.gate, self.expected)
                await self._arrival.wait_for(lambda: len(self.requests) >= needed)

    async def _stream(self, request: web.Request, script: Script) -> web.StreamResponse:
        if script.fault == "http":
            error = {"message": "max_tokens is too large", "type": "BadRequestError", "code": 400}
            return web.json_response({"error": error}, status=400)
        if script.fault == "no_bytes":
            await asyncio.sleep(3600)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chat = request.path.endswith("chat/completions")
        await asyncio.sleep(script.first_delay_seconds)
        await response.write(b": a comment, as proxies send them\n\n")
        for number, event in enumerate(_events(script, chat)):
            if script.fault is not None and number == 1 + len(script.chunks) // 2:
                if script.fault == "hang":
                    await asyncio.sleep(3600)
                if script.fault == "disconnect":
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                event = _FAULTY.get(script.fault, event)
            await self._write(response, event, script)
            await asyncio.sleep(script.chunk_delay_seconds)
        return response

    async def _write(self, response: web.StreamResponse, event: str, script: Script) -> None:
        data = f"data: {event}\n\n".encode()
        step = script.bytes_per_write or len(data)
        for start in range(0, len(data), step):
            await response.write(data[start : start + step])
            if script.bytes_per_write:
                await asyncio.sleep(0)


_FAULTY = {
    "error": '{"error": {"message": "EngineCore died", "type": "InternalServerError"}}',
    "garbage": '{"choices": [',
}


def _events(script: Script, chat: bool) -> list[str]:
    """The payloads of one answer: role, text chunks, the last one with its reason, usage, DONE."""

    def choice(text: str, **more: Any) -> str:
        content = {"delta": {script.text_key: text}} if chat else {"text": text}
        return json.dumps({"choices": [{"index": 0, "finish_reason": None, **content, **more}]})

    *texts, last = script.chunks or ("",)
    events = [choice("", delta={"role": "assistant", "content": ""})] if chat else []
    events += [choice(text) for text in texts]
    reason = "abort" if script.fault == "abort" else script.finish_reason
    events.append(choice(last, finish_reason=reason))
    if script.fault != "no_usage":
        counts = {
            "prompt_tokens": script.prompt_tokens,
            "completion_tokens": script.completion_tokens,
        }
        told = {} if script.metrics is None else {"metrics": script.metrics}
        events.append(json.dumps({"choices": [], "usage": counts, **told}))
    return [*events, "[DONE]"]
