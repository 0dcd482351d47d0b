"""Chosen method and N, regret and price on recorded sweeps: `make bench-replay`.

regret = 1 - throughput(chosen) / throughput(best recorded), the baseline included. Nothing but
probes looks at a recording; the truth is read here, after the study is closed.

usage: python studies/bench/replay.py DIR_OR_FILE...
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from autotune.engines import EngineOptions, load_engine
from autotune.plan import Request, make_plan, with_priors
from autotune.recording import load_recording
from autotune.records import BASELINE, Prior, Recommendation
from autotune.store import open_study
from autotune.tuner import tune

Table = dict[tuple[str, int], float]


def truth(path: Path, load: int | None) -> Table:
    """Recorded throughput by (method, N) at one load; repeats averaged."""
    recording = load_recording(path)
    rows: dict[tuple[str, int], list[float]] = defaultdict(list)
    for base in recording.baseline:
        if base.concurrency == load:
            rows[BASELINE, 0].append(base.output_tokens_per_second)
    for point in recording.points:
        if point.concurrency == load:
            rows[point.method, point.num_speculative_tokens].append(point.output_tokens_per_second)
    return {key: statistics.fmean(values) for key, values in rows.items()}


class Replayed(NamedTuple):
    """A study's answer, and how often it measured a candidate, the confirmation included."""

    answer: Recommendation
    candidate_probes: int


def replay(
    path: Path,
    noise: float | None = None,
    seed: int = 0,
    *,
    live_n: bool = True,
    priors: Mapping[str, Prior] | None = None,
) -> Replayed:
    """One study on one recording, in a store of its own; `priors` replace the packaged ones."""
    options = EngineOptions(recording=str(path), noise=noise, seed=seed, live_n=live_n)
    engine = load_engine("replay", options)
    plan = with_priors(make_plan(Request(seed=seed, live_n=live_n), engine), priors)
    with (
        tempfile.TemporaryDirectory() as folder,
        open_study(f"sqlite:///{folder}/study.db", plan) as study,
    ):
        answer = tune(plan, engine, study, lambda text: None)
        return Replayed(answer, sum(w.window.method != BASELINE for w in study.windows()))


def main(arguments: list[str]) -> None:
    paths = [
        path
        for argument in map(Path, arguments or ["studies/published"])
        for path in (sorted(argument.glob("*.json")) if argument.is_dir() else [argument])
    ]
    regrets = []
    print("| recording | load | chosen | best recorded | regret | starts | probes |")
    print("|---|---|---|---|---|---|---|")
    for path in paths:
        result = replay(path).answer
        for choice in result.per_concurrency:
            table = truth(path, choice.concurrency)
            best = max(table, key=lambda key: table[key])
            regret = 1 - table[choice.method, choice.num_speculative_tokens] / table[best]
            regrets.append(regret)
            load = "unstated" if choice.concurrency is None else choice.concurrency
            print(
                f"| {path.stem} | {load} | {choice.method} N={choice.num_speculative_tokens} "
                f"| {best[0]} N={best[1]} | {regret:.2%} | {result.cost.engine_starts} "
                f"| {result.cost.probes} |"
            )
    worst = max(regrets)
    print(f"\nregret over {len(regrets)} choices: mean {statistics.fmean(regrets):.2%}, ", end="")
    print(f"worst {worst:.2%}")


if __name__ == "__main__":
    main(sys.argv[1:])
