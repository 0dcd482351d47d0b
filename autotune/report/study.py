"""A stored study, finished or not, as a Report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from autotune.evidence import Evidence, baseline_result, candidate_results, normal_interval
from autotune.knowledge import Key, Knowledge
from autotune.limits import describe
from autotune.measure import is_search_arm
from autotune.pooling import step_figures
from autotune.records import (
    BASELINE,
    SCHEDULED,
    BaselineResult,
    BlockRole,
    CandidateResult,
    Plan,
    Stopped,
    Window,
)
from autotune.report.data import Curve, Load, Report, row_of, span
from autotune.report.events import timeline
from autotune.storage.stored import StoredStudy, StoredWindow

LABELS = {"gpu": "GPU", "vllm": "vLLM", "torch": "torch", "cpu": "CPU"}
UNFINISHED = "this study has no recommendation yet: what follows is what was measured so far"


def of_study(study: StoredStudy) -> Report:
    """Everything the report needs; the windows are pooled once more for what a row leaves out."""
    knowledge = _knowledge(study)
    r = study.recommendation
    known = all(knowledge.windows(BASELINE, 0, load) for load in knowledge.loads)
    rows, baseline = (r.candidates, r.baseline) if r else _so_far(study.plan, knowledge, known)
    events, axis, pauses = timeline(study.windows, study.engine_starts)
    return Report(
        kind="study",
        name=study.info.id,
        state=study.info.state,
        model=study.info.model,
        workload=study.info.workload,
        engine=study.info.engine,
        created=study.info.created,
        recommendation=r,
        rows=tuple(row_of(c, _rest(study.windows, c)) for c in rows),
        baseline=baseline,
        loads=study.plan.concurrencies,
        methods=tuple(space.method for space in study.plan.spaces),
        curves=_curves(knowledge) if known else (),
        baseline_steps=_baseline_steps(knowledge),
        events=events,
        axis=axis,
        pauses=pauses,
        starts=len(study.engine_starts),
        seconds=study.info.total_seconds,
        failures=study.failures,
        facts=_facts(study.plan),
        tries_schedule=study.plan.settings.schedule,
        warnings=r.warnings if r else _unfinished_warnings(study.plan, known),
    )


def _knowledge(study: StoredStudy) -> Knowledge:
    """What the search of this study knew at its end."""
    knowledge = Knowledge(study.plan)
    for stored in study.windows:
        if is_search_arm(stored.arm):
            knowledge.add(stored.window)
    for failure in study.failures:
        knowledge.fail(failure.method, failure.num_speculative_tokens, failure.error)
    return knowledge


def _unfinished_warnings(plan: Plan, known: bool) -> tuple[str, ...]:
    missing = "the baseline was not measured at every load yet: no speed-up can be given"
    return (UNFINISHED, *(() if known else (missing,)), *plan.warnings)


def _so_far(
    plan: Plan, knowledge: Knowledge, known: bool
) -> tuple[tuple[CandidateResult, ...], tuple[BaselineResult, ...]]:
    """The rows of a study without a recommendation; none that need a baseline that is missing."""
    evidence = Evidence(plan, knowledge, (), Stopped(reason="unfinished", exhausted=False), {})
    measured = [load for load in knowledge.loads if knowledge.windows(BASELINE, 0, load)]
    baseline = tuple(baseline_result(evidence, load) for load in measured)
    return (candidate_results(evidence) if known else ()), baseline


def _curves(knowledge: Knowledge) -> tuple[Curve, ...]:
    alive = set(knowledge.candidates())
    found = []
    for space in knowledge.plan.spaces:
        lengths = tuple(n for n in space.lengths if (space.method, n) in alive)
        for load in knowledge.loads if lengths else ():
            each = [knowledge.predict(space.method, n, load) for n in lengths]
            spans = tuple(
                span(normal_interval(knowledge.plan, p.log_speedup, p.log_speedup_sd)) for p in each
            )
            given = tuple(s for s in spans if s is not None)
            found.append(Curve(method=space.method, load=load, lengths=lengths, spans=given))
    return tuple(found)


# ------------------------------------------------------------------------- where time goes


def _rest(windows: Sequence[StoredWindow], c: CandidateResult) -> float | None:
    """What a round takes beside drafting and verifying, on the windows of the row's other times."""
    if c.verify_seconds_per_step is None or c.num_speculative_tokens is None:
        return None
    steps = step_figures(_timed(windows, (c.method, c.num_speculative_tokens), c.concurrency))
    return _remainder(steps)


def _remainder(steps: dict[str, float | None]) -> float | None:
    step, verify = steps.get("step_seconds"), steps.get("verify_seconds_per_step")
    if step is None or verify is None:
        return None
    return max(0.0, step - verify - (steps.get("draft_seconds_per_step") or 0.0))


def _timed(windows: Sequence[StoredWindow], key: Key, load: Load) -> list[Window]:
    """Reference windows of a confirming start where there are any, else the search's."""
    own = [
        stored
        for stored in windows
        if (stored.window.method, stored.n, stored.window.concurrency) == (*key, load)
        and f":{SCHEDULED}" not in stored.arm
    ]
    fresh = [
        s.window
        for s in own
        if not is_search_arm(s.arm) and s.block.startswith(BlockRole.REFERENCE.value)
    ]
    roles = (BlockRole.SEARCH.value, BlockRole.REFERENCE.value)
    searched = [
        s.window for s in own if is_search_arm(s.arm) and s.block.partition(":")[0] in roles
    ]
    return fresh or searched


def _baseline_steps(knowledge: Knowledge) -> tuple[tuple[Load, float, float | None], ...]:
    found = []
    for load in knowledge.loads:
        steps = step_figures(knowledge.windows(BASELINE, 0, load))
        verify = steps.get("verify_seconds_per_step")
        if verify is not None:
            found.append((load, verify, _remainder(steps)))
    return tuple(found)


# ------------------------------------------------------------------------------ environment


def _facts(plan: Plan) -> tuple[tuple[str, str | None], ...]:
    s, w = plan.settings, plan.workload
    prompts = f"{w.name}, {len(w.prompts)} prompts" if plan.sends_prompts else w.name
    sampling = (
        f"temperature {w.sampling.temperature:g}, at most {w.sampling.max_tokens} tokens"
        if plan.sends_prompts
        else None
    )
    budget = "none" if s.budget_seconds is None else f"{s.budget_seconds:g} s"
    return (
        *_environment(plan),
        ("Engine", plan.engine), ("Engine arguments", " ".join(plan.target.engine_args) or "none"),
        ("Workload", prompts), ("Workload SHA-256", w.sha256), ("Sampling", sampling),
        ("Limits", describe(s.limits) if s.limits else "none"),
        ("Budget", budget), ("Confidence", f"{s.confidence:.0%}"),
        ("Tie margin", f"{s.tie_margin:.1%}"), ("Sampler", s.sampler), ("Seed", str(s.seed)),
    )  # fmt: skip


def _environment(plan: Plan) -> Iterator[tuple[str, str | None]]:
    """Every field that the record has, the machine's first."""
    for name, value in plan.environment.model_dump(mode="json").items():
        first, *rest = name.split("_")
        label = " ".join([LABELS.get(first, first.capitalize()), *rest])
        plain = value if value is None or isinstance(value, str) else json.dumps(value)
        yield label, plain
