"""Time per decision of SpectuneSampler beside Optuna's TPE: `make bench-decision`.

A study of 4 methods with 8 to 16 lengths each at 4 loads; its 10, 100 or 1,000 finished trials
repeat candidates, with 2 % noise. A decision takes in one more finished trial and says method and N
of the next. Both samplers get the same trials, in memory. The first decision, which reads all the
trials there are, is listed apart.

usage: python studies/bench/decision.py [--repeats 9] [--trials 10,100,1000]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time

import optuna

from autotune.sampler import SpectuneSampler
from autotune.search import METHOD, length_parameter

LOADS = (1, 8, 32, 128)
LENGTHS = {"mtp": 8, "eagle3": 10, "dflash": 16, "draft_model": 12}
ACCEPTANCE = {"mtp": 0.85, "eagle3": 0.8, "dflash": 0.9, "draft_model": 0.75}
COST = {"mtp": 0.12, "eagle3": 0.1, "dflash": 0.06, "draft_model": 0.2}  # of one token at load 1
NOISE = 0.02
BAR_SECONDS = 0.05


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--trials", default="10,100,1000")
    chosen = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samplers = {
        "spectune": lambda: SpectuneSampler(spaces(), concurrencies=LOADS),
        "TPE": lambda: optuna.samplers.TPESampler(seed=0),
    }
    print("| trials | sampler | first decision, ms | decision, ms (median) | worst | / TPE |")
    print("|---|---|---|---|---|---|")
    for count in map(int, chosen.trials.split(",")):
        found = {name: decisions(make(), count, chosen.repeats) for name, make in samplers.items()}
        usual = statistics.median(found["TPE"][1:])
        for name, (first, *rest) in found.items():
            median = statistics.median(rest)
            print(
                f"| {count} | {name} | {1e3 * first:.1f} | {1e3 * median:.1f} "
                f"| {1e3 * max(rest):.1f} | {median / usual:.2f} |"
            )
    median = statistics.median(found["spectune"][1:])
    word = "kept" if median <= BAR_SECONDS else "missed"
    print(f"\nbar of {1e3 * BAR_SECONDS:.0f} ms at {count} trials: {word} ({1e3 * median:.1f} ms)")


def spaces() -> dict[str, range]:
    return {method: range(1, longest + 1) for method, longest in LENGTHS.items()}


def decisions(sampler: optuna.samplers.BaseSampler, count: int, repeats: int) -> list[float]:
    """Seconds of `repeats` + 1 decisions, each after one more trial than the one before."""
    rng = random.Random(count)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    seen = [(m, n) for m, longest in LENGTHS.items() for n in range(1, longest + 1) if n % 3]
    study.add_trials([finished(*rng.choice(seen), rng) for _ in range(count - 1)])
    took = []
    for _ in range(repeats + 1):
        study.add_trial(finished(*rng.choice(seen), rng))  # by another worker: all is new
        took.append(decision(study, rng))
    return took


def decision(study: optuna.Study, rng: random.Random) -> float:
    """CPU seconds of this process: other work on the machine does not count."""
    began = time.process_time()
    trial = study.ask()
    try:
        method = trial.suggest_categorical(METHOD, list(LENGTHS))
        n = trial.suggest_categorical(length_parameter(method), list(spaces()[method]))
    except optuna.TrialPruned:  # looked at everything and found that nothing could win
        took = time.process_time() - began
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        return took
    took = time.process_time() - began
    value, attributes = measured(method, n, rng)
    for name, what in attributes.items():
        trial.set_user_attr(name, what)
    study.tell(trial, value)
    return took


def finished(method: str, n: int, rng: random.Random) -> optuna.trial.FrozenTrial:
    value, attributes = measured(method, n, rng)
    kinds = optuna.distributions.CategoricalDistribution
    return optuna.create_trial(
        params={METHOD: method, length_parameter(method): n},
        distributions={
            METHOD: kinds(list(LENGTHS)),
            length_parameter(method): kinds(list(spaces()[method])),
        },
        value=value,
        user_attrs=attributes,
    )


def measured(method: str, n: int, rng: random.Random) -> tuple[float, dict[str, object]]:
    """Speed-up and what a trial says about itself: geometric acceptance, cost that grows."""
    rates = [ACCEPTANCE[method] ** i for i in range(1, n + 1)]
    by_load = {
        str(load): (1 + math.fsum(rates))
        / (1.15 + COST[method] * n * (1 + math.log2(load) / 7))
        * math.exp(NOISE * rng.gauss(0, 1))
        for load in LOADS
    }
    value = math.exp(statistics.fmean(map(math.log, by_load.values())))
    return value, {"values_by_load": by_load, "per_position_acceptance_rates": rates}


if __name__ == "__main__":
    main()
