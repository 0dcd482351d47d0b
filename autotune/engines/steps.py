"""What the worker extension answers -> StepTimes of one window."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from autotune.acceptance import decode_steps
from autotune.records import BatchSteps, SpecCounters, StepTimes
from autotune.stats import mean
from autotune.vllm_plugin.worker import COLUMNS

START, STEP, DRAFT, REQUESTS, TOKENS, _, DECODE, CONTEXT = range(len(COLUMNS))


def timed_worker(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The one answer of `spectune_drain` to read: ranks step together, not all of them draft.

    With pipeline parallelism only the last stage drafts; without speculation it is the last rank,
    so that all arms are timed at the same place.
    """
    return next((answer for answer in answers if answer["drafter"]), answers[-1])


def request_step_tokens(
    counters: SpecCounters | None, output_tokens: int, num_requests: int
) -> float:
    """Tokens that one request commits in one decode step: 1 + accepted / (request, step) pairs."""
    if counters is None or not counters.num_accepted_tokens:
        return 1.0
    steps = decode_steps(counters, output_tokens, num_requests)
    return 1 + counters.num_accepted_tokens / steps


class _Step(NamedTuple):
    """One decode step that another one follows; seconds and tokens of all its requests."""

    requests: float
    tokens: float
    context: float | None
    draft: float
    verify: float
    seconds: float  # start to start


def summarize_steps(
    rows: Sequence[Sequence[Any]], *, drafter: bool, tokens_per_request: float
) -> StepTimes | None:
    """Pool the pure decode steps that are followed by another one; None when there are none.

    Steps with prefill work, and the last step before the engine goes idle, tell nothing about
    the time between two decode steps. `drafter`: drafting was timed; else its time is not known,
    and verify is the whole step. `tokens_per_step` is what a step of the mean size commits.
    """
    decode = [row for row in rows if row[DECODE]]
    steps = [_step(a, b) for a, b in itertools.pairwise(rows) if a[DECODE] and b[DECODE]]
    if not steps:
        return None
    drafted = drafter and any(step.draft > 0 for step in steps)
    draft = mean([step.draft for step in steps])
    verify = mean([step.verify for step in steps])
    seconds = mean([step.seconds for step in steps])
    requests = mean([row[REQUESTS] for row in decode])
    return StepTimes(
        num_steps=len(steps),
        draft_seconds_per_step=draft if drafted else None,
        verify_seconds_per_step=verify,
        step_seconds=seconds,
        coverage=(draft + verify) / seconds if seconds > 0 else 0.0,
        tokens_per_step=requests * tokens_per_request,
        requests_per_step=requests,
        verified_tokens_per_step=mean([step.tokens for step in steps]),
        by_batch=_by_batch(steps, drafted),
    )


def _step(row: Sequence[Any], following: Sequence[Any]) -> _Step:
    return _Step(
        requests=row[REQUESTS],
        tokens=row[TOKENS],
        context=row[CONTEXT],
        draft=row[DRAFT],
        verify=row[STEP] - row[DRAFT],
        seconds=following[START] - row[START],
    )


def _by_batch(steps: Sequence[_Step], drafted: bool) -> tuple[BatchSteps, ...]:
    """The same steps apart by how many requests they held, ascending."""
    groups: dict[int, list[_Step]] = defaultdict(list)
    for step in steps:
        groups[int(step.requests)].append(step)
    return tuple(_batch(requests, groups[requests], drafted) for requests in sorted(groups))


def _batch(requests: int, steps: Sequence[_Step], drafted: bool) -> BatchSteps:
    contexts = [step.context / requests for step in steps if step.context is not None]
    return BatchSteps(
        requests=requests,
        num_steps=len(steps),
        verified_tokens_per_step=mean([step.tokens for step in steps]),
        context_tokens_per_request=mean(contexts) if contexts else None,
        draft_seconds_per_step=mean([step.draft for step in steps]) if drafted else None,
        verify_seconds_per_step=mean([step.verify for step in steps]),
        step_seconds=mean([step.seconds for step in steps]),
    )
