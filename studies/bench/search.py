"""Regret and price of the search on recorded sweeps, beside its rivals: `make bench-search`.

Every recording, exact and with 2 % noise over several seeds, with live N and without. The rivals
get as many measurements of candidates as spectune made on the same recording and seed, its
confirmation included; the baseline they are told without noise. Regret is taken against the
recorded table: 1 - throughput(chosen) / throughput(best), the baseline included. Priors are
learned without the model at hand. Then how often the intervals hold the truth (calibration.py).

usage: python studies/bench/search.py [--seeds 20] [--recordings DIR] [--write FILE] [--plot FILE]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import calibration
from calibration import priors_without
from replay import replay, truth
from rivals import RANDOMISED, RIVALS, Answer

from autotune.recording import Recording, load_recording
from autotune.records import BASELINE

NOISE = 0.02
SIMULATED_SEEDS = 8  # at most: a study of a scenario takes seconds
SLOW = {"Optuna GP": 5}  # seeds at most: each of its trials fits a model
BEGIN, END = "<!-- bench-search: begin -->", "<!-- bench-search: end -->"


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
    parser.add_argument("--plot", type=Path, help="draw predicted against recorded here (SVG)")
    parser.add_argument("--write", type=Path, help="put the tables into this document")
    chosen = parser.parse_args()
    paths = sorted(chosen.recordings.glob("*.json"))
    jobs = [(path, None, seed, live) for path in paths for live in (True, False)
            for seed in range(chosen.seeds if live else 1)]  # fmt: skip
    jobs += [
        (path, NOISE, seed, live)
        for path in paths
        for seed in range(chosen.seeds)
        for live in (True, False)
    ]
    simulated = [(name, seed) for name in calibration.SCENARIOS
                 for seed in range(min(chosen.seeds, SIMULATED_SEEDS))]  # fmt: skip
    with ProcessPoolExecutor(chosen.workers) as pool:
        outcomes = [
            o for found in watched(pool.map(study, jobs, chunksize=4), len(jobs)) for o in found
        ]
        cases = [c for found in pool.map(calibration.simulated_cases, simulated) for c in found]
    cases += [case for path in paths for case in calibration.recorded_cases(path)]
    text = f"{table(outcomes)}\n\n{calibration.table(cases)}"
    print(text)
    if chosen.plot:
        chosen.plot.write_text(calibration.plot(cases))
    if chosen.write:
        put(chosen.write, text)


def watched(results: Iterable, total: int):
    """Say from time to time how far it is."""
    for done, result in enumerate(results, 1):
        if done % 200 == 0:
            print(f"{done} of {total} studies", file=sys.stderr, flush=True)
        yield result


def put(document: Path, text: str) -> None:
    """Replace what stands between the marks."""
    before, rest = document.read_text().split(BEGIN)
    _, after = rest.split(END)
    document.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def study(job: tuple[Path, float | None, int, bool]) -> list[Outcome]:
    """Our study and, for live N, the rivals' on the same recording, noise and seed."""
    path, noise, seed, live = job
    recording = load_recording(path)
    priors = priors_without(recording.model)
    result, probes = replay(path, noise, seed, live_n=live, priors=priors)
    condition = ("exact" if noise is None else "2 % noise") + ("" if live else ", no live N")
    methods = len(recording.methods)
    regrets = []
    for choice in result.per_concurrency:
        table = truth(path, choice.concurrency)
        regrets.append(
            1 - table[choice.method, choice.num_speculative_tokens] / max(table.values())
        )
    cost, regret = result.cost, statistics.fmean(regrets)
    found = []
    if noise is not None or seed == 0:
        starts = cost.engine_starts - methods
        found = [Outcome("spectune", condition, regret, starts, methods, probes)]
    if live:
        for name, rival in RIVALS.items():
            repeated = noise is not None or name in RANDOMISED
            if seed < (SLOW.get(name, 1_000) if repeated else 1):
                found.append(rival_outcome(name, rival, recording, job, condition, probes))
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
