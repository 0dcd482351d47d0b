"""What a study found, candidate by candidate: the rows of the recommendation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from autotune import stats
from autotune.acceptance_evidence import (
    acceptance_length,
    acceptance_rates,
    conditional_rates,
    prompt_drafts,
)
from autotune.acceptance_flags import acceptance_flags
from autotune.knowledge import NOT_TRIED, Key, Knowledge, Load
from autotune.limits import goodput, share_within
from autotune.pooling import acceptance_figures, step_figures
from autotune.records import (
    BASELINE,
    BaselineResult,
    CandidateResult,
    Confirmation,
    Interval,
    Limits,
    Plan,
    PredictionQuality,
    ScheduleTrial,
    Status,
    Stopped,
    Window,
)

PAIRED = 64  # prompts whose counts a later check is paired by; more would bloat the document
# mean and sd of ln(speedup) by method, N and load
Predictions = dict[tuple[str, int, str], tuple[float, float]]


class Evidence(NamedTuple):
    """Everything a recommendation may rest on. The first confirmation is the overall choice's."""

    plan: Plan
    knowledge: Knowledge
    confirmations: tuple[Confirmation, ...]
    stopped: Stopped
    predictions: Predictions  # made just before a candidate was first measured
    trial: ScheduleTrial | None = None

    def confirmation(self, key: Key, load: Load) -> Confirmation | None:
        """The confirmation of a candidate, if it was confirmed at this load."""
        return next((c for c in self.confirmations if c.key == key and load in c.windows), None)


def speedup_at(evidence: Evidence, key: Key, load: Load) -> tuple[Interval, Status]:
    """The measured speed-up at one load: of held-out blocks, else of the search's own blocks."""
    confirmation, plan = evidence.confirmation(key, load), evidence.plan
    if confirmation is not None:
        interval = stats.ratio_interval(
            confirmation.log_ratios[load],
            plan.settings.confidence,
            common_sd=evidence.knowledge.wander,
            beside=searched_ratios(evidence, key, load),
        )
        return interval, Status.CONFIRMED
    ratios = tuple(evidence.knowledge.log_ratios(*key, load))
    alone = evidence.knowledge.noise / math.sqrt(len(ratios))
    sd = math.sqrt(2) * math.hypot(alone, evidence.knowledge.wander)
    return normal_interval(plan, stats.mean(ratios), sd), Status.PROBED


def searched_ratios(evidence: Evidence, key: Key, load: Load) -> tuple[float, ...]:
    """Of the search's own blocks: they chose the candidate, so only their spread may be used."""
    return tuple(evidence.knowledge.log_ratios(*key, load))


def _freedom(evidence: Evidence, key: Key, load: Load, confirmation: Confirmation | None) -> int:
    """Degrees of freedom of a confirmed interval; 0: its spread is assumed."""
    if confirmation is None:
        return 0
    blocks = (confirmation.log_ratios[load], searched_ratios(evidence, key, load))
    return sum(max(0, len(ratios) - 1) for ratios in blocks)


def normal_interval(plan: Plan, log_speedup: float, sd: float) -> Interval:
    """Interval of a ratio whose logarithm is normal with a known standard deviation."""
    from scipy.stats import norm

    half = float(norm.ppf((1 + plan.settings.confidence) / 2)) * sd
    return Interval(
        value=math.exp(log_speedup),
        low=math.exp(log_speedup - half),
        high=math.exp(log_speedup + half),
        confidence=plan.settings.confidence,
    )


def baseline_result(evidence: Evidence, load: Load) -> BaselineResult:
    """No speculation, on the search's prompts."""
    windows, limits = evidence.knowledge.windows(BASELINE, 0, load), evidence.plan.settings.limits
    return BaselineResult(
        concurrency=load,
        output_tokens_per_second=mean_rate(windows),
        **_latencies(windows),
        **_limit_figures(limits, windows),
    )


def candidate_results(evidence: Evidence) -> tuple[CandidateResult, ...]:
    """Every candidate at every load: confirmed, probed, predicted, failed or skipped."""
    results = [
        candidate_result(evidence, (space.method, n), load)
        for space in evidence.plan.spaces
        for n in space.lengths
        for load in evidence.plan.concurrencies
    ]
    skipped = [
        CandidateResult(
            method=s.method,
            num_speculative_tokens=s.num_speculative_tokens,
            concurrency=None,
            status=Status.SKIPPED,
            reason=s.reason,
        )
        for s in evidence.plan.skipped
    ]
    return (*results, *skipped)


def candidate_result(evidence: Evidence, key: Key, load: Load) -> CandidateResult:
    """One candidate at one load."""
    knowledge = evidence.knowledge
    if not knowledge.alive(*key):
        error = knowledge.failed.get(key)
        if error is None:  # the others of its method had failed
            error = f"{NOT_TRIED}, {key[0]} was given up: {knowledge.failed[key[0], None]}"
        return _result(key, load, status=Status.FAILED, error=error)
    if not knowledge.windows(*key, load):
        return _predicted(evidence, key, load)
    return _measured(evidence, key, load)


