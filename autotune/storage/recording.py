"""A study as a recording: a table that `--engine replay` plays back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from autotune.errors import StorageError
from autotune.records import BASELINE, SCHEDULED, BlockRole, Plan, Window
from autotune.storage.stored import StoredWindow

RECORDED_ROLES = (BlockRole.SEARCH, BlockRole.REFERENCE, BlockRole.CONFIRM)


def as_recording(plan: Plan, windows: Iterable[StoredWindow]) -> dict[str, Any]:
    """A finished or partial study as the document `spectune.recording/1`.

    Every number is the plain mean over the windows of one (method, N, load). Warm-up and greedy
    windows are left out, and so are those of a schedule, which have no N of their own, and N = 0
    on an engine that drafts: it is not the baseline.
    Raises StorageError while no baseline has been measured.
    """
    groups: dict[tuple[str, int, int | None], list[Window]] = {}
    for stored in windows:
        role = stored.block.partition(":")[0]
        method = stored.arm.partition(":")[0]
        scheduled = f":{SCHEDULED}" in stored.arm
        if role in RECORDED_ROLES and not scheduled and (stored.n > 0) == (method != BASELINE):
            key = (method, stored.n, stored.window.concurrency)
            groups.setdefault(key, []).append(stored.window)
    baseline = [_row(*key, group) for key, group in groups.items() if key[0] == BASELINE]
    if not baseline:
        raise StorageError(
            "the study has no baseline measurement yet: a recording needs one",
            hint="run the same `spectune run` command again to continue it",
        )
    gpu, count = plan.environment.gpu, plan.environment.gpu_count
    vllm, runtime = plan.environment.vllm, plan.environment.runtime
    versions = [f"vLLM {vllm}" if vllm else None, runtime]
    return {
        "schema": "spectune.recording/1",
        "model": plan.target.model,
        "workload": plan.workload.name,
        "hardware": f"{count}x {gpu}" if gpu and count else gpu,
        "engine_version": ", ".join(text for text in versions if text) or None,
        "baseline": [
            {name: row[name] for name in ("concurrency", "output_tokens_per_second")}
            for row in baseline
        ],
        "points": [_row(*key, group) for key, group in groups.items() if key[0] != BASELINE],
    }


def _row(method: str, n: int, concurrency: int | None, windows: list[Window]) -> dict[str, Any]:
    rates = [w.per_position_acceptance_rates for w in windows if w.per_position_acceptance_rates]
    steps = [w.steps for w in windows if w.steps]
    optional = {
        "per_position_acceptance": [_mean(column) for column in zip(*rates, strict=False)],
        "mean_acceptance_length": _mean([w.acceptance_length for w in windows]),
        "draft_seconds_per_step": _mean([s.draft_seconds_per_step for s in steps]),
        "verify_seconds_per_step": _mean([s.verify_seconds_per_step for s in steps]),
    }
    return {
        "method": method,
        "num_speculative_tokens": n,
        "concurrency": concurrency,
        "output_tokens_per_second": _mean([w.output_tokens_per_second for w in windows]),
        **{name: value for name, value in optional.items() if value},
    }


def _mean(values: Iterable[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return math.fsum(measured) / len(measured) if measured else None
