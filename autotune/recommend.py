"""From evidence to a recommendation: per load, overall, with intervals, or a refusal."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Literal

from autotune import stats
from autotune.confirm import choose, tie_margin
from autotune.export import serve_args
from autotune.knowledge import Key, Knowledge, Load
from autotune.measure import Lab
from autotune.records import (
    BASELINE,
    BaselineResult,
    CandidateResult,
    Confirmation,
    Interval,
    LoadChoice,
    Plan,
    Recommendation,
    Status,
    Window,
    WorkloadSummary,
)
from autotune.search import PREDICTED

Decision = Literal["speculate", "do_not_speculate", "inconclusive"]


def recommend(
    lab: Lab, knowledge: Knowledge, confirmation: Confirmation | None, stopped_because: str
) -> Recommendation:
    """Build the document from everything measured."""
    plan = lab.plan
    speedup, decision = _answer(knowledge, confirmation)
    method, n = (
        (confirmation.method, confirmation.num_speculative_tokens)
        if confirmation and decision != "do_not_speculate"
        else (BASELINE, 0)
    )
    speculative_config = (
        knowledge.spaces[method].speculative_config(n) if method != BASELINE else None
    )
    return Recommendation(
        study=lab.study.id,
        engine=plan.engine,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        model=plan.target.model,
        workload=_workload(plan),
        environment=plan.environment,
        decision=decision,
        method=method,
        num_speculative_tokens=n,
        speculative_config=speculative_config,
        speedup=speedup,
        per_concurrency=tuple(
            _load_choice(knowledge, confirmation, load) for load in plan.concurrencies
        ),
        candidates=candidate_results(lab, knowledge, confirmation),
        baseline=tuple(_baseline(knowledge, load) for load in plan.concurrencies),
        cost=lab.cost(),
        stopped_because=stopped_because,
        vllm_serve_args=serve_args(speculative_config),
        engine_args=plan.target.engine_args,
        warnings=_warnings(lab, knowledge, confirmation, decision),
    )


def _workload(plan: Plan) -> WorkloadSummary:
    sampling, known = plan.workload.sampling, plan.sends_prompts
    return WorkloadSummary(
        name=plan.workload.name,
        sha256=plan.workload.sha256,
        num_prompts=len(plan.workload.prompts) if known else None,
        temperature=sampling.temperature if known else None,
        max_tokens=sampling.max_tokens if known else None,
    )


def _answer(
    knowledge: Knowledge, confirmation: Confirmation | None
) -> tuple[Interval | None, Decision]:
    if confirmation is None:
        return _best_probed(knowledge), _decide_unconfirmed(knowledge)
    speedup = _overall(knowledge.plan, confirmation)
    return speedup, _decide(speedup, knowledge.plan.settings.tie_margin)


def _decide_unconfirmed(knowledge: Knowledge) -> Decision:
    """Refuse when nothing measured is faster, or nothing works; else nothing is known."""
    refuted = _known(knowledge) and choose(knowledge) is None
    return "do_not_speculate" if refuted else "inconclusive"


def _known(knowledge: Knowledge) -> bool:
    """Whether something was measured, or there is nothing that could be."""
    return bool(_measured(knowledge)) or not any(knowledge.candidates())


def _measured(knowledge: Knowledge) -> list[Key]:
    return [key for key in knowledge.candidates() if knowledge.measured(*key)]


def _decide(speedup: Interval, tie: float) -> Decision:
    """Speculate when the whole interval says faster, refuse when it cannot matter."""
    if speedup.low > 1:
        return "speculate"
    return "do_not_speculate" if speedup.high < 1 + tie else "inconclusive"


def _overall(plan: Plan, confirmation: Confirmation) -> Interval:
    """Geometric mean over loads, one value per held-out block."""
    by_block = zip(*confirmation.log_ratios.values(), strict=True)
    return stats.ratio_interval([stats.mean(b) for b in by_block], plan.settings.confidence)


def _best_probed(knowledge: Knowledge) -> Interval | None:
    """The best that speculation reached, when nothing was worth confirming."""
    measured = _measured(knowledge)
    if not measured:
        return None
    best = max(measured, key=lambda key: knowledge.score(*key)[0])
    return model_interval(knowledge.plan, *knowledge.score(*best))


def model_interval(plan: Plan, log_speedup: float, sd: float) -> Interval:
    from scipy.stats import norm

    half = float(norm.ppf((1 + plan.settings.confidence) / 2)) * sd
    return Interval(
        value=math.exp(log_speedup),
        low=math.exp(log_speedup - half),
        high=math.exp(log_speedup + half),
        confidence=plan.settings.confidence,
    )


def best_at(knowledge: Knowledge, load: Load) -> Key | None:
    """The measured candidate to use at one load; None when not speculating is as good."""
    scored = {
        key: knowledge.predict(*key, load).log_speedup
        for key in knowledge.candidates()
        if knowledge.measured(*key)
    }
    best, margin = max(scored.values(), default=0.0), tie_margin(knowledge)
    if best <= margin:
        return None
    tied = [key for key, score in scored.items() if score >= best - margin]
    return min(tied, key=lambda key: (key[1], -scored[key]))


def _load_choice(knowledge: Knowledge, confirmation: Confirmation | None, load: Load) -> LoadChoice:
    key, tie = best_at(knowledge, load), knowledge.plan.settings.tie_margin
    overall = _key(confirmation)
    if overall is not None and key is not None and _as_good(knowledge, overall, key, load):
        key = overall  # one choice for all loads unless another one is really better here
    if key is None:
        return LoadChoice(
            concurrency=load,
            decision="do_not_speculate" if _known(knowledge) else "inconclusive",
            method=BASELINE,
            num_speculative_tokens=0,
            speedup=None,
            status=Status.PROBED,
        )
    speedup, status = _speedup_at(knowledge, confirmation, key, load)
    decision = _decide(speedup, tie)
    method, n = key if decision != "do_not_speculate" else (BASELINE, 0)
    return LoadChoice(
        concurrency=load,
        decision=decision,
        method=method,
        num_speculative_tokens=n,
        speedup=speedup,
        status=status,
    )


def _as_good(knowledge: Knowledge, overall: Key, key: Key, load: Load) -> bool:
    ours = knowledge.predict(*overall, load).log_speedup
    return ours >= knowledge.predict(*key, load).log_speedup - tie_margin(knowledge)


def _speedup_at(
    knowledge: Knowledge, confirmation: Confirmation | None, key: Key, load: Load
) -> tuple[Interval, Status]:
    plan = knowledge.plan
    if confirmation is not None and key == _key(confirmation):
        ratios = confirmation.log_ratios[load]
        return stats.ratio_interval(ratios, plan.settings.confidence), Status.CONFIRMED
    p = knowledge.predict(*key, load)
    return model_interval(plan, p.log_speedup, p.log_speedup_sd), Status.PROBED


def _key(confirmation: Confirmation | None) -> Key | None:
    if confirmation is None:
        return None
    return confirmation.method, confirmation.num_speculative_tokens


def _baseline(knowledge: Knowledge, load: Load) -> BaselineResult:
    windows = knowledge.windows(BASELINE, 0, load)
    return BaselineResult(
        concurrency=load, output_tokens_per_second=_rate(windows), **_latencies(windows)
    )


def _rate(windows: list[Window]) -> float:
    return math.exp(stats.mean([math.log(w.output_tokens_per_second) for w in windows]))


def _latencies(windows: list[Window]) -> dict[str, float | None]:
    tpot = [w.tpot.p50 for w in windows if w.tpot is not None]
    ttft = [w.ttft.p50 for w in windows if w.ttft is not None]
    return {
        "tpot_p50_seconds": stats.mean(tpot) if tpot else None,
        "ttft_p50_seconds": stats.mean(ttft) if ttft else None,
    }


def candidate_results(
    lab: Lab, knowledge: Knowledge, confirmation: Confirmation | None
) -> tuple[CandidateResult, ...]:
    """Every candidate at every load: confirmed, probed, predicted, failed or skipped."""
    before = _predictions_before_probing(lab)
    results = [
        _candidate(knowledge, confirmation, before, method, n, load)
        for space in lab.plan.spaces
        for method, n in ((space.method, n) for n in space.lengths)
        for load in lab.plan.concurrencies
    ]
    skipped = [
        CandidateResult(
            method=s.method,
            num_speculative_tokens=s.num_speculative_tokens,
            concurrency=None,
            status=Status.SKIPPED,
            reason=s.reason,
        )
        for s in lab.plan.skipped
    ]
    return (*results, *skipped)


def _candidate(
    knowledge: Knowledge,
    confirmation: Confirmation | None,
    before: dict[tuple[str, int, str], float],
    method: str,
    n: int,
    load: Load,
) -> CandidateResult:
    base = _rate(knowledge.windows(BASELINE, 0, load))
    named = {"method": method, "num_speculative_tokens": n, "concurrency": load}
    if not knowledge.alive(method, n):
        error = knowledge.failed.get((method, n)) or knowledge.failed[method, None]
        return CandidateResult(**named, status=Status.FAILED, error=error)
    measurement = knowledge.measurement(method, n, load)
    if measurement is None:
        p = knowledge.predict(method, n, load)
        return CandidateResult(
            **named,
            status=Status.PREDICTED,
            predicted_output_tokens_per_second=base * math.exp(p.log_speedup),
            speedup=model_interval(knowledge.plan, p.log_speedup, p.log_speedup_sd),
        )
    windows = knowledge.windows(method, n, load)
    confirmed = confirmation is not None and _key(confirmation) == (method, n)
    if confirmed and confirmation is not None:
        windows = list(confirmation.windows[load])
    predicted = before.get((method, n, str(load)))
    speedup, status = _speedup_at(knowledge, confirmation, (method, n), load)
    return CandidateResult(
        **named,
        status=status,
        predicted_output_tokens_per_second=(
            base * math.exp(predicted) if predicted is not None else None
        ),
        output_tokens_per_second=_rate(windows),
        speedup=speedup,
        acceptance_length=measurement.acceptance_length,
        per_position_acceptance_rates=measurement.per_position_acceptance_rates,
        draft_seconds_per_step=measurement.draft_seconds_per_step,
        verify_seconds_per_step=measurement.verify_seconds_per_step,
        **_latencies(windows),
    )


def _predictions_before_probing(lab: Lab) -> dict[tuple[str, int, str], float]:
    """ln(speedup) as the cost model saw it just before a candidate was first measured."""
    found: dict[tuple[str, int, str], float] = {}
    for trial in lab.study.optuna_study().trials:
        method = trial.params.get("method")
        n = trial.params.get(f"{method}.num_speculative_tokens")
        for load, value in trial.user_attrs.get(PREDICTED, {}).items():
            if method is not None and n is not None:
                found.setdefault((method, int(n), load), value)
    return found


def _warnings(
    lab: Lab, knowledge: Knowledge, confirmation: Confirmation | None, decision: Decision
) -> tuple[str, ...]:
    """Everything a reader must know before trusting the answer."""
    said = list(lab.plan.warnings)
    said += [
        f"{method}: live N did not work here; it was started once per N"
        for method in sorted(lab.static_methods & {method for method, _ in _measured(knowledge)})
    ]
    if not any(knowledge.candidates()):
        said.append("every candidate failed: their `error` says why")
    chosen = choose(knowledge)
    if chosen is not None:
        said += _tie_warnings(knowledge, chosen)
    if confirmation is not None:
        said += _confirmation_warnings(lab.plan, confirmation)
    if decision == "inconclusive" and confirmation is None:
        said.append("no candidate could be confirmed: the evidence is too thin for an answer")
    elif decision == "inconclusive":
        said.append(
            "the interval includes both a gain and no gain: measure longer (--rigorous, more "
            "prompts) or on a quieter machine"
        )
    if not lab.plan.settings.repeats:
        said.append(
            "the figures carry no spread of their own; each is assumed to have "
            f"{stats.ASSUMED_NOISE:.0%} noise"
        )
    return tuple(said)


def _tie_warnings(knowledge: Knowledge, chosen: Key) -> list[str]:
    score = knowledge.score(*chosen)[0]
    better = [
        key
        for key in knowledge.candidates()
        if knowledge.measured(*key) and knowledge.score(*key)[0] > score
    ]
    names = ", ".join(f"{method} N={n}" for method, n in better)
    if not better:
        return []
    margin = math.expm1(tie_margin(knowledge))
    return [f"{names} measured within {margin:.1%} of the choice: a tie, the smaller N was taken"]


def _confirmation_warnings(plan: Plan, confirmation: Confirmation) -> list[str]:
    said = []
    greedy = confirmation.greedy
    if greedy is not None and greedy.equal < greedy.compared:
        said.append(
            f"greedy outputs at batch 1: {greedy.compared - greedy.equal} of {greedy.compared} "
            f"differ from the baseline (first: {greedy.first_difference})"
        )
    if confirmation.baseline_generation:
        moved = max(confirmation.drift.values(), key=abs)
        said.append(
            f"the reference block moved by {math.expm1(moved):+.1%} during the study: the "
            "baseline was measured again next to the confirmation"
        )
    return said
