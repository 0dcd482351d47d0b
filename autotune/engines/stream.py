"""One streamed answer of an OpenAI-compatible server: bytes and their times in, a result out.

No I/O and no clock here. With speculation a chunk carries several tokens, so tokens come from the
server's usage, and the gaps between chunks are not times per token.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from autotune.engines.drafts import request_drafts
from autotune.records import RequestResult

TEXT_KEYS = ("reasoning", "reasoning_content", "content")  # vLLM renamed the second to the first
UNFINISHED = ("abort", "error")  # finish reasons of answers that the engine gave up


class StreamError(Exception):
    """The stream cannot be a whole answer; the message goes to `RequestResult.error`."""


class Answer:
    """Collects one stream. Times are seconds on any one clock."""

    def __init__(self, sent: float) -> None:
        self.sent = sent
        self.chunk_times: list[float] = []  # of chunks that carry text
        self.texts: list[str] = []  # in order of arrival, reasoning included
        self.usage: dict[str, Any] | None = None
        self.metrics: Any = None  # vLLM's, beside the usage, where it was told to give them
        self.finish_reason: str | None = None
        self.done = False
        self._rest = b""

    def feed(self, data: bytes, now: float) -> None:
        """Take what one read delivered; lines may be split anywhere.

        Raises StreamError for an error object or something that is no JSON.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):  # comments, events and blank lines carry nothing
                self._take(line[5:].strip(), now)

    def _take(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            chunk = json.loads(payload)
        except ValueError as error:
            raise StreamError(f"unreadable chunk {payload[:200]!r}") from error
        if not isinstance(chunk, dict) or "error" in chunk:
            raise StreamError(f"error in the stream: {error_text(chunk)}")
        if chunk.get("usage"):
            self.usage = chunk["usage"]
        self.metrics = chunk.get("metrics") or self.metrics
        for choice in chunk.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            text = _text(choice)
            if text:
                self.texts.append(text)
                self.chunk_times.append(now)

    @property
    def gaps_seconds(self) -> list[float]:
        """Times between chunks (ITL as a reader sees it)."""
        return [later - earlier for earlier, later in itertools.pairwise(self.chunk_times)]

    def result(self, prompt_id: str, ended: float) -> RequestResult:
        """The whole answer, once the stream has ended at `ended`.

        Raises StreamError when the answer is not complete or came without usage.
        """
        if self.finish_reason is None:
            raise StreamError(f"the stream ended early, after {len(self.chunk_times)} chunks")
        if self.finish_reason in UNFINISHED:
            raise StreamError(f"the engine gave the request up ({self.finish_reason})")
        if self.usage is None or not isinstance(self.usage.get("completion_tokens"), int):
            raise StreamError("the stream ended without usage")
        return RequestResult(
            prompt_id=prompt_id,
            completion_tokens=self.usage["completion_tokens"],
            prompt_tokens=self.usage.get("prompt_tokens"),
            ttft_seconds=self.chunk_times[0] - self.sent if self.chunk_times else None,
            end_to_end_seconds=ended - self.sent,
            finish_reason=self.finish_reason,
            text="".join(self.texts),
            drafts=request_drafts(self.metrics),
        )


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    if delta is None:  # the completions endpoint
        return choice.get("text") or ""
    return "".join(delta.get(key) or "" for key in TEXT_KEYS)


def error_text(body: Any) -> str:
    """The message in an error body of vLLM, old or new shape; else the body itself, cut."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or error)[:500]


def tpot_seconds(result: RequestResult) -> float | None:
    """Time per output token after the first: (end to end - TTFT) / (tokens - 1)."""
    ttft, total, tokens = result.ttft_seconds, result.end_to_end_seconds, result.completion_tokens
    if ttft is None or total is None or tokens is None or tokens < 2:
        return None
    return (total - ttft) / (tokens - 1)
