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
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from evaluate import Z95, Outcome, summarize
from plots import prediction_figure

from autotune.engines import EngineOptions, load_engine
from autotune.knowledge import Knowledge
from autotune.plan import Request, make_plan, with_priors
from autotune.priors import learn
from autotune.recording import load_recording
from autotune.records import (
    BASELINE,
    Arm,
    BlockRole,
    CandidateResult,
    Plan,
    Prior,
    Status,
    Target,
    Window,
)
from autotune.store import open_study
from autotune.tuner import tune
from autotune.workload import make_block

PUBLISHED = Path(__file__).parent.parent / "published"
NOISE = 0.02  # of a recorded throughput: what repeated runs of such sweeps show
DRAWS = 6  # random choices of two N a method
SCENARIOS = ("dense-chat", "edge", "moe-low-load", "steps", "three-loads", "tie")
SIMULATED = {
    Status.PREDICTED: "simulator: never run, predicted",
    Status.CONFIRMED: "simulator: confirmed speed-up",
}
Key = tuple[str, int]


@functools.cache
def priors_without(model: str) -> dict[str, Prior]:
    """The priors learned from every published sweep but those of this model."""
    recordings = [load_recording(path) for path in sorted(PUBLISHED.glob("*.json"))]
    return learn([r for r in recordings if not same_model(r.model, model)])


def same_model(left: str, right: str) -> bool:
    """Whether two names mean one model: the owner before the slash and the case do not count."""
    a, b = (name.rsplit("/", 1)[-1].lower() for name in (left, right))
    return a.startswith(b) or b.startswith(a)


def recorded_cases(path: Path) -> Iterator[Outcome]:
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


def _left_out(what: str, plan: Plan, windows, left_out: set[Key]) -> Iterator[Outcome]:
    knowledge = Knowledge(plan)
    for (method, n, _), window in windows.items():
        if (method, n) not in left_out:
            knowledge.add(window)
    for method, n, load in windows:
        if (method, n) in left_out:
            p = knowledge.predict(method, n, load)
            ours, base = windows[method, n, load], windows[BASELINE, 0, load]
            rated = ours.acceptance_length is not None
            yield Outcome(
                target=plan.target.model,
                method=method,
                n=n,
                load=load,
                kind=f"{what}, {'with' if rated else 'without'} acceptance",
                predicted=p.log_speedup,
                predicted_sd=p.log_speedup_sd,
                measured=math.log(ours.output_tokens_per_second / base.output_tokens_per_second),
                measured_sd=NOISE,
            )


def simulated_cases(job: tuple[str, int]) -> list[Outcome]:
    """One study on one scenario and seed."""
    name, seed = job
    engine = load_engine("simulate", EngineOptions(simulation=name, seed=seed))
    plan = make_plan(Request(seed=seed), engine)
    with (
        tempfile.TemporaryDirectory() as folder,
        open_study(f"sqlite:///{folder}/study.db", plan) as study,
    ):
        result = tune(plan, engine, study, lambda text: None)
    return [
        _simulated(engine, c)
        for c in result.candidates
        if c.speedup is not None and c.status in SIMULATED
    ]


def _simulated(engine, c: CandidateResult) -> Outcome:
    truth = engine.truth(c.method, c.num_speculative_tokens, c.concurrency)
    return Outcome(
        target=engine.scenario.name,
        method=c.method,
        n=c.num_speculative_tokens,
        load=c.concurrency,
        kind=SIMULATED[c.status],
        predicted=math.log(c.speedup.value),
        predicted_sd=math.log(c.speedup.high / c.speedup.value) / Z95,
        measured=math.log(truth / engine.truth(BASELINE, 0, c.concurrency)),
        measured_sd=0.0,
    )


def table(outcomes: Iterable[Outcome]) -> str:
    lines = [
        "| what was predicted | cases | median error | 95 % interval: half width | covers |",
        "|---|---|---|---|---|",
    ]
    outcomes = list(outcomes)
    for kind in sorted({o.kind for o in outcomes}):
        s = summarize([o for o in outcomes if o.kind == kind])
        lines.append(
            f"| {kind} | {s.count} | {s.median_error:.1%} | {s.median_half_width:.1%} "
            f"| {s.coverage:.1%} |"
        )
    return "\n".join(lines)


def plot(outcomes: Iterable[Outcome]) -> str:
    """One N left out at a time: predicted against recorded, and the errors by N (SVG)."""
    kind = "leave one N out, with acceptance"
    shown = [o._replace(target="published") for o in outcomes if o.kind == kind]
    return prediction_figure(shown)
