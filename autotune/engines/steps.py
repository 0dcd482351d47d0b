"""What the worker extension answers -> StepTimes of one window."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from autotune.records import SpecCounters, StepTimes
from autotune.vllm_plugin.worker import COLUMNS

START, STEP, DRAFT, REQUESTS, _, _, DECODE = range(len(COLUMNS))


def timed_worker(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The one answer of `spectune_drain` to read: ranks step together, not all of them draft.

    With pipeline parallelism only the last stage drafts; without speculation it is the last rank,
    so that all arms are timed at the same place.
    """
    return next((answer for answer in answers if answer["drafter"]), answers[-1])


def request_step_tokens(
    counters: SpecCounters | None, output_tokens: int, num_requests: int
) -> float:
    """Tokens that one request commits in one decode step: 1 + accepted / (request, step) pairs.

    Each pair commits one token and what was accepted, and first tokens come from the prefill:
    pairs = output tokens - requests - accepted. vLLM counts accepted drafts beyond `max_tokens`
    or the end of the text, which makes that too few pairs; it never can be fewer than the drafts.
    """
    accepted = counters.num_accepted_tokens if counters else 0
    if counters is None or not accepted:
        return 1.0
    return 1 + accepted / max(counters.num_drafts, output_tokens - num_requests - accepted)


def summarize_steps(
    rows: Sequence[Sequence[float]], *, drafter: bool, tokens_per_request: float
) -> StepTimes | None:
    """Pool the pure decode steps that are followed by another one; None when there are none.

    Steps with prefill work, and the last step before the engine goes idle, tell nothing about
    the time between two decode steps. `drafter`: drafting was timed; else its time is not known,
    and verify is the whole step. `tokens_per_step` is what a step of the mean size commits.
    """
    decode = [row for row in rows if row[DECODE]]
    pairs = [(a, b) for a, b in itertools.pairwise(rows) if a[DECODE] and b[DECODE]]
    if not pairs:
        return None
    count = len(pairs)
    step = sum(b[START] - a[START] for a, b in pairs) / count
    busy = sum(a[STEP] for a, _ in pairs) / count
    draft = sum(a[DRAFT] for a, _ in pairs) / count
    requests = sum(row[REQUESTS] for row in decode) / len(decode)
    return StepTimes(
        num_steps=count,
        draft_seconds_per_step=draft if drafter and draft > 0 else None,
        verify_seconds_per_step=busy - draft,
        step_seconds=step,
        coverage=busy / step if step > 0 else 0.0,
        tokens_per_step=requests * tokens_per_request,
        requests_per_step=requests,
    )
