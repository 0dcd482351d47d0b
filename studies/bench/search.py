"""Regret and price of the search on recorded sweeps, beside its rivals: `make bench-search`.

Every recording, exact and with 2 % noise over several seeds, with live N and without. The rivals
get as many probes as spectune used on the same recording and seed. Regret is taken against the
recorded table: 1 - throughput(chosen) / throughput(best), the baseline included.

usage: python studies/bench/search.py [--seeds 20] [--recordings DIR] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from replay import replay, truth
from rivals import RIVALS, Answer

from autotune.recording import Recording, load_recording
from autotune.records import BASELINE

NOISE = 0.02
SLOW = {"Optuna GP": 5}  # seeds at most: each of its trials fits a model


class Outcome(NamedTuple):
    who: str
    condition: str
    regret: float
    starts_over_methods: int  # engine starts - M, for the bars M + 2 and 2 M + 1
    methods: int
    probes: int


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--recordings", type=Path, default=Path("studies/published"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    paths = sorted(chosen.recordings.glob("*.json"))
    jobs = [(path, None, 0, live) for path in paths for live in (True, False)]
    jobs += [
        (path, NOISE, seed, live)
        for path in paths
        for seed in range(chosen.seeds)
        for live in (True, False)
    ]
    with ProcessPoolExecutor(chosen.workers) as pool:
        outcomes = [o for found in pool.map(study, jobs, chunksize=4) for o in found]
    text = table(outcomes)
    print(text)
    if chosen.markdown:
        chosen.markdown.write_text(text + "\n")


def study(job: tuple[Path, float | None, int, bool]) -> list[Outcome]:
    """Our study and, for live N, the rivals' on the same recording, noise and seed."""
    path, noise, seed, live = job
    recording = load_recording(path)
    result = replay(path, noise, seed, live_n=live)
    condition = ("exact" if noise is None else "2 % noise") + ("" if live else ", no live N")
    methods = len(recording.methods)
    regrets = []
    for choice in result.per_concurrency:
        table = truth(path, choice.concurrency)
        regrets.append(
            1 - table[choice.method, choice.num_speculative_tokens] / max(table.values())
        )
    cost, regret = result.cost, statistics.fmean(regrets)
    found = [
        Outcome("spectune", condition, regret, cost.engine_starts - methods, methods, cost.probes)
    ]
    if live:
        for name, rival in RIVALS.items():
            if seed < SLOW.get(name, 1_000):
                found.append(rival_outcome(name, rival, recording, job, condition, cost.probes))
    return found


def rival_outcome(
    name: str, rival, recording: Recording, job, condition: str, probes: int
) -> Outcome:
    """A rival tunes each load by itself, its probes shared out over the loads."""
    path, noise, seed, _ = job
    rng = random.Random(f"{path.stem}/{seed}/{name}")
    loads = recording.concurrencies
    regrets, starts = [], 0
    for load in loads:
        table = truth(path, load)
        vectors = {
            (p.method, p.num_speculative_tokens): (
                p.per_position_acceptance,
                p.mean_acceptance_length,
            )
            for p in recording.points
            if p.concurrency == load
        }  # fmt: skip
        keys = sorted(vectors)

        def probe(method: str, n: int, table=table, vectors=vectors) -> Answer:
            rates, length = vectors[method, n]
            factor = math.exp((noise or 0.0) * rng.gauss(0, 1))
            return Answer(table[method, n] * factor, rates, length)

        best, used = rival(keys, table[BASELINE, 0], probe, max(1, probes // len(loads)), seed)
        regrets.append(1 - table[best] / max(table.values()))
        starts = max(starts, used)
    methods = len(recording.methods)
    count = len(vectors) if name == "full grid" else probes
    return Outcome(name, condition, statistics.fmean(regrets), starts - methods, methods, count)


def table(outcomes: list[Outcome]) -> str:
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.condition, outcome.who].append(outcome)
    lines = [
        "| condition | who | studies | mean regret | 95th | worst | engine starts | probes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (condition, who), found in sorted(
        groups.items(), key=lambda g: (g[0][0], g[0][1] != "spectune")
    ):
        regrets = sorted(o.regret for o in found)
        last = regrets[min(len(regrets) - 1, int(0.95 * len(regrets)))]
        starts = statistics.fmean(o.starts_over_methods + o.methods for o in found)
        lines.append(
            f"| {condition} | {who} | {len(found)} | {statistics.fmean(regrets):.2%} | {last:.2%} "
            f"| {regrets[-1]:.2%} | {starts:.1f} "
            f"| {statistics.fmean(o.probes for o in found):.1f} |"
        )
    ours = [o for o in outcomes if o.who == "spectune"]
    live = max(o.starts_over_methods for o in ours if "no live" not in o.condition)
    static = max(o.starts_over_methods - o.methods for o in ours if "no live" in o.condition)
    lines.append(f"\nengine starts: at most M + {live} with live N, 2 M + {static} without")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
