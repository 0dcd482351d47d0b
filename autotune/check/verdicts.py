"""Two figures -> a verdict: an effect beyond a margin and a test, never one of them alone.

A margin is the smallest loss that must be found. A *regression* is a loss that the test tells
from nothing and that may be as large as the margin: the one-sided confidence bound of the change
reaches it. Where the bound does not, a loss of that size is ruled out and the word is *no
difference*, however significant a tiny change may be. Asking for an estimate beyond the margin
would miss a loss of exactly the margin half of the time; with the bound it is missed with
probability `BETA` at most, and with more repeats the rule approaches the plain margin.
Where the spread is only assumed, its bound means little: there the estimate itself must be beyond
the margin.

Tests are t tests of differences of logarithms (rates: of the values) with Welch's degrees of
freedom. Their p values are corrected by Holm's procedure with weights (S. Holm, Scand. J. Statist.
6, 1979): speed-up and acceptance length count 1, everything else 0.1, so that many positions and
quantiles do not cost the power of what the check is about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from autotune.check.records import CheckWord, Figure
from autotune.errors import ConfigurationError

ALPHA = 0.01  # false alarms of a whole check, at most; the same for false improvements
BETA = 0.05  # a loss of exactly the margin is called no difference so often at most
SHOWN = 0.95  # confidence of the intervals that are shown


class Metric(NamedTuple):
    """How a metric is compared. `better`: +1 where more is better, -1 where less is."""

    margin: float
    gates: bool = False
    better: int = 1
    relative: bool = True  # compared as a logarithm
    same_machine: bool = False  # means something on the same machine only

    @property
    def weight(self) -> float:
        return 1.0 if self.gates else 0.1


METRICS = {
    "speedup": Metric(0.05, gates=True),
    "acceptance_length": Metric(0.03, gates=True),
    # absolute figures move with the machine: 10 % between equal runs have been seen
    "throughput": Metric(0.25, same_machine=True),
    "tpot": Metric(0.25, better=-1, same_machine=True),
    "ttft": Metric(0.5, better=-1, same_machine=True),
    "position": Metric(0.05, relative=False),
    "greedy": Metric(0.3, relative=False),
    "recommendation": Metric(0.03),
}


def kind_of(metric: str) -> str:
    """The name under which METRICS knows it: "tpot_p50" and "position_p1" are many of a kind."""
    return metric if metric in METRICS else metric.partition("_p")[0]


def label(metric: str) -> str:
    """ "position_p1" -> "acceptance at position 1", "tpot_p50" -> "TPOT p50"."""
    name, number = kind_of(metric), metric.rpartition("_p")[2]
    if name == "position":
        return f"acceptance at position {number}"
    if name in ("tpot", "ttft"):
        return f"{name.upper()} p{number}"
    return {"greedy": "greedy equality"}.get(name, name.replace("_", " "))


def margin_text(metric: str, margin: float) -> str:
    """ "5%" or, for rates, "5 points"."""
    return f"{margin:.0%}" if METRICS[kind_of(metric)].relative else f"{100 * margin:g} points"


class Effect(NamedTuple):
    """A change, better is positive: of logarithms, or absolute. `freedom` None: normal."""

    change: float
    sd: float
    freedom: float | None
    assumed: bool


class Judged(NamedTuple):
    word: CheckWord
    p_worse: float
    p_better: float
    ruled_out: bool


def parse_margins(texts: Sequence[str]) -> dict[str, float]:
    """["speedup=5%", "position=0.1"] -> margins by metric, the defaults for all others."""
    margins = {name: metric.margin for name, metric in METRICS.items()}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        if name not in METRICS:
            known = ", ".join(METRICS)
            raise ConfigurationError(f"--margin {text!r}: no such metric", hint=f"known: {known}")
        margins[name] = parse_share(value, f"--margin {text!r}")
    return margins


def parse_share(text: str, option: str) -> float:
    """ "5%" or "0.05" -> 0.05; above 0 and below 1."""
    percent = text.endswith("%")
    try:
        value = float(text.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise ConfigurationError(f"{option} is no share above 0 and below 100 %", hint="write 5%")
    return value


def effect(reference: Figure, measured: Figure, metric: Metric) -> Effect:
    """The change from the reference; better is positive whatever the metric's direction."""
    if metric.relative:
        change = math.log(measured.value / reference.value)
    else:
        change = measured.value - reference.value
    freedom = welch([(f.sd, f.freedom) for f in (reference, measured)])
    sd = math.hypot(reference.sd, measured.sd)
    return Effect(metric.better * change, sd, freedom, reference.assumed or measured.assumed)


def welch(parts: Sequence[tuple[float, float | None]]) -> float | None:
    """Degrees of freedom of a sum of independent errors (sd, freedom): Welch and Satterthwaite."""
    total = math.fsum(sd**2 for sd, _ in parts)
    doubt = math.fsum(sd**4 / freedom for sd, freedom in parts if freedom is not None)
    return total**2 / doubt if doubt > 0 else None


def tail(e: Effect) -> float:
    """p value of "it did not get worse": the lower tail at the change."""
    from scipy.stats import norm, t

    if e.sd == 0:
        return 1.0 if e.change >= 0 else 0.0
    z = e.change / e.sd
    return float(norm.cdf(z) if e.freedom is None else t.cdf(z, e.freedom))


def reach(e: Effect, share: float) -> float:
    """Half width of a one-sided bound that is wrong with probability `share`."""
    from scipy.stats import norm, t

    quantile = norm.isf(share) if e.freedom is None else t.isf(share, e.freedom)
    return float(quantile) * e.sd


def as_change(value: float, metric: Metric) -> float:
    """The change as it is shown: 0.05 is 5 %, or 5 points of a rate."""
    return math.expm1(value) if metric.relative else value


def distance(margin: float, metric: Metric) -> float:
    """The margin on the scale of the change. Symmetric: an improvement is its inverse ratio."""
    return -math.log1p(-margin) if metric.relative else margin


def holm(p_values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Weighted Holm: p values that may each be held against the level of the whole family."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i] / weights[i])
    largest, adjusted = 0.0, [1.0] * len(p_values)
    for rank, i in enumerate(order):
        left = math.fsum(weights[j] for j in order[rank:])
        largest = max(largest, min(1.0, p_values[i] * (left / weights[i])))
        adjusted[i] = largest
    return adjusted


def judge(
    effects: Sequence[Effect],
    metrics: Sequence[Metric],
    margins: Sequence[float],
    *,
    alpha: float = ALPHA,
    beta: float = BETA,
) -> list[Judged]:
    """A word for each effect; `alpha` is for all of them together, `beta` for each."""
    weights = [metric.weight for metric in metrics]
    worse = holm([tail(e) for e in effects], weights)
    better = holm([tail(e._replace(change=-e.change)) for e in effects], weights)
    found = []
    for i, e in enumerate(effects):
        limit = distance(margins[i], metrics[i])
        slack = 0.0 if e.assumed else reach(e, beta)
        may_be_worse, may_be_better = e.change - slack <= -limit, e.change + slack >= limit
        word: CheckWord = "inconclusive" if may_be_worse or may_be_better else "no difference"
        if may_be_worse and worse[i] <= alpha:
            word = "regression"
        elif may_be_better and better[i] <= alpha:
            word = "improvement"
        found.append(Judged(word, worse[i], better[i], not may_be_worse))
    return found