def _predicted(evidence: Evidence, key: Key, load: Load) -> CandidateResult:
    p = evidence.knowledge.predict(*key, load)
    base = mean_rate(evidence.knowledge.windows(BASELINE, 0, load))
    return _result(
        key,
        load,
        status=Status.PREDICTED,
        predicted_output_tokens_per_second=base * math.exp(p.log_speedup),
        speedup=normal_interval(evidence.plan, p.log_speedup, p.log_speedup_sd),
    )


def _measured(evidence: Evidence, key: Key, load: Load) -> CandidateResult:
    """Rates, latencies and acceptance of one row come from the same windows.

    Once confirmed those are the held-out ones, and the baseline's and the speed-up are on the same
    prompts. Draft and verify times of a confirmed row come from its start's reference windows
    (search block 0) where there are any, else from its probes, maybe of another engine start.
    """
    knowledge, confirmation = evidence.knowledge, evidence.confirmation(key, load)
    searched = knowledge.windows(BASELINE, 0, load)
    if confirmation is not None:
        windows, base = confirmation.windows[load], confirmation.baseline[load]
        probed = tuple(knowledge.windows(*key, load))
        timed: Sequence[Window] = confirmation.references.get(load) or probed
    else:
        windows, base = tuple(knowledge.windows(*key, load)), tuple(searched)
        timed = windows
    speedup, status = speedup_at(evidence, key, load)
    predicted = evidence.predictions.get((*key, str(load)))
    steps = step_figures(timed)
    steps.pop("step_seconds", None)
    return _result(
        key,
        load,
        status=status,
        predicted_output_tokens_per_second=(
            mean_rate(searched) * math.exp(predicted[0]) if predicted is not None else None
        ),
        predicted_speedup=normal_interval(evidence.plan, *predicted) if predicted else None,
        output_tokens_per_second=mean_rate(windows),
        baseline_output_tokens_per_second=mean_rate(base),
        speedup=speedup,
        **_acceptance(knowledge, key, load, windows),
        speedup_freedom=_freedom(evidence, key, load, confirmation) or None,
        prompts=prompt_drafts(windows)[:PAIRED] if confirmation is not None else (),
        **steps,
        **_latencies(windows),
        **_limit_figures(evidence.plan.settings.limits, windows),
    )


def _acceptance(
    knowledge: Knowledge, key: Key, load: Load, windows: Sequence[Window]
) -> dict[str, object]:
    """Figures of acceptance with their intervals and flags."""
    confidence = knowledge.plan.settings.confidence
    figures = acceptance_figures(windows)
    figures.pop("counters", None)
    rates = figures["per_position_acceptance_rates"]
    length = acceptance_length(windows, confidence)
    positions = acceptance_rates(windows, confidence)
    return {
        **figures,
        # a live engine's counters have the positions of its largest N
        "per_position_acceptance_rates": None if rates is None else rates[: key[1]],
        "acceptance_length_interval": length.interval if length else None,
        "per_position_acceptance_intervals": (
            tuple(each.interval for each in positions) if positions else None
        ),
        "conditional_acceptance_rates": conditional_rates(windows),
        "flags": acceptance_flags(knowledge, key, load, windows, positions or ()),
    }


def prediction_quality(evidence: Evidence) -> PredictionQuality:
    """Every first prediction against what the search measured of it afterwards."""
    knowledge = evidence.knowledge
    errors, covered = [], 0
    for (method, n, at), (mean, sd) in evidence.predictions.items():
        for load in evidence.plan.concurrencies:
            ratios = knowledge.log_ratios(method, n, load) if str(load) == at else []
            if not ratios:
                continue
            error = mean - stats.mean(ratios)
            sd_of_error = math.hypot(sd, knowledge.noise * math.sqrt(2 / len(ratios)))
            interval = normal_interval(evidence.plan, 0.0, sd_of_error)
            covered += interval.low <= math.exp(error) <= interval.high
            errors.append(abs(math.expm1(error)))
    middle = statistics.median(errors) if errors else None
    return PredictionQuality(
        count=len(errors),
        median_error=middle,
        covered=covered,
        confidence=evidence.plan.settings.confidence,
    )


def _result(key: Key, load: Load, **figures: object) -> CandidateResult:
    method, n = key
    return CandidateResult.model_validate(
        {"method": method, "num_speculative_tokens": n, "concurrency": load, **figures}
    )


def mean_rate(windows: Sequence[Window]) -> float:
    """Geometric mean of output tokens per second."""
    return math.exp(stats.mean([math.log(w.output_tokens_per_second) for w in windows]))


def _limit_figures(limits: Limits | None, windows: Sequence[Window]) -> dict[str, float | None]:
    return {
        "share_within_limits": share_within(limits, windows),
        "goodput_requests_per_second": goodput(limits, windows),
    }


def _latencies(windows: Sequence[Window]) -> dict[str, float | None]:
    tpot = [w.tpot.p50 for w in windows if w.tpot is not None]
    ttft = [w.ttft.p50 for w in windows if w.ttft is not None]
    return {
        "tpot_p50_seconds": stats.mean(tpot) if tpot else None,
        "ttft_p50_seconds": stats.mean(ttft) if ttft else None,
    }
