"""From evidence to a recommendation: per load, overall, with intervals, or a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from autotune.cautions import warnings
from autotune.choice import as_good, best_at, measured
from autotune.evidence import (
    Evidence,
    Predictions,
    baseline_result,
    candidate_results,
    normal_interval,
    prediction_quality,
    searched_ratios,
    speedup_at,
)
from autotune.export.serve_args import serve_args, served_engine_args
from autotune.knowledge import Key, Knowledge, Load
from autotune.limits import NO_SPECULATION, eligible, keeps
from autotune.measure import Lab
from autotune.pareto import pareto_front
from autotune.records import (
    BASELINE,
    Confirmation,
    Interval,
    LoadChoice,
    Plan,
    Recommendation,
    ScheduleTrial,
    Stopped,
    WorkloadSummary,
)
from autotune.schedule_verdict import over_loads
from autotune.search import PREDICTED, candidate_of

Decision = Literal["speculate", "do_not_speculate", "inconclusive"]


def recommend(
    lab: Lab,
    knowledge: Knowledge,
    confirmations: tuple[Confirmation, ...],
    stopped: Stopped,
    trial: ScheduleTrial | None = None,
) -> Recommendation:
    """Build the document from everything measured."""
    plan = lab.plan
    evidence = Evidence(plan, knowledge, confirmations, stopped, _predictions(lab), trial)
    speedup, decision = _answer(evidence)
    tiers = trial.tiers if trial and trial.outcome == "won" and decision == "speculate" else ()
    first = confirmations[0] if confirmations and decision != "do_not_speculate" else None
    method, n = (first.method, first.num_speculative_tokens) if first else (BASELINE, 0)
    n = max((n for _, _, n in tiers), default=n)
    config = knowledge.spaces[method].speculative_config(n, tiers) if first else None
    choices = tuple(_load_choice(evidence, load) for load in plan.concurrencies)
    windows = [stored.window for stored in lab.study.windows()]
    rows = candidate_results(evidence)
    baseline = tuple(baseline_result(evidence, load) for load in plan.concurrencies)
    found = warnings(evidence, decision, choices, _static_reasons(lab), windows)
    recommendation = Recommendation(
        study=lab.study.id,
        engine=plan.engine,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        model=plan.target.model,
        workload=_workload(plan),
        environment=plan.environment,
        decision=decision,
        method=method,
        num_speculative_tokens=n,
        speculative_config=config,
        speedup=speedup,
        per_concurrency=choices,
        schedule=list(tiers) or None,
        schedule_trial=trial,
        limits=plan.settings.limits,
        limits_share=plan.settings.limits_share if plan.settings.limits else None,
        pareto=pareto_front(rows, baseline),
        candidates=rows,
        baseline=baseline,
        predictions=prediction_quality(evidence),
        cost=lab.cost(),
        stopped_because=stopped.reason,
        exhausted=stopped.exhausted,
        vllm_serve_args=serve_args(config),
        engine_args=plan.target.engine_args,
        variables=plan.variables,
        warnings=found,
    )
    _, left_out = served_engine_args(recommendation)
    return recommendation.model_copy(update={"warnings": (*found, *left_out)})


def _workload(plan: Plan) -> WorkloadSummary:
    sampling, known = plan.workload.sampling, plan.sends_prompts
    return WorkloadSummary(
        name=plan.workload.name,
        sha256=plan.workload.sha256,
        num_prompts=len(plan.workload.prompts) if known else None,
        temperature=sampling.temperature if known else None,
        max_tokens=sampling.max_tokens if known else None,
    )


def _static_reasons(lab: Lab) -> dict[str, str]:
    """Methods that were to be switched live and were started once per N instead, and why."""
    wanted = [space for space in lab.plan.spaces if lab.plan.is_live(space)]
    reasons = {space.method: lab.why_static(space) for space in wanted}
    return {method: reason for method, reason in reasons.items() if reason is not None}


def _predictions(lab: Lab) -> Predictions:
    """Mean and sd of ln(speedup) just before a candidate was first measured."""
    found: Predictions = {}
    for trial in lab.study.optuna_study().trials:
        key = candidate_of(trial.params, lab.plan.spaces)
        for load, value in trial.user_attrs.get(PREDICTED, {}).items():
            if key is not None:
                found.setdefault((*key, load), tuple(value))
    return found


def _answer(evidence: Evidence) -> tuple[Interval | None, Decision]:
    tie = evidence.plan.settings.tie_margin
    if evidence.confirmations:
        first, loads = evidence.confirmations[0], evidence.plan.concurrencies
        trial = evidence.trial
        won = trial.speedup if trial is not None and trial.outcome == "won" else None
        wander = evidence.knowledge.wander
        searched = {load: searched_ratios(evidence, first.key, load) for load in loads}
        speedup = won or over_loads(
            evidence.plan, first.log_ratios, common_sd=wander, beside=searched
        )
        return speedup, _within_limits(evidence, first.key, loads) or _decide(speedup, tie)
    best = _best_probed(evidence)
    missed = best is None and any(measured(evidence.knowledge))  # the limits, all of them
    refuted = (missed or (best is not None and best.high < 1 + tie)) and evidence.stopped.exhausted
    return best, "do_not_speculate" if refuted else "inconclusive"


def _within_limits(evidence: Evidence, key: Key, loads: Sequence[Load]) -> Decision | None:
    """What the latency limits alone decide: the one side that keeps more of them; None: neither."""
    allowed = eligible(evidence.knowledge, [key, NO_SPECULATION], loads)
    if len(allowed) == 2:
        return None
    return "speculate" if key in allowed else "do_not_speculate"


def _decide(speedup: Interval, tie: float) -> Decision:
    """Speculate when the whole interval says faster, refuse when it cannot matter."""
    if speedup.low > 1:
        return "speculate"
    return "do_not_speculate" if speedup.high < 1 + tie else "inconclusive"


def _best_probed(evidence: Evidence) -> Interval | None:
    """The best that speculation reached, when nothing was worth confirming."""
    knowledge = evidence.knowledge
    loads = evidence.plan.concurrencies
    allowed = eligible(knowledge, [NO_SPECULATION, *measured(knowledge)], loads)
    found = [key for key in allowed if key != NO_SPECULATION]
    if not found:
        return None
    best = max(found, key=lambda key: knowledge.score(*key)[0])
    return normal_interval(evidence.plan, *knowledge.score(*best))


def _load_choice(evidence: Evidence, load: Load) -> LoadChoice:
    key = _key_at(evidence, load)
    if key is None:
        return _no_choice(evidence, load)
    speedup, status = speedup_at(evidence, key, load)
    decided = _within_limits(evidence, key, (load,))
    decision = decided or _decide(speedup, evidence.plan.settings.tie_margin)
    method, n = key if decision != "do_not_speculate" else (BASELINE, 0)
    return LoadChoice(
        concurrency=load,
        decision=decision,
        method=method,
        num_speculative_tokens=n,
        speedup=speedup,
        status=status,
        meets_limits=_meets(evidence, (method, n), load),
    )


def _meets(evidence: Evidence, key: Key, load: Load) -> bool | None:
    limited = evidence.plan.settings.limits is not None
    return keeps(evidence.knowledge, key, load) if limited else None


def _key_at(evidence: Evidence, load: Load) -> Key | None:
    """A confirmed choice wherever one is as good, the overall one first; else the load's best."""
    best = best_at(evidence.knowledge, load)
    if best is None:
        return None
    for c in evidence.confirmations:
        if evidence.confirmation(c.key, load) and as_good(evidence.knowledge, c.key, best, load):
            return c.key
    return best


def _no_choice(evidence: Evidence, load: Load) -> LoadChoice:
    """Nothing measured is faster at this load; how certain that is depends on the search."""
    knowledge, tie = evidence.knowledge, evidence.plan.settings.tie_margin
    known = measured(knowledge)
    allowed = eligible(knowledge, [NO_SPECULATION, *known], (load,))
    found = [knowledge.predict(*key, load) for key in allowed if key != NO_SPECULATION]
    highs = [
        normal_interval(evidence.plan, p.log_speedup, p.log_speedup_sd).high
        for p in sorted(found, key=lambda p: p.log_speedup)[-1:]
    ]
    missed = bool(known) and not found  # the limits, all of them
    refuted = (missed or (bool(highs) and highs[0] < 1 + tie)) and evidence.stopped.exhausted
    return LoadChoice(
        concurrency=load,
        decision="do_not_speculate" if refuted else "inconclusive",
        method=BASELINE,
        num_speculative_tokens=0,
        speedup=None,
        status=None,
        meets_limits=_meets(evidence, NO_SPECULATION, load),
    )
