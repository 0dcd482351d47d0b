"""How often `spectune check` is right: pairs of equal and of worse engines, simulated.

    python studies/bench/check.py [--trials 100] [--jobs 1]

Each trial measures a golden value (8 full cycles; with --reference recommended the result of a
default `spectune run` instead) and checks three engines against it with the default budget: the
same one (A/A), one whose speculation is 5 % slower, one whose drafter is accepted 3 % less
(acceptance length). Every engine start moves speed by 0.3 %, the machine drifts (a random walk,
0.1 % a window, and a slow wave of 4 %), every window has noise of 1 to 5 %, and one in 30 is
disturbed and loses 10 to 40 %. A plain threshold at the same windows is beside it: the mean ratio
of all windows, a regression where it lost as much as the margin.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from autotune import stats
from autotune.check import Rules
from autotune.check.bench import Bench, Configuration, Memory
from autotune.check.measure import Effort, check_engine, measured_side
from autotune.check.recommendation import recommended_side
from autotune.check.records import CheckSide
from autotune.check.verdicts import METRICS, distance, parse_margins
from autotune.engines import EngineOptions, load_engine
from autotune.engines.scenario import load_scenario
from autotune.measure import Lab
from autotune.plan import Request, make_plan
from autotune.records import Plan, Window
from autotune.store import open_study, remove_study
from autotune.tuner import tune

NOISES = (0.01, 0.02, 0.03, 0.05)
METHOD, N = "eagle3", 3
START_SD, WALK_SD, WAVE, OUTLIERS = 0.003, 0.001, 0.04, 1 / 30
SLOWDOWN, LESS_ACCEPTED = 0.05, 0.03
ASKED = {"A/A": "any", "5 % slower": "speedup", "3 % less accepted": "acceptance_length"}
KINDS = tuple(ASKED)
EMPTY = "empty.db"  # making a database takes longer than a study in it
HEADING = ("noise", "pair", "checks", "regression", "no regression", "inconclusive", "threshold",
           "pairs of windows")  # fmt: skip


class Field:
    """A simulated engine whose speed moves as machines' speeds do. `slower`: its speculation."""

    name = "simulate"

    def __init__(self, engine: Any, seed: int, slower: float = 0.0) -> None:
        self.engine, self.slower = engine, slower
        self.rng = np.random.default_rng(seed)
        self.walk, self.count, self.phase = 0.0, 0, self.rng.uniform(0, 2 * math.pi)
        self.windows: list[Window] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def open(self, target: Any, arm: Any, progress: Any) -> Any:
        speed = START_SD * self.rng.standard_normal()
        if arm.method != "none":
            speed += math.log1p(-self.slower)
        return Moving(self, self.engine.open(target, arm, progress), speed)

    def speed(self) -> float:
        self.count += 1
        self.walk += WALK_SD * self.rng.standard_normal()
        wave = WAVE / 2 * math.sin(self.phase + 2 * math.pi * self.count / 300)
        disturbed = self.rng.random() < OUTLIERS
        return self.walk + wave + (math.log(self.rng.uniform(0.6, 0.9)) if disturbed else 0.0)


class Moving:
    def __init__(self, field: Field, session: Any, speed: float) -> None:
        self.field, self.session, self.speed = field, session, speed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run(self, block: Any) -> Window:
        window = self.session.run(block)
        factor = math.exp(self.speed + self.field.speed())
        rate = window.output_tokens_per_second * factor
        moved = window.model_copy(update={"output_tokens_per_second": rate})
        self.field.windows.append(moved)
        return cast(Window, moved)


class Trial(NamedTuple):
    noise: float
    seed: int
    scenarios: tuple[str, str]  # files: as it was, and with fewer tokens accepted
    recommended: bool  # the reference is what `spectune run` gives, not a golden value


class Found(NamedTuple):
    noise: float
    kind: str
    outcome: str
    metrics: tuple[str, ...]  # with a regression
    threshold: bool  # a plain one calls it a regression
    pairs: int


def scenarios(folder: Path) -> tuple[str, str]:
    """The default scenario with one method, and the same with an acceptance length 3 % smaller.

    It costs 3 % of the speed too. Only the verdict on acceptance length counts as a hit there.
    """
    scenario = load_scenario("dense-chat")
    document = scenario.model_dump(mode="json", by_alias=True)
    document["methods"] = [m for m in document["methods"] if m["method"] == METHOD]
    rates = scenario.acceptance_rates(METHOD, N)
    wanted = (1 + sum(rates)) * (1 - LESS_ACCEPTED) - 1
    files = []
    for name, factor in (("same", 1.0), ("less", wanted / sum(rates))):
        changed = json.loads(json.dumps(document))
        own = changed["methods"][0]["acceptance"]
        own["rates"] = [rate * factor for rate in own["rates"]]
        file = folder / f"{name}.json"
        file.write_text(json.dumps(changed), encoding="utf-8")
        files.append(str(file))
    return files[0], files[1]


