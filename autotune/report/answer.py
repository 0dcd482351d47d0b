"""The answer of a report in words."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.records import BASELINE, Interval
from autotune.report.data import Report, Row, best_row, span
from autotune.report.tables import factor
from autotune.wording import keeps_limits, load_text, over_text, setting_text


def headline(report: Report) -> str:
    """What to do, in one line."""
    r = report.recommendation
    if report.kind == "recording":
        return _recorded_headline(report)
    if r is None:
        return f"No recommendation yet: the study is {report.state}"
    if r.decision == "do_not_speculate":
        return "Do not speculate"
    if r.method == BASELINE:
        return "Inconclusive: no candidate could be confirmed"
    choice = setting_text(r)
    return f"Use {choice}" if r.decision == "speculate" else f"Inconclusive: {choice} leads"


def detail(report: Report) -> str:
    """The line below: how sure that is."""
    r = report.recommendation
    if report.kind == "recording":
        return "A table of measurements from elsewhere, as it was published; nothing was chosen."
    if r is None:
        if report.state == "running":
            return "It is being run; a later report will have more."
        return "The same spectune run command goes on with it."
    if r.decision == "do_not_speculate":
        within = " within the latency limits" if r.limits else ""
        best = f" The best that was measured: {sure(r.speedup)}." if r.speedup else ""
        return f"Nothing measured is faster than no speculation{within}.{best}"
    if r.speedup is None:
        return f"Stopped because {r.stopped_because}."
    within = " within the latency limits" if keeps_limits(r) else ""
    return f"{sure(r.speedup)} against no speculation{within}{over_text(r)}."


def _recorded_headline(report: Report) -> str:
    best = [row for load in report.loads if (row := best_row(report, load)) is not None]
    if not best:
        return "Nothing in this table is faster than no speculation"
    if len(report.loads) > 1:
        return f"Fastest in the table: {_each_load(best)}"
    return f"Fastest in the table: {best[0].method} N={best[0].n}, {factor(best[0].speedup)}"


def _each_load(best: Sequence[Row]) -> str:
    parts = [f"{r.method} N={r.n}, {factor(r.speedup)} at load {load_text(r.load)}" for r in best]
    return "; ".join(parts)


def sure(interval: Interval) -> str:
    """ "2.34x [2.22, 2.48] at 95 % confidence"."""
    return f"{factor(span(interval))} at {interval.confidence:.0%} confidence"
