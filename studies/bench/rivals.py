"""What spectune is compared with: each gets a probe function and as many probes, and names one.

A rival sees the baseline's throughput and the list of candidates, nothing else of the recording.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Key = tuple[str, int]
Probe = Callable[[str, int], "Answer"]

BASELINE: Key = ("none", 0)
RECIPE_ORDER = ("gemma4_mtp", "mtp", "eagle3", "dflash", "dspark", "eagle")
RECIPE_N = {"gemma4_mtp": 4, "mtp": 2, "eagle3": 3, "eagle": 3, "dflash": 15, "dspark": 7}


class Answer:
    """Throughput and, where the recording has them, acceptance rates per position."""

    def __init__(self, rate: float, rates: Sequence[float] | None, length: float | None) -> None:
        self.rate, self.rates, self.length = rate, rates, length


def _best(seen: dict[Key, float], baseline: float) -> Key:
    """The best measured, or the baseline where nothing beat it."""
    best = max(seen, key=lambda key: seen[key], default=BASELINE)
    return best if seen.get(best, 0.0) > baseline else BASELINE


def optuna_rival(kind: str) -> Callable[..., tuple[Key, int]]:
    """Optuna's own samplers: a method and its N, as many trials as probes."""

    def run(keys: list[Key], baseline: float, probe: Probe, probes: int, seed: int):
        import warnings

        import optuna

        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        samplers = {
            "tpe": lambda: optuna.samplers.TPESampler(seed=seed),
            "gp": lambda: optuna.samplers.GPSampler(seed=seed, n_startup_trials=5),
            "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        }
        study = optuna.create_study(direction="maximize", sampler=samplers[kind]())
        methods = sorted({method for method, _ in keys})
        seen: dict[Key, list[float]] = {}

        def objective(trial: optuna.Trial) -> float:
            method = trial.suggest_categorical("method", methods)
            lengths = [n for name, n in keys if name == method]
            where = trial.suggest_float("where", 0.0, 1.0)  # one static space: GP needs that
            n = lengths[min(int(where * len(lengths)), len(lengths) - 1)]
            rate = probe(method, n).rate
            seen.setdefault((method, n), []).append(rate)
            return rate

        study.optimize(objective, n_trials=probes)
        means = {key: sum(values) / len(values) for key, values in seen.items()}
        return _best(means, baseline), 1 + len(means)

    return run


def full_grid(keys: list[Key], baseline: float, probe: Probe, probes: int, seed: int):
    """One start and one measurement per candidate, whatever the others need."""
    return _best({key: probe(*key).rate for key in keys}, baseline), 1 + len(keys)


def one_probe_rule(keys: list[Key], baseline: float, probe: Probe, probes: int, seed: int):
    """argmax (1 + sum p_i) / cost with p from one probe at the largest N of each method.

    cost is the straight line from 1 at N = 0 to what the probe implies at the largest N.
    """
    predicted: dict[Key, float] = {}
    for method in sorted({method for method, _ in keys}):
        lengths = [n for name, n in keys if name == method]
        top = max(lengths)
        answer = probe(method, top)
        rates = answer.rates or _geometric(answer.length, top)
        if rates is None:
            predicted[method, top] = answer.rate
            continue
        cost = (1 + math.fsum(rates)) * baseline / answer.rate
        for n in lengths:
            tau = 1 + math.fsum(rates[:n])
            predicted[method, n] = baseline * tau / (1 + (cost - 1) * n / top)
    return _best(predicted, baseline), 1 + len({method for method, _ in keys})


def _geometric(length: float | None, n: int) -> list[float] | None:
    from autotune.acceptance import geometric_rate

    if length is None:
        return None
    rate = geometric_rate(length, n)
    return [rate**i for i in range(1, n + 1)]


def recipe_default(keys: list[Key], baseline: float, probe: Probe, probes: int, seed: int):
    """No measurement: the first known method of a fixed order, at its usual N."""
    methods = {method for method, _ in keys}
    known = [name for name in RECIPE_ORDER if name in methods] or sorted(methods)
    wanted = RECIPE_N.get(known[0], 3)
    lengths = [n for name, n in keys if name == known[0]]
    return (known[0], min(lengths, key=lambda n: (abs(n - wanted), n))), 1


RIVALS = {
    "Optuna TPE": optuna_rival("tpe"),
    "Optuna GP": optuna_rival("gp"),
    "random": optuna_rival("random"),
    "full grid": full_grid,
    "one probe at N_max": one_probe_rule,
    "recipe default": recipe_default,
}

RANDOMISED = ("Optuna TPE", "Optuna GP", "random")  # their answer depends on the seed alone
