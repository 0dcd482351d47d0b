"""The order of a report: its sections, each with figures and tables or one line of why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from autotune.records import Recommendation, Record
from autotune.report import by_n, over_all, tables
from autotune.report.data import Load, Report, Row
from autotune.report.figures import Figure, Marks
from autotune.report.tables import Table
from autotune.report.timeline import AXES, timeline
from autotune.wording import duration, load_text, tiers_text

MOST_PANELS = 12  # of one kind; more are looked at in a table


class Section(Record):
    """`empty` says why there is nothing to see; figures are keys with their captions."""

    id: str
    title: str
    note: str | None = None
    figures: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    empty: str | None = None
    legend: tuple[str, ...] = ()  # what the marks mean, beside the methods


class Built(Record):
    """All sections with the figures that they name."""

    sections: tuple[Section, ...]
    figures: Mapping[str, Any]


def build(report: Report) -> Built:
    """Every section of the report, in order."""
    drawn: dict[str, Figure] = {}
    marks = Marks(report.methods)

    def keep(key: str, caption: str, figure: Figure | None) -> tuple[tuple[str, str], ...]:
        if figure is None:
            return ()
        drawn[key] = figure
        return ((key, caption),)

    made = [
        _speedup(report, marks, keep),
        _acceptance(report, marks, keep),
        _time(report, marks, keep),
        _loads(report, marks, keep),
        _pareto(report, marks, keep),
    ]
    if report.kind == "study":
        made += [_trial(report), _run(report, marks, keep), _predictions(report, marks, keep)]
    made += [_environment(report), _left_out(report)]
    return Built(sections=tuple(made), figures=drawn)


Keep = Callable[[str, str, Figure | None], tuple[tuple[str, str], ...]]


def at_load(load: Load) -> str:
    return "load not stated" if load is None else f"concurrency {load}"


def _speedup(report: Report, marks: Marks, keep: Keep) -> Section:
    found: tuple[tuple[str, str], ...] = ()
    for i, load in enumerate(report.loads):
        found += keep(f"speedup{i}", at_load(load), by_n.speedup(report, marks, load))
    table = tables.measured_table(report)
    legend: tuple[str, ...] = ()
    if report.kind == "study" and found:
        legend = (
            "Filled points were confirmed on a static start, hollow ones probed; dotted lines and"
            " bands: the cost model after the search.",
        )
    return Section(
        id="speedup",
        title="Speed-up against N",
        note="Output tokens per second over those without speculation, on the same prompts.",
        figures=found,
        tables=(table,) if table else (),
        empty=None if found else "No candidate has been measured against a baseline.",
        legend=legend,
    )


def _acceptance(report: Report, marks: Marks, keep: Keep) -> Section:
    load = _typical(report, lambda row: bool(row.acceptance or row.acceptance_length))
    found = keep("lengths", "tokens a round", by_n.lengths(report, marks, load))
    for i, method in enumerate(report.methods):
        figure = by_n.acceptance(report, marks, load, method)
        found += keep(f"acceptance{i}", method, figure)
    table = tables.acceptance_table(report)
    return Section(
        id="acceptance",
        title="Acceptance",
        note="First: tokens a round, the target's own included. Then the share of rounds in which"
        " a draft position is accepted: one line for each N, which ends at position N"
        f" ({at_load(load)})."
        + (" Other loads: in the table." if len(report.loads) > 1 else ""),
        figures=found,
        tables=(table,) if table else (),
        empty=None if found else "Acceptance was not measured.",
    )  # fmt: skip


def _time(report: Report, marks: Marks, keep: Keep) -> Section:
    timed = [row for row in report.rows if row.measured and row.verify_seconds is not None]
    panels = list(dict.fromkeys((row.load, row.method) for row in timed))
    typical = _typical(report, lambda row: row.verify_seconds is not None)
    if len(panels) > MOST_PANELS:
        panels = [(load, method) for load, method in panels if load == typical]
    found: tuple[tuple[str, str], ...] = ()
    order = {load: i for i, load in enumerate(report.loads)}
    for i, (load, method) in enumerate(sorted(panels, key=lambda each: order[each[0]])):
        caption = f"{method}, {at_load(load)}"
        found += keep(f"time{i}", caption, by_n.round_time(report, load, method))
    without_rest = not any(row.rest_seconds is not None for row in timed)
    rest = " What is neither drafting nor verifying was not measured." if without_rest else ""
    others = " Other loads: in the first table." if len(panels) < len(report.loads) else ""
    return Section(
        id="time",
        title="Where a round’s time goes",
        note=f"Milliseconds a step; “none” is a step without speculation.{rest}{others}"
        if found
        else None,
        figures=found,
        empty=None if found else "Drafting and verification were not timed.",
        legend=("parts",) if found else (),
    )


def _typical(report: Report, has: Callable[[Row], bool]) -> Load:
    """The load at which most candidates have a figure; the first of several."""
    count = dict.fromkeys(report.loads, 0)
    for row in report.rows:
        if row.measured and row.load in count:
            count[row.load] += has(row)
    return max(report.loads, key=lambda load: count[load])


def _loads(report: Report, marks: Marks, keep: Keep) -> Section:
    found = keep("loads", "each method’s best N at each load", over_all.over_loads(report, marks))
    empty = "No load has both a baseline and a measured candidate."
    if len(report.loads) == 1:
        empty = f"Measured at one load only ({at_load(report.loads[0])})."
    return Section(
        id="loads",
        title="Throughput against load",
        note="Of the whole engine, both axes logarithmic." if found else None,
        figures=found,
        empty=None if found else empty,
        legend=("baseline",) if found else (),
    )


def _pareto(report: Report, marks: Marks, keep: Keep) -> Section:
    r = report.recommendation
    figure = over_all.pareto(report, marks, r)
    found = keep("pareto", "each point is a candidate at a load", figure)
    front = " Filled points are on the front: nothing measured is better in both." if r else ""
    note = f"Right and below is better.{front}"
    return Section(
        id="pareto",
        title="Throughput and latency",
        note=note if found else None,
        figures=found,
        tables=(_front(r),) if found and r and r.pareto else (),
        empty=None if found else "Latency was not measured.",
        legend=("baseline",) if found else (),
    )  # fmt: skip


def _front(r: Recommendation) -> Table:
    rows = tuple(
        (
            "no speculation" if p.method == "none" else f"{p.method} N={p.num_speculative_tokens}",
            load_text(p.concurrency),
            f"{p.output_tokens_per_second:,.1f}",
            f"{p.tpot_p50_seconds * 1e3:.2f}",
        )
        for p in r.pareto
    )
    heading = ("On the front", "Load", "tok/s", "TPOT p50 ms")
    return Table(heading=heading, rows=rows, text=1)


def _trial(report: Report) -> Section:
    r = report.recommendation
    trial = r.schedule_trial if r else None
    note, empty, table = None, "Not tried: the loads do not want different N.", None
    if r is None:
        empty = "Not tried yet."
    elif len(report.loads) == 1:
        empty = "Not tried: there is one load only."
    if r is not None and trial is not None:
        table = tables.trial_table(r)
        note = (
            f"{trial.method}, batch size: N = {tiers_text(trial.tiers)}. "
            f"{trial.outcome.replace('_', ' ').capitalize()}: {trial.reason}."
        )
    return Section(
        id="schedule",
        title="N by batch size",
        note=note,
        tables=(table,) if table else (),
        empty=None if note else empty,
    )


def _run(report: Report, marks: Marks, keep: Keep) -> Section:
    figure = timeline(report, marks)
    found = keep("timeline", f"engine starts and blocks, {AXES[report.axis]}", figure)
    table = tables.start_table(report)
    return Section(
        id="run",
        title="What was measured when, and why it stopped",
        note=" ".join(story(report)),
        figures=found,
        tables=(table,) if table else (),
        empty=None if found else "Nothing has been run yet.",
        legend=("blocks",) if found else (),
    )


def story(report: Report) -> Iterable[str]:
    """What it took, and why it stopped."""
    r = report.recommendation
    windows = sum(event.kind != "start" for event in report.events)
    spent = "" if report.seconds is None else f", {duration(report.seconds)}"
    yield f"{report.starts} engine starts, {windows} measured blocks{spent}."
    if r is not None:
        yield f"Stopped because {r.stopped_because}."
        if not r.exhausted:
            yield "More time or more engine starts could still change the answer."
    else:
        yield f"Not finished: {report.state}."
    if report.pauses:
        pauses = "1 pause" if report.pauses == 1 else f"{report.pauses} pauses"
        yield f"Left out of the figure: {pauses} between runs."


def _predictions(report: Report, marks: Marks, keep: Keep) -> Section:
    figure = over_all.predictions(report, marks)
    found = keep("predictions", "on the diagonal: as predicted", figure)
    r = report.recommendation
    quality = r.predictions if r else None
    note = None
    if quality is not None and quality.median_error is not None:
        note = (
            f"{quality.count} speed-ups were predicted before they were measured: median error"
            f" {quality.median_error:.1%}, {quality.covered} of them within the"
            f" {quality.confidence:.0%} interval of the prediction."
        )
    table = tables.predicted_table(report)
    if table is not None:
        table = table.model_copy(update={"caption": "Never run, only predicted"})
    empty = "Not kept with a study that is not finished." if r is None else "Nothing was predicted."
    return Section(
        id="predictions",
        title="Predicted and measured",
        note=note,
        figures=found,
        tables=(table,) if table else (),
        empty=None if found else empty,
    )


def _environment(report: Report) -> Section:
    return Section(
        id="environment", title="Environment", tables=(tables.facts_table(report),)
    )  # fmt: skip


def _left_out(report: Report) -> Section:
    table = tables.left_out_table(report)
    nothing = (
        "A recording says nothing of candidates that failed."
        if report.kind == "recording"
        else "No candidate failed, none was skipped."
    )
    return Section(
        id="left-out",
        title="Failed and skipped candidates",
        tables=(table,) if table else (),
        empty=None if table else nothing,
    )
