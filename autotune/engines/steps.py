"""Per-step rows of the worker extension -> StepTimes of one window."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from autotune.records import StepTimes
from autotune.vllm_plugin.worker import COLUMNS

START, STEP, DRAFT, REQUESTS, _, _, DECODE = range(len(COLUMNS))


def summarize_steps(
    rows: Sequence[Sequence[float]], *, output_tokens: int, num_requests: int, drafting: bool
) -> StepTimes | None:
    """Pool the pure decode steps that are followed by another one; None when there are none.

    Steps with prefill work, and the last step before the engine goes idle, tell nothing about
    the time between two decode steps. `tokens_per_step` counts what all decode steps committed:
    the first token of each request comes from its prefill.
    """
    decode = [row for row in rows if row[DECODE]]
    pairs = [(a, b) for a, b in itertools.pairwise(rows) if a[DECODE] and b[DECODE]]
    if not pairs:
        return None
    count = len(pairs)
    step = sum(b[START] - a[START] for a, b in pairs) / count
    busy = sum(a[STEP] for a, _ in pairs) / count
    draft = sum(a[DRAFT] for a, _ in pairs) / count
    return StepTimes(
        num_steps=count,
        draft_seconds_per_step=draft if drafting else None,
        verify_seconds_per_step=busy - draft,
        step_seconds=step,
        coverage=busy / step if step > 0 else 0.0,
        tokens_per_step=max(0, output_tokens - num_requests) / len(decode),
        requests_per_step=sum(row[REQUESTS] for row in decode) / len(decode),
    )
