"""What `run` would do: candidates in order, engine starts, a time estimate, exact commands."""

from __future__ import annotations

import math

from autotune.engines import Engine
from autotune.knowledge import Knowledge
from autotune.records import BASELINE, Arm, Plan, Record, Skipped

TOKENS_PER_SECOND = {"cpu": 20.0}  # one request on a small machine; GPUs: 60
WARMUP_WINDOWS = 2


class PreviewCandidate(Record):
    method: str
    num_speculative_tokens: int
    expected_speedup: float  # prior of the cost model: nothing was measured


class Preview(Record):
    model: str
    workload: str
    concurrencies: tuple[int | None, ...]
    candidates: tuple[PreviewCandidate, ...]  # in the order in which they look promising
    skipped: tuple[Skipped, ...]
    engine_starts: int  # expected: see `expected_starts`
    estimated_seconds: float | None  # None where nothing is run
    commands: tuple[str, ...]
    warnings: tuple[str, ...]


def preview(plan: Plan, engine: Engine) -> Preview:
    """Plans only: nothing is started."""
    arms = planned_arms(plan, engine)
    starts = expected_starts(plan, len(arms))
    return Preview(
        model=plan.target.model,
        workload=plan.workload.name,
        concurrencies=plan.concurrencies,
        candidates=_candidates(plan),
        skipped=plan.skipped,
        engine_starts=starts,
        estimated_seconds=_estimate(plan, engine, starts) if plan.sends_prompts else None,
        commands=tuple(engine.command(plan.target, arm) for arm in arms),
        warnings=plan.warnings,
    )


def planned_arms(plan: Plan, engine: Engine) -> list[Arm]:
    """The baseline and each method's starts; the confirmation repeats the winner, static."""
    arms = [Arm(method=BASELINE, instrumented=True)]
    for space in plan.spaces:
        live = plan.is_live(space) and engine.why_not_live(plan.target, space) is None
        lengths = [max(space.lengths)] if live else list(space.lengths)
        arms += [space.arm(n, live=live) for n in lengths]
    return arms


def expected_starts(plan: Plan, arms: int) -> int:
    """Each planned arm and the confirmation; at most, where a sampler may go to and fro."""
    settings, everything = plan.settings, sum(len(space.lengths) for space in plan.spaces)
    if settings.sampler in ("spectune", "grid"):
        return arms + 1
    return everything + 2  # a start for every trial, the baseline and the confirmation


def _candidates(plan: Plan) -> tuple[PreviewCandidate, ...]:
    knowledge = Knowledge(plan)
    scored = sorted(
        ((knowledge.score(*key)[0], key) for key in knowledge.candidates()), reverse=True
    )
    return tuple(
        PreviewCandidate(method=method, num_speculative_tokens=n, expected_speedup=math.exp(score))
        for score, (method, n) in scored
    )


def _estimate(plan: Plan, engine: Engine, starts: int) -> float:
    """Rough: windows at a guessed speed plus engine starts."""
    settings, tokens = plan.settings, plan.workload.sampling.max_tokens
    rate = TOKENS_PER_SECOND.get((plan.environment.runtime or "").lower(), 60.0)
    per_window = [
        max(settings.prompts_per_block, 2 * (load or 1)) * tokens / (rate * (load or 1) ** 0.7)
        for load in plan.concurrencies
    ]
    baseline = settings.search_blocks + settings.confirm_blocks + 1 + WARMUP_WINDOWS
    probes = sum(min(len(space.lengths), 5) + WARMUP_WINDOWS + 2 for space in plan.spaces)
    windows = 2 * baseline + probes
    return float(starts * engine.estimated_start_seconds() + windows * sum(per_window))
