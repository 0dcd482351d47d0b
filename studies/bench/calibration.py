"""Does the interval of a prediction hold the truth? On recordings and on the simulator.

Recordings: `leave one N out` fits everything that was measured but one (method, N); `two N a
method` fits two random N of each method; `one N a method` only the middle one. What is left out is
predicted and compared with the recorded speed-up. Priors are learned without the model at hand.
The compared figure has noise of its own (2 % assumed), which the interval includes.

Simulator: whole studies; the predictions of what was never run and the confirmed speed-ups against
the scenario's noise-free truth.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from autotune.engines import EngineOptions, load_engine
from autotune.knowledge import Knowledge
from autotune.plan import Request, make_plan, with_priors
from autotune.priors import learn
from autotune.recording import load_recording
from autotune.records import BASELINE, Arm, BlockRole, Plan, Prior, Status, Target, Window
from autotune.store import open_study
from autotune.tuner import tune
from autotune.workload import make_block

PUBLISHED = Path(__file__).parent.parent / "published"
NOISE = 0.02  # of a recorded throughput: what repeated runs of such sweeps show
DRAWS = 6  # random choices of two N a method
SCENARIOS = ("dense-chat", "edge", "moe-low-load", "steps", "three-loads", "tie")
Key = tuple[str, int]


class Case(NamedTuple):
    what: str
    error: float  # of ln(speed-up)
    sd: float
    z: float  # half-width of its 95 % interval in sds


@functools.cache
def priors_without(model: str) -> dict[str, Prior]:
    """The priors learned from every published sweep but those of this model."""
    recordings = [load_recording(path) for path in sorted(PUBLISHED.glob("*.json"))]
    return learn([r for r in recordings if not same_model(r.model, model)])


def same_model(left: str, right: str) -> bool:
    """Whether two names mean one model: the owner before the slash and the case do not count."""
    a, b = (name.rsplit("/", 1)[-1].lower() for name in (left, right))
    return a.startswith(b) or b.startswith(a)


def recorded_cases(path: Path) -> Iterator[Case]:
    """Everything that can be left out of one recording."""
    engine = load_engine("replay", EngineOptions(recording=str(path)))
    plan = make_plan(Request(), engine)
    plan = with_priors(plan, priors_without(plan.target.model))
    windows = all_windows(engine, plan)
    candidates = sorted({(m, n) for m, n, _ in windows if m != BASELINE})
    for key in candidates:
        yield from _left_out("leave one N out", plan, windows, {key})
    rng = random.Random(path.stem)
    for _ in range(DRAWS):
        kept = {key for own in _by_method(candidates) for key in rng.sample(own, min(2, len(own)))}
        yield from _left_out("two N a method", plan, windows, set(candidates) - kept)
    middle = {own[len(own) // 2] for own in _by_method(candidates)}
    yield from _left_out("one N a method", plan, windows, set(candidates) - middle)


def _by_method(candidates: Sequence[Key]) -> list[list[Key]]:
    return [[k for k in candidates if k[0] == m] for m in sorted({m for m, _ in candidates})]


def all_windows(engine, plan: Plan) -> dict[tuple[str, int, int | None], Window]:
    """One exact window of everything that is recorded."""
    spaces = [(BASELINE, (0,)), *((s.method, s.lengths) for s in plan.spaces)]
    found = {}
    for method, lengths in spaces:
        for n in lengths:
            arm = Arm(method=method, num_speculative_tokens=n)
            session = engine.open(Target(model=plan.target.model), arm, lambda text: None)
            for load in plan.concurrencies:
                block = make_block(plan.workload, BlockRole.SEARCH, 0, load, 1)
                found[method, n, load] = session.run(block)
    return found


def _left_out(what: str, plan: Plan, windows, left_out: set[Key]) -> Iterator[Case]:
    knowledge = Knowledge(plan)
    for (method, n, _), window in windows.items():
        if (method, n) not in left_out:
            knowledge.add(window)
    for method, n, load in windows:
        if (method, n) in left_out:
            p = knowledge.predict(method, n, load)
            ours, base = windows[method, n, load], windows[BASELINE, 0, load]
            truth = math.log(ours.output_tokens_per_second / base.output_tokens_per_second)
            sd = math.hypot(p.log_speedup_sd, NOISE)
            rated = ours.acceptance_length is not None
            kind = f"{what}, {'with' if rated else 'without'} acceptance"
            yield Case(kind, p.log_speedup - truth, sd, 1.96)


def simulated_cases(job: tuple[str, int]) -> list[Case]:
    """One study on one scenario and seed."""
    name, seed = job
    engine = load_engine("simulate", EngineOptions(simulation=name, seed=seed))
    plan = make_plan(Request(seed=seed), engine)
    with (
        tempfile.TemporaryDirectory() as folder,
        open_study(f"sqlite:///{folder}/study.db", plan) as study,
    ):
        result = tune(plan, engine, study, lambda text: None)
    cases = []
    for c in result.candidates:
        if c.speedup is None or c.status not in (Status.PREDICTED, Status.CONFIRMED):
            continue
        base = engine.truth(BASELINE, 0, c.concurrency)
        truth = engine.truth(c.method, c.num_speculative_tokens, c.concurrency) / base
        what = {
            Status.PREDICTED: "simulator: never run, predicted",
            Status.CONFIRMED: "simulator: confirmed speed-up",
        }[c.status]
        half = math.log(c.speedup.high / c.speedup.value)
        cases.append(Case(what, math.log(c.speedup.value / truth), half / 1.96, 1.96))
    return cases


def table(cases: Iterable[Case]) -> str:
    lines = [
        "| what was predicted | cases | median error | 90th | 95 % interval covers |",
        "|---|---|---|---|---|",
    ]
    cases = list(cases)
    for what in sorted({case.what for case in cases}):
        found = [case for case in cases if case.what == what]
        errors = sorted(abs(case.error) for case in found)
        held = statistics.fmean(abs(c.error) <= c.z * c.sd for c in found)
        lines.append(
            f"| {what} | {len(found)} | {statistics.median(errors):.1%} "
            f"| {errors[int(0.9 * len(errors))]:.1%} | {held:.1%} |"
        )
    return "\n".join(lines)