def engine_and_plan(trial: Trial, which: int, salt: int, slower: float) -> tuple[Field, Plan]:
    seed = 10 * trial.seed + salt
    inner = load_engine(
        "simulate",
        EngineOptions(simulation=trial.scenarios[which], noise=trial.noise, seed=seed),
    )
    request = Request(methods=METHOD, num_speculative_tokens=str(N))
    return Field(inner, seed, slower), make_plan(request, inner)


def golden(trial: Trial) -> CheckSide:
    """What `spectune check ... --all-cycles -o golden.json` keeps."""
    engine, plan = engine_and_plan(trial, 0, 0, 0.0)
    configuration = Configuration(plan.spaces[0], N)
    lab = Lab(plan, cast(Any, engine), cast(Any, Memory()), lambda text: None)
    effort = Effort()
    bench = Bench(lab, configuration, effort.blocks)
    for _ in range(effort.cycles):
        bench.cycle()
    lab.close()
    return measured_side(plan, configuration, bench.rows())


def recommended(trial: Trial) -> CheckSide:
    """What `spectune run -o recommended.json` gives, with its four held-out blocks."""
    engine, plan = engine_and_plan(trial, 0, 0, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        file = shutil.copy(Path(trial.scenarios[0]).parent / EMPTY, folder)
        with open_study(f"sqlite:///{file}", plan) as study:
            found = tune(plan, cast(Any, engine), study, lambda text: None)
    return recommended_side(found.model_dump(mode="json", by_alias=True), "recommended.json")


def run_trial(trial: Trial) -> list[Found]:
    reference = recommended(trial) if trial.recommended else golden(trial)
    rules = Rules(parse_margins([]), allowed=frozenset({"workload_sha256"}))
    cases = ((0, 1, 0.0), (0, 2, SLOWDOWN), (1, 3, 0.0))
    found = []
    for kind, (which, salt, slower) in zip(KINDS, cases, strict=True):
        engine, plan = engine_and_plan(trial, which, salt, slower)
        configuration = Configuration(plan.spaces[0], N)
        report = check_engine(
            reference, plan, configuration, cast(Any, engine), rules, Effort(), lambda text: None
        )
        metrics = tuple(v.metric for v in report.verdicts if v.word == "regression")
        plain = threshold(reference, engine.windows, ASKED[kind])
        found.append(Found(trial.noise, kind, report.outcome, metrics, plain, report.repeats or 0))
    return found


def threshold(reference: CheckSide, windows: list[Window], metric: str) -> bool:
    """The rule most scripts have: the figure fell by the margin or more. For A/A: either did."""
    names = ("speedup", "acceptance_length") if metric == "any" else (metric,)
    lengths = [w.acceptance_length for w in windows if w.acceptance_length is not None]
    rates = {
        side: stats.mean(
            [w.output_tokens_per_second for w in windows if (w.method != "none") == side]
        )
        for side in (True, False)
    }
    now = {"speedup": rates[True] / rates[False], "acceptance_length": stats.mean(lengths)}
    row = next(row for row in reference.rows if row.chosen)
    losses = {name: -math.log(now[name] / getattr(row, name).value) for name in names}
    return any(
        loss >= distance(METRICS[name].margin, METRICS[name]) for name, loss in losses.items()
    )


def table(found: list[Found]) -> Iterator[str]:
    """One line a noise and kind."""
    yield f"| {' | '.join(HEADING)} |"
    yield "|---" * len(HEADING) + "|"
    for noise in (*NOISES, None):
        for kind in KINDS:
            group = [f for f in found if f.kind == kind and noise in (None, f.noise)]
            if not group:
                continue
            count = len(group)
            metric = ASKED[kind]
            hits = sum(metric in f.metrics or (metric == "any" and f.metrics != ()) for f in group)
            others = [
                sum(f.outcome == word for f in group) for word in ("no regression", "inconclusive")
            ]
            plain = sum(f.threshold for f in group)
            pairs = stats.mean([f.pairs for f in group])
            name = "all" if noise is None else f"{noise:.0%}"
            shares = " | ".join(f"{each / count:.1%}" for each in (hits, *others, plain))
            yield f"| {name} | {kind} | {count} | {shares} | {pairs:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="false alarms and misses of spectune check")
    parser.add_argument("--trials", type=int, default=100, help="at each noise")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reference", choices=("golden", "recommended"), default="golden")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        files = scenarios(Path(folder))
        with open_study(
            f"sqlite:///{folder}/{EMPTY}",
            engine_and_plan(Trial(0.0, 0, files, False), 0, 0, 0.0)[1],
        ) as study:
            pass
        remove_study(f"sqlite:///{folder}/{EMPTY}", study.id)
        trials = [
            Trial(
                noise,
                arguments.seed + 100_000 * i + each,
                files,
                arguments.reference == "recommended",
            )
            for i, noise in enumerate(NOISES)
            for each in range(arguments.trials)
        ]
        with ProcessPoolExecutor(arguments.jobs) as pool:
            found = [each for group in pool.map(run_trial, trials, chunksize=4) for each in group]
    print("\n".join(table(found)))
    print(f"\n{len(found)} checks in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
