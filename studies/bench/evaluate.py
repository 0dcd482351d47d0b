"""How well `Knowledge.predict` knows what it has not seen: windows held out from the fit.

The fit sees a few N at a few loads, as a search does; every other (N, load) is predicted and
compared with what was measured there. No engine is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from autotune.knowledge import Knowledge
from autotune.pooling import pool_counters
from autotune.records import BASELINE, Plan, SpecCounters, Window

Z95 = 1.959964  # of the normal distribution
Load = int | None


class Split(NamedTuple):
    """What the fit may see. The baseline is seen at the same loads, or at all of them."""

    lengths: tuple[int, ...]
    loads: tuple[int, ...]
    baseline_everywhere: bool = False

    def sees(self, window: Window) -> bool:
        known_load = window.concurrency in self.loads
        if window.method == BASELINE:
            return known_load or self.baseline_everywhere
        return known_load and window.num_speculative_tokens in self.lengths

    def kind(self, n: int, load: Load) -> str:
        """What about a prediction is new."""
        new = ["N"] * (n not in self.lengths) + ["load"] * (load not in self.loads)
        return " and ".join(new)


class Outcome(NamedTuple):
    """One prediction beside its measurement; ln of the speed-up over no speculation."""

    target: str
    method: str
    n: int
    load: Load
    kind: str
    predicted: float
    predicted_sd: float
    measured: float
    measured_sd: float

    @property
    def error(self) -> float:
        """Relative error of the speed-up, which is that of the throughput."""
        return math.expm1(self.predicted - self.measured)

    @property
    def covered(self) -> bool:
        sd = math.hypot(self.predicted_sd, self.measured_sd)
        return abs(self.predicted - self.measured) <= Z95 * sd


def evaluate(target: str, plan: Plan, windows: Sequence[Window], split: Split) -> list[Outcome]:
    """Every measured (method, N, load) that the fit did not see."""
    everything, fitted = Knowledge(plan), Knowledge(plan)
    for window in windows:
        everything.add(window)
        if split.sees(window):
            fitted.add(window)
    outcomes = []
    for space in plan.spaces:
        for n in space.lengths:
            for load in plan.concurrencies:
                found = everything.measurement(space.method, n, load)
                kind = split.kind(n, load)
                if found is None or not kind:
                    continue
                prediction = fitted.predict(space.method, n, load)
                outcomes.append(
                    Outcome(
                        target=target,
                        method=space.method,
                        n=n,
                        load=load,
                        kind=kind,
                        predicted=prediction.log_speedup,
                        predicted_sd=prediction.log_speedup_sd,
                        measured=found.log_speedup,
                        measured_sd=measured_sd(everything, space.method, n, load, split),
                    )
                )
    return outcomes


def measured_sd(known: Knowledge, method: str, n: int, load: Load, split: Split) -> float:
    """Noise of a measured ln(speed-up) that the prediction does not share.

    At a load whose baseline the fit has seen, both sides are divided by the same baseline.
    """
    parts = 1 / len(known.windows(method, n, load))
    if not (load in split.loads or split.baseline_everywhere):
        parts += 1 / len(known.windows(BASELINE, 0, load))
    return known.noise * math.sqrt(parts)


class Summary(NamedTuple):
    """Of several predictions: how far off in the middle, and how often inside the interval."""

    count: int
    median_error: float
    worst_error: float
    bias: float  # median signed error
    coverage: float
    median_half_width: float  # of the 95 % interval, noise of the measurement included


def summarize(outcomes: Sequence[Outcome]) -> Summary:
    sds = [math.hypot(o.predicted_sd, o.measured_sd) for o in outcomes]
    return Summary(
        count=len(outcomes),
        median_error=median(abs(o.error) for o in outcomes),
        worst_error=max(abs(o.error) for o in outcomes),
        bias=median(o.error for o in outcomes),
        coverage=sum(o.covered for o in outcomes) / len(outcomes),
        median_half_width=Z95 * median(sds),
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: each method of each target, each kind of novelty, and everything."""
    lines = [
        "| target | method | new | predictions | median error | worst | bias "
        "| half width of 95 % interval | covered |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for target, method in dict.fromkeys((o.target, o.method) for o in outcomes):
        own = [o for o in outcomes if (o.target, o.method) == (target, method)]
        for kind, part in _groups(own, lambda o: o.kind):
            lines.append(_line(target, method, kind, part))
    for kind, part in _groups(outcomes, lambda o: o.kind):
        lines.append(_line("all", "all", kind, part))
    lines.append(_line("all", "all", "any", outcomes))
    return "\n".join(lines)


def _groups(
    outcomes: Sequence[Outcome], key: Callable[[Outcome], str]
) -> Iterable[tuple[str, list[Outcome]]]:
    for value in sorted({key(o) for o in outcomes}):
        yield value, [o for o in outcomes if key(o) == value]


def _line(target: str, method: str, kind: str, outcomes: Sequence[Outcome]) -> str:
    s = summarize(outcomes)
    return (
        f"| {target} | {method} | {kind} | {s.count} | {s.median_error:.1%} | {s.worst_error:.1%} "
        f"| {s.bias:+.1%} | {s.median_half_width:.1%} | {s.coverage:.0%} |"
    )


def details(outcomes: Sequence[Outcome]) -> str:
    """Markdown: every prediction."""
    lines = ["| target | method | N | load | new | predicted | sd | measured | sd | error |",
             "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for o in outcomes:
        speedups = (
            f"{math.exp(o.predicted):.3f} | {o.predicted_sd:.1%} | {math.exp(o.measured):.3f}"
        )
        lines.append(
            f"| {o.target} | {o.method} | {o.n} | {o.load} | {o.kind} "
            f"| {speedups} | {o.measured_sd:.1%} | {o.error:+.1%} |"
        )
    return "\n".join(lines)


def acceptance_table(measured: Mapping[str, tuple[Plan, Sequence[Window]]]) -> str:
    """Markdown: rates per position at the largest N, and the acceptance length of every N."""
    lines = ["| target | method | per position | tokens a round by N |", "|---|---|---|---|"]
    for target, (plan, windows) in measured.items():
        for space in plan.spaces:
            pooled = {n: _counters(windows, space.method, n) for n in space.lengths}
            counted = {n: counters for n, counters in pooled.items() if counters is not None}
            if not counted:
                continue
            top = max(counted)
            rates = " ".join(f"{rate:.2f}" for rate in counted[top].per_position_rates or ())
            lengths = ", ".join(f"{n}: {c.acceptance_length:.2f}" for n, c in counted.items())
            lines.append(f"| {target} | {space.method} | {rates} | {lengths} |")
    return "\n".join(lines)


def _counters(windows: Sequence[Window], method: str, n: int) -> SpecCounters | None:
    found = [
        window.counters
        for window in windows
        if (window.method, window.num_speculative_tokens) == (method, n)
        and window.counters is not None
        and window.counters.num_drafts
    ]
    return pool_counters(found) if found else None
