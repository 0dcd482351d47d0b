"""Windows of alternating starts -> the figures of a check.

A *cycle* is A B B A: the blocks on the baseline's start and on the configuration's, then both once
more in mirrored order. Every block has been measured twice on either side in it, with the same
mean time, so a linear drift of the machine cancels exactly. The unit is the log ratio of one block
in one cycle, averaged over its two passes.

Over units the 20 % trimmed mean is taken, so that a few disturbed windows neither move the figure
nor widen it; its standard error and degrees of freedom are K. K. Yuen's (Biometrika 61, 1974).
What moves a whole start, and so a whole cycle, is added from the spread between cycles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune import stats
from autotune.acceptance_evidence import acceptance_length, acceptance_rates, prompt_drafts
from autotune.check.records import CheckRow, Figure
from autotune.check.verdicts import welch
from autotune.clusters import Estimate
from autotune.records import BASELINE, GreedyCheck, Quantiles, Record, Window

TRIMMED = 0.2
START_SD = 0.004  # of ln(speed), what one start moves: assumed until cycles show it
START_WEIGHT = 4.0  # cycles that the assumption counts for
QUANTILES = ("p50", "p90", "p99")
CONFIDENCE = 0.95


class Cycle(Record):
    """One load in one cycle: `ours[i]` and `base[i]` are block i's windows, one per pass."""

    ours: tuple[tuple[Window, ...], ...]
    base: tuple[tuple[Window, ...], ...]


def measured_row(
    load: int | None,
    method: str,
    n: int,
    cycles: Sequence[Cycle],
    greedy: GreedyCheck | None = None,
) -> CheckRow:
    """The configuration at one load."""
    windows = [w for cycle in cycles for passes in cycle.ours for w in passes]
    length = acceptance_length(windows, CONFIDENCE)
    rates = acceptance_rates(windows, CONFIDENCE) or ()
    return CheckRow(
        concurrency=load,
        method=method,
        num_speculative_tokens=n,
        chosen=True,
        speedup=ratio_figure([unit_ratios(cycle) for cycle in cycles]),
        throughput=_rate_figure([cycle.ours for cycle in cycles]),
        acceptance_length=(
            _length_alone(windows)
            if length is None
            else _estimated(length, length.standard_error / length.interval.value)
        ),
        position_rates=tuple(_estimated(rate, rate.standard_error) for rate in rates),
        latencies=_latencies([cycle.ours for cycle in cycles]),
        prompts=prompt_drafts(windows),
        greedy=greedy,
    )


def _estimated(estimate: Estimate, sd: float) -> Figure:
    freedom = float(estimate.clusters - 1) or None
    count = estimate.clusters
    return Figure(value=estimate.interval.value, sd=sd, freedom=freedom, count=count)


def baseline_row(load: int | None, cycles: Sequence[Cycle]) -> CheckRow:
    """No speculation at one load: what the speed-ups are over."""
    return CheckRow(
        concurrency=load,
        method=BASELINE,
        num_speculative_tokens=0,
        speedup=Figure(value=1.0, sd=0.0),
        throughput=_rate_figure([cycle.base for cycle in cycles]),
        latencies=_latencies([cycle.base for cycle in cycles]),
    )


def unit_ratios(cycle: Cycle) -> tuple[float, ...]:
    """ln(ours / baseline) of each block, its passes averaged."""
    return tuple(
        _mean_log(ours) - _mean_log(base) for ours, base in zip(cycle.ours, cycle.base, strict=True)
    )


def ratio_figure(cycles: Sequence[Sequence[float]]) -> Figure:
    """A ratio from the log ratios of each cycle's blocks."""
    units = [unit for cycle in cycles for unit in cycle]
    mean, error, freedom = trimmed(units)
    start_variance, start_freedom = _between(cycles)
    start_sd = math.sqrt(start_variance / len(cycles))
    return Figure(
        value=math.exp(mean),
        sd=math.hypot(error, start_sd),
        freedom=welch([(error, freedom), (start_sd, start_freedom)]),
        count=len(units),
    )


def trimmed(values: Sequence[float], share: float = TRIMMED) -> tuple[float, float, float]:
    """Trimmed mean, its standard error (Yuen) and the degrees of freedom.

    A single value has no spread: the field's noise stands for it. Raises ValueError for none.
    """
    if not values:
        raise ValueError("no values: a trimmed mean needs at least one")
    if len(values) == 1:
        return values[0], stats.ASSUMED_NOISE, 1.0
    ordered, cut = sorted(values), int(share * len(values))
    kept = ordered[cut : len(ordered) - cut]
    low, high = kept[0], kept[-1]
    winsorised = [min(max(value, low), high) for value in ordered]
    centre = stats.mean(winsorised)
    squares = math.fsum((value - centre) ** 2 for value in winsorised)
    left = len(kept)
    if left < 2:
        return stats.mean(kept), stats.ASSUMED_NOISE, 1.0
    return stats.mean(kept), math.sqrt(squares / (left * (left - 1))), float(left - 1)


def _between(cycles: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Variance of a cycle's ratio that its blocks do not explain, and its degrees of freedom.

    Two arms and two passes: a cycle's ratio moves by about one start's sd each. The assumption is
    replaced as cycles come in.
    """
    assumed = START_WEIGHT * 2 * START_SD**2
    if len(cycles) < 2:
        return assumed / START_WEIGHT, START_WEIGHT
    figures = [trimmed(cycle) for cycle in cycles]
    spread = stats.within([mean for mean, _, _ in figures])
    inside = stats.mean([error**2 for _, error, _ in figures])
    seen = max(0.0, spread.squares / spread.freedom - inside) * spread.freedom
    freedom = START_WEIGHT + spread.freedom
    return (assumed + seen) / freedom, freedom


def _mean_log(windows: Sequence[Window]) -> float:
    return stats.mean([math.log(window.output_tokens_per_second) for window in windows])


def _rate_figure(cycles: Sequence[Sequence[Sequence[Window]]]) -> Figure:
    """Throughput, geometric mean over blocks; what differs between blocks is in its error."""
    return _log_figure([_mean_log(passes) for cycle in cycles for passes in cycle])


def _log_figure(logs: Sequence[float]) -> Figure:
    mean, error, freedom = trimmed(logs)
    return Figure(value=math.exp(mean), sd=error, freedom=freedom, count=len(logs))


def _latencies(cycles: Sequence[Sequence[Sequence[Window]]]) -> dict[str, Figure]:
    """Quantiles of TPOT and TTFT, geometric mean over windows."""
    windows = [window for cycle in cycles for passes in cycle for window in passes]
    found = {}
    for what in ("tpot", "ttft"):
        seen: list[Quantiles] = [q for w in windows if (q := getattr(w, what)) is not None]
        for quantile in QUANTILES:
            values = [getattr(each, quantile) for each in seen]
            if len(values) == len(windows) and all(value > 0 for value in values):
                found[f"{what}_{quantile}"] = _log_figure([math.log(value) for value in values])
    return found


def _length_alone(windows: Sequence[Window]) -> Figure | None:
    """From windows that only name an acceptance length (a recording): no counts, no spread."""
    lengths = [w.acceptance_length for w in windows if w.acceptance_length is not None]
    if not lengths or any(w.counters is not None for w in windows):
        return None
    return Figure(value=stats.mean(lengths), sd=stats.ASSUMED_NOISE, assumed=True)
