"""The order of a report: its sections, each with figures and tables or one line of why not."""

from __future__ import annotations

from collections.abc import Callable

from autotune.records import Recommendation
from autotune.report import by_n, over_all, tables
from autotune.report.data import Load, Report, Row
from autotune.report.figures import Figure, Marks
from autotune.report.run_sections import predictions, run, trial
from autotune.report.section import Built, Keep, Section, at_load
from autotune.report.tables import Table
from autotune.wording import candidate_text, load_text

MOST_PANELS = 12  # of one kind; more are looked at in a table


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
        made += [trial(report), run(report, marks, keep), predictions(report, marks, keep)]
    made += [_environment(report), _left_out(report)]
    return Built(sections=tuple(made), figures=drawn)


def _speedup(report: Report, marks: Marks, keep: Keep) -> Section:
    found: tuple[tuple[str, str], ...] = ()
    for i, load in enumerate(report.loads):
        found += keep(f"speedup{i}", at_load(load), by_n.speedup(report, marks, load))
    table = tables.measured_table(report)
    basis = "on the same prompts" if report.kind == "study" else "by the table’s own baseline"
    legend: tuple[str, ...] = ()
    if report.kind == "study" and found:
        legend = (
            "Filled points were confirmed on a static start, hollow ones probed; dotted lines and"
            " bands: the cost model after the search.",
        )
    return Section(
        id="speedup",
        title="Speed-up against N",
        note=f"Output tokens per second over those without speculation, {basis}.",
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
    elsewhere = any(r.load != load for r in report.rows if r.measured and r.acceptance)
    return Section(
        id="acceptance",
        title="Acceptance",
        note="First: tokens a round, the target's own included. Then the share of rounds in which"
        " a draft position is accepted: one line for each N, which ends at position N"
        f" ({at_load(load)})."
        + (" Other loads: in the table." if elsewhere else ""),
        figures=found,
        tables=(table,) if table else (),
        empty=None if found else "Acceptance was not measured.",
    )  # fmt: skip


def _time(report: Report, marks: Marks, keep: Keep) -> Section:
    timed = [row for row in report.rows if row.measured and row.verify_seconds is not None]
    every = list(dict.fromkeys((row.load, row.method) for row in timed))
    typical = _typical(report, lambda row: row.verify_seconds is not None)
    panels = every
    if len(every) > MOST_PANELS:
        panels = [(load, method) for load, method in every if load == typical]
    found: tuple[tuple[str, str], ...] = ()
    order = {load: i for i, load in enumerate(report.loads)}
    for i, (load, method) in enumerate(sorted(panels, key=lambda each: order[each[0]])):
        caption = f"{method}, {at_load(load)}"
        found += keep(f"time{i}", caption, by_n.round_time(report, load, method))
    without_rest = not any(row.rest_seconds is not None for row in timed)
    rest = " What is neither drafting nor verifying was not measured." if without_rest else ""
    others = " Other loads: in the first table." if len(panels) < len(every) else ""
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
    empty = "A baseline was not measured at two or more loads that are stated."
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
            candidate_text(p.method, p.num_speculative_tokens),
            load_text(p.concurrency),
            f"{p.output_tokens_per_second:,.1f}",
            f"{p.tpot_p50_seconds * 1e3:.2f}",
        )
        for p in r.pareto
    )
    heading = ("On the front", "Load", "tok/s", "TPOT p50 ms")
    return Table(heading=heading, rows=rows, text=1)


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
