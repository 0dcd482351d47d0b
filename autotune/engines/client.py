"""Sends one block of prompts to an OpenAI-compatible server as a closed loop and measures it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from autotune.engines.stream import Answer, StreamError, error_text, tpot_seconds
from autotune.errors import ConfigurationError
from autotune.records import Block, Prompt, Quantiles, Record, RequestResult

if TYPE_CHECKING:
    import aiohttp

Endpoint = Literal["chat", "completions"]
PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
MAX_SALT = 128  # vLLM's own limits, checked before anything is sent
SALT_FORBIDS = "@/\\\0"


class BlockRun(Record):
    """One block as the client saw it. Latencies in seconds, over the answers that came."""

    requests: tuple[RequestResult, ...]  # in the order of the block's prompts
    started_at: float  # Unix time
    duration_seconds: float  # first request sent to last one finished or failed
    output_tokens: int  # by usage, of the answers that came
    output_tokens_per_second: float | None  # None when nothing came
    ttft: Quantiles | None
    tpot: Quantiles | None
    itl: Quantiles | None  # between chunks; with speculation this is not TPOT
    end_to_end: Quantiles | None


@dataclass
class _Exchange:
    """One request's result and its times on the monotonic clock."""

    result: RequestResult
    sent: float
    ended: float
    gaps_seconds: list[float]


def run_block(
    base_url: str,
    model: str,
    block: Block,
    *,
    cache_salt: str,
    timeout_seconds: float,
    endpoint: Endpoint = "chat",
    extra_body: dict[str, Any] | None = None,
) -> BlockRun:
    """Run the block with `block.concurrency` requests in flight (None: one) and wait for all.

    Prompts are sent in their order. `cache_salt` isolates vLLM's prefix cache: another salt, no
    reuse. `completions` is for models without a chat template: the messages' contents joined by
    blank lines. `timeout_seconds` is for each request. A request that fails has its `error` set;
    the others count. Raises ConfigurationError for a bad salt or an `extra_body` that overrides
    what the block says.
    """
    _check_salt(cache_salt)
    if not block.prompts:
        raise ConfigurationError(f"block {block.key} has no prompts")
    jobs = []
    for prompt in block.prompts:
        body = {**_body(block, prompt, endpoint), "model": model, "cache_salt": cache_salt}
        for key in (extra_body or {}).keys() & body.keys():
            raise ConfigurationError(f"extra_body may not set {key!r}: the block decides it")
        jobs.append((prompt, json.dumps(body | (extra_body or {})).encode()))
    url = base_url.rstrip("/") + PATHS[endpoint]
    exchanges = asyncio.run(_closed_loop(url, jobs, block.concurrency or 1, timeout_seconds))
    return _summary(exchanges)


def _check_salt(cache_salt: str) -> None:
    if not 0 < len(cache_salt) <= MAX_SALT or any(char in SALT_FORBIDS for char in cache_salt):
        raise ConfigurationError(
            f"vLLM does not take the cache salt {cache_salt!r}",
            hint=f"1 to {MAX_SALT} characters, none of @ / \\ or NUL",
        )


def _body(block: Block, prompt: Prompt, endpoint: Endpoint) -> dict[str, Any]:
    body: dict[str, Any] = {
        "stream": True,
        "stream_options": {"include_usage": True},
        **block.sampling.model_dump(),  # named as vLLM names them
    }
    if endpoint == "chat":
        body["messages"] = [message.model_dump() for message in prompt.messages]
    else:
        body["prompt"] = "\n\n".join(message.content for message in prompt.messages)
    return body


async def _closed_loop(
    url: str, jobs: Sequence[tuple[Prompt, bytes]], concurrency: int, timeout_seconds: float
) -> list[_Exchange]:
    """All workers pull from one iterator, so that order holds and no slot is ever idle."""
    import aiohttp

    exchanges: dict[int, _Exchange] = {}
    queue = iter(enumerate(jobs))
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=timeout_seconds),
        headers={"Content-Type": "application/json"},
        trust_env=False,
    )

    async def work() -> None:
        for index, (prompt, body) in queue:
            exchanges[index] = await _exchange(session, url, prompt, body)

    async with session, asyncio.TaskGroup() as workers:
        for _ in range(min(concurrency, len(jobs))):
            workers.create_task(work())
    return [exchanges[index] for index in range(len(jobs))]


async def _exchange(
    session: aiohttp.ClientSession, url: str, prompt: Prompt, body: bytes
) -> _Exchange:
    """Send one request and read its answer; a failure becomes the result's `error`."""
    import aiohttp

    sent = time.perf_counter()
    answer = Answer(sent)
    try:
        await _read(session, url, body, answer)
        ended = time.perf_counter()
        return _Exchange(answer.result(prompt.id, ended), sent, ended, answer.gaps_seconds)
    except TimeoutError:
        error = f"no answer within {session.timeout.total:g} s"
    except (aiohttp.ClientError, OSError) as failure:
        error = f"connection failed: {failure or type(failure).__name__}"
    except StreamError as failure:
        error = str(failure)
    return _Exchange(RequestResult(prompt_id=prompt.id, error=error), sent, time.perf_counter(), [])


async def _read(session: aiohttp.ClientSession, url: str, body: bytes, answer: Answer) -> None:
    async with session.post(url, data=body) as response:
        if response.status != 200:
            raise StreamError(
                f"HTTP {response.status}: {_error_body(await response.text(errors='replace'))}"
            )
        async for data in response.content.iter_any():
            answer.feed(data, time.perf_counter())


def _error_body(text: str) -> str:
    try:
        return error_text(json.loads(text))
    except ValueError:
        return text.strip()[:500]


def _summary(exchanges: Sequence[_Exchange]) -> BlockRun:
    results = tuple(exchange.result for exchange in exchanges)
    good = [result for result in results if result.error is None]
    tokens = sum(result.completion_tokens or 0 for result in good)
    first = min(exchange.sent for exchange in exchanges)
    duration = max(exchange.ended for exchange in exchanges) - first
    return BlockRun(
        requests=results,
        started_at=time.time() - (time.perf_counter() - first),
        duration_seconds=duration,
        output_tokens=tokens,
        output_tokens_per_second=tokens / duration if tokens else None,
        ttft=quantiles(result.ttft_seconds for result in good),
        tpot=quantiles(tpot_seconds(result) for result in good),
        itl=quantiles(gap for exchange in exchanges for gap in exchange.gaps_seconds),
        end_to_end=quantiles(result.end_to_end_seconds for result in good),
    )


def quantiles(values: Iterable[float | None]) -> Quantiles | None:
    """Mean and quantiles (linear between neighbours) of the values that exist."""
    import numpy as np

    known = [value for value in values if value is not None]
    if not known:
        return None
    p50, p90, p99 = (float(value) for value in np.quantile(known, (0.5, 0.9, 0.99)))
    return Quantiles(mean=float(np.mean(known)), p50=p50, p90=p90, p99=p99)
