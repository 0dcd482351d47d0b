"""A recording as a Report: its own throughputs over its own baseline, without intervals."""

from __future__ import annotations

import statistics
from collections import defaultdict

from autotune.recording import RecordedPoint, Recording
from autotune.records import BaselineResult
from autotune.report.data import RECORDED, Load, Report, Row, Span


def of_recording(recording: Recording, name: str) -> Report:
    """A table of measurements as it stands: rows measured several times by their mean."""
    groups: dict[tuple[str, int, Load], list[RecordedPoint]] = defaultdict(list)
    for point in recording.points:
        groups[point.method, point.num_speculative_tokens, point.concurrency].append(point)
    baseline = tuple(
        BaselineResult(concurrency=load, output_tokens_per_second=_baseline(recording, load))
        for load in recording.concurrencies
    )
    rates = {row.concurrency: row.output_tokens_per_second for row in baseline}
    return Report(
        kind="recording",
        name=name,
        state="recording",
        model=recording.model,
        workload=recording.workload,
        engine=recording.engine_version,
        created=None,
        recommendation=None,
        rows=tuple(_recorded(*key, points, rates) for key, points in groups.items()),
        baseline=baseline,
        loads=tuple(dict.fromkeys([*rates, *(load for _, _, load in groups)])),
        methods=recording.methods,
        facts=(("Hardware", recording.hardware), ("Engine", recording.engine_version)),
        warnings=_recording_warnings(recording),
    )


def _baseline(recording: Recording, load: Load) -> float:
    rows = [row for row in recording.baseline if row.concurrency == load]
    return statistics.fmean(row.output_tokens_per_second for row in rows)


def _recorded(
    method: str, n: int, load: Load, points: list[RecordedPoint], rates: dict[Load, float]
) -> Row:
    rate = statistics.fmean(point.output_tokens_per_second for point in points)
    lengths = [p.mean_acceptance_length for p in points if p.mean_acceptance_length is not None]
    accepted = [p.per_position_acceptance for p in points if p.per_position_acceptance]
    drafts = [p.draft_seconds_per_step for p in points if p.draft_seconds_per_step is not None]
    verifies = [p.verify_seconds_per_step for p in points if p.verify_seconds_per_step is not None]
    base = rates.get(load)
    return Row(
        method=method,
        n=n,
        load=load,
        status=RECORDED,
        rate=rate,
        baseline_rate=base,
        speedup=None if base is None else Span(value=rate / base),
        acceptance_length=Span(value=statistics.fmean(lengths)) if lengths else None,
        acceptance=tuple(
            Span(value=statistics.fmean(column)) for column in zip(*accepted, strict=False)
        ),
        draft_seconds=statistics.fmean(drafts) if drafts else None,
        verify_seconds=statistics.fmean(verifies) if verifies else None,
    )


def _recording_warnings(recording: Recording) -> tuple[str, ...]:
    warnings = ["a recording carries no spread of its own: differences within its noise are ties"]
    if None in recording.concurrencies:
        warnings.append("the source does not state the load (concurrency)")
    counted = len(recording.points)
    distinct = len({(p.method, p.num_speculative_tokens, p.concurrency) for p in recording.points})
    if counted > distinct:
        warnings.append("rows that were measured several times are shown by their mean")
    missing = {p.concurrency for p in recording.points} - set(recording.concurrencies)
    if missing:
        loads = ", ".join(str(load) for load in sorted(missing, key=lambda c: c or 0))
        warnings.append(f"no baseline at concurrency {loads}: no speed-up can be given there")
    return tuple(warnings)
