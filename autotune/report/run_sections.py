"""The sections that only a study has: how it was run, what was predicted, N by batch size."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.records import Status
from autotune.report import over_all, tables
from autotune.report.data import Report
from autotune.report.figures import Marks
from autotune.report.section import Keep, Section
from autotune.report.timeline import AXES, timeline
from autotune.wording import counted, duration, tiers_text


def trial(report: Report) -> Section:
    r = report.recommendation
    tried = r.schedule_trial if r else None
    note, table = None, None
    if r is not None and tried is not None:
        table = tables.trial_table(r)
        note = (
            f"{tried.method}, batch size: N = {tiers_text(tried.tiers)}. "
            f"{tried.outcome.replace('_', ' ').capitalize()}: {tried.reason}."
        )
    return Section(
        id="schedule",
        title="N by batch size",
        note=note,
        tables=(table,) if table else (),
        empty=None if note else _why_no_trial(report),
    )


def _why_no_trial(report: Report) -> str:
    if report.recommendation is None:
        return "Not tried yet."
    if len(report.loads) == 1:
        return "Not tried: there is one load only."
    if not report.tries_schedule:
        return "Not tried: it was switched off (--no-schedule, or --fast)."
    if not any(row.status == Status.CONFIRMED.value for row in report.rows):
        return "Not tried: no candidate was confirmed."
    return "Not tried: the loads do not want different N."


def run(report: Report, marks: Marks, keep: Keep) -> Section:
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
    yield f"{counted(report.starts, 'engine start')}, {counted(windows, 'measured block')}{spent}."
    if r is not None:
        yield f"Stopped because {r.stopped_because}."
        if not r.exhausted:
            yield "More time or more engine starts could still change the answer."
    else:
        yield f"Not finished: {report.state}."
    if report.pauses:
        yield f"Left out of the figure: {counted(report.pauses, 'pause')} between runs."


def predictions(report: Report, marks: Marks, keep: Keep) -> Section:
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
