"""A report for a terminal: the answer, and the speed-ups as a plot of plain characters."""

from __future__ import annotations

import re
from collections.abc import Iterator

from autotune.records import Status
from autotune.report.answer import detail, headline
from autotune.report.data import Load, Report, Row
from autotune.report.run_sections import story
from autotune.report.section import at_load
from autotune.report.tables import factor

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
WIDTH = 48  # characters of the plot
LEGEND = "# confirmed or recorded, o probed, --- its interval, | no speculation"


def to_text(report: Report) -> str:
    """Plain ASCII but for names, whose control characters cannot steer a terminal."""
    return "\n".join(_CONTROL.sub("?", line) for line in _lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"{report.model} on {report.workload}: {headline(report)}"
    yield detail(report)
    drawn = [r for r in report.rows if r.measured and r.speedup]
    for load in report.loads:
        rows = [r for r in drawn if r.load == load]
        if rows:
            yield ""
            yield from _plot(rows, load)
    yield ""
    if drawn:
        yield LEGEND
    yield from (f"warning: {warning}" for warning in report.warnings)
    if report.kind == "study":
        yield " ".join(story(report))


def _plot(rows: list[Row], load: Load) -> Iterator[str]:
    """A line for each candidate, all on one scale that holds no speculation (1x)."""
    spans = [row.speedup for row in rows if row.speedup]
    ends = [end for s in spans for end in (s.value, s.low, s.high) if end is not None]
    low, high = min([1.0, *ends]), max([1.0, *ends])
    names = [f"{row.method} N={row.n}" for row in rows]
    wide = max(map(len, names))
    figures = [factor(span) for span in spans]
    room = max(map(len, figures))
    ruler = f"{low:.2f}x".ljust(WIDTH - 6) + f"{high:.2f}x".rjust(6)
    yield f"{('speed-up, ' + at_load(load)).ljust(wide + room + 3)} {ruler}"
    for row, name, figure in zip(rows, names, figures, strict=True):
        yield f"{name:<{wide}}  {figure:<{room}}  {_whisker(row, low, high)}".rstrip()


def _whisker(row: Row, low: float, high: float) -> str:
    def column(value: float) -> int:
        return round((value - low) / ((high - low) or 1.0) * (WIDTH - 1))

    line = [" "] * WIDTH
    line[column(1.0)] = "|"
    span = row.speedup
    if span is None:
        return ""
    if span.low is not None and span.high is not None:
        for at in range(column(span.low), column(span.high) + 1):
            line[at] = "-"
    line[column(span.value)] = "o" if row.status == Status.PROBED.value else "#"
    return "".join(line)
