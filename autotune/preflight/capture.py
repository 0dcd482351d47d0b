"""Graph capture sizes count tokens: a step that verifies N drafts of B requests is B * (N + 1).

A step larger than the largest captured size runs without a graph, which was reported to cost a
factor of five (6 requests, N=6: 42 tokens with sizes up to 40, 25 tokens a second against 133).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autotune.records import Record

STRIDES = ((256, 8), (None, 16))  # vLLM's own grid: multiples of 8 below 256, of 16 from there


class Uncaptured(Record):
    """A load at which a candidate's steps are larger than any captured graph."""

    concurrency: int
    num_speculative_tokens: int
    tokens: int  # of such a step
    largest: int  # captured


def step_tokens(concurrency: int, n: int, max_num_seqs: int | None, replicas: int = 1) -> int:
    """Tokens of one step with all requests in it; vLLM runs at most `max_num_seqs` at a time.

    Data parallel replicas share the requests: the busiest has as many as an even split gives it.
    """
    requests = math.ceil(concurrency / replicas)
    return min(requests, max_num_seqs or requests) * (n + 1)


def uncaptured(
    concurrencies: Sequence[int | None],
    captured: Mapping[int, Sequence[int] | None],
    max_num_seqs: int | None = None,
    replicas: int = 1,
) -> list[Uncaptured]:
    """Where steps are larger than what is captured for that N (`captured`: N -> sizes in tokens).

    Sizes None: not known; empty: there are no graphs, so nothing falls out of them.
    """
    return [
        Uncaptured(concurrency=load, num_speculative_tokens=n, tokens=tokens, largest=max(sizes))
        for load in concurrencies
        for n, sizes in captured.items()
        if load is not None and sizes
        if (tokens := step_tokens(load, n, max_num_seqs, replicas)) > max(sizes)
    ]


def capture_size(tokens: int) -> int:
    """The smallest size of vLLM's grid that holds a step of so many tokens."""
    stride = next(step for below, step in STRIDES if below is None or tokens < below)
    return -(-tokens // stride) * stride


def capture_advice(method: str, found: Sequence[Uncaptured]) -> str | None:
    """One warning for a method; None: every step has its graph."""
    if not found:
        return None
    worst = max(found, key=lambda one: one.tokens)
    loads = ", ".join(str(load) for load in sorted({one.concurrency for one in found}))
    shortest = min(one.num_speculative_tokens for one in found)
    room = capture_size(worst.tokens)
    exactly = (
        ""
        if room == worst.tokens
        else (
            f", but a full graph of such a step wants {worst.tokens} itself among "
            "--cudagraph-capture-sizes"
        )
    )
    return (
        f"{method}: from N={shortest} on, at concurrency {loads}, a step is larger than any "
        f"captured graph and runs without one: N={worst.num_speculative_tokens} at "
        f"{worst.concurrency} is {worst.tokens} tokens, captured are up to {worst.largest}; "
        f"-- --max-cudagraph-capture-size {room} makes room{exactly}"
    )
