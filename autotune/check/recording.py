"""A recording as one side of a check: every figure has the assumed noise.

It is read as the replay engine reads it, so that repeats, versions and hardware mean the same.
"""

from __future__ import annotations

import math
from pathlib import Path

from autotune.check.recommendation import faults
from autotune.check.records import CheckRow, CheckSide, Figure
from autotune.engines import EngineOptions, Session
from autotune.engines.replay import ReplayEngine
from autotune.records import BASELINE, Arm, Block, BlockRole, Sampling, Target, Window


def recorded_side(path: str | Path, noise: float) -> CheckSide:
    """All points; the choice of a load is what is fastest there. Raises ConfigurationError."""
    engine = ReplayEngine(EngineOptions(recording=str(path)))
    offer, recording = engine.offer(), engine.recording
    keys = [(BASELINE, 0, load) for load in offer.concurrencies]
    points = {(p.method, p.num_speculative_tokens, p.concurrency) for p in recording.points}
    keys += sorted((key for key in points if key[2] in offer.concurrencies), key=str)
    windows = {key: _answer(engine, *key) for key in keys}
    best = {
        load: max(
            (key for key in keys if key[2] == load),
            key=lambda key: windows[key].output_tokens_per_second,
        )
        for load in offer.concurrencies
    }
    rows = tuple(
        _row(key, windows[key], windows[BASELINE, 0, key[2]], noise, key in best.values())
        for key in keys
    )
    method, n, _ = best[offer.concurrencies[0]]
    return CheckSide(
        source=str(path),
        kind="recording",
        model=offer.model,
        workload=offer.workload,
        environment=offer.environment.model_dump(mode="json"),
        method=method,
        num_speculative_tokens=n,
        rows=rows,
        per_load=True,
        faults=faults(list(rows)),
    )


def _answer(engine: ReplayEngine, method: str, n: int, load: int | None) -> Window:
    """One point, as a static start of the replay engine answers it."""
    arm = Arm(method=method, num_speculative_tokens=n)
    target = Target(model=engine.recording.model)
    session: Session = engine.open(target, arm, lambda text: None)
    block = Block(role=BlockRole.SEARCH, index=0, concurrency=load, prompts=(), sampling=Sampling())
    return session.run(block)


def _row(
    key: tuple[str, int, int | None], window: Window, base: Window, noise: float, chosen: bool
) -> CheckRow:
    method, n, load = key
    length, rates = window.acceptance_length, window.per_position_acceptance_rates or ()
    if method == BASELINE:
        speedup = Figure(value=1.0, sd=0.0)
    else:
        ratio = window.output_tokens_per_second / base.output_tokens_per_second
        speedup = Figure(value=ratio, sd=math.sqrt(2) * noise, assumed=True)
    return CheckRow(
        concurrency=load,
        method=method,
        num_speculative_tokens=n,
        chosen=chosen,
        speedup=speedup,
        throughput=Figure(value=window.output_tokens_per_second, sd=noise, assumed=True),
        acceptance_length=(
            None if length is None else Figure(value=length, sd=noise, assumed=True)
        ),
        position_rates=tuple(
            Figure(value=rate, sd=noise * rate, assumed=True) for rate in rates[:n]
        ),
    )
