"""What a report says, whatever it was made from: a stored study or a recording.

Everything here is read from what was stored; nothing is measured and nothing is decided again.
None means "not measured"; a row of a recording has a value and no interval.
"""

from __future__ import annotations

from typing import Literal

from autotune.records import (
    BaselineResult,
    CandidateResult,
    Interval,
    Recommendation,
    Record,
    Status,
)
from autotune.storage.stored import Failure

Load = int | None
RECORDED = "recorded"  # the status of every row of a recording
MEASURED = (Status.CONFIRMED.value, Status.PROBED.value, RECORDED)


class Span(Record):
    """A figure; `low` and `high` None: the source gives no interval."""

    value: float
    low: float | None = None
    high: float | None = None


class Row(Record):
    """One candidate at one load. `n` None: the whole method. Times in seconds."""

    method: str
    n: int | None
    load: Load
    status: str
    rate: float | None = None  # output tokens per second
    baseline_rate: float | None = None  # on the same prompts
    speedup: Span | None = None  # measured
    predicted: Span | None = None  # before it was measured; for what was never run, at the end
    acceptance_length: Span | None = None
    acceptance: tuple[Span, ...] = ()  # by position, unconditional
    draft_seconds: float | None = None
    verify_seconds: float | None = None
    rest_seconds: float | None = None  # of a round: step - draft - verify
    tpot_seconds: float | None = None
    ttft_seconds: float | None = None
    share_within_limits: float | None = None
    flags: tuple[str, ...] = ()
    why: str | None = None  # why it failed or was skipped

    @property
    def measured(self) -> bool:
        return self.status in MEASURED


class Curve(Record):
    """The cost model's speed-up at every N of a method at one load, all probes known to it."""

    method: str
    load: Load
    lengths: tuple[int, ...]
    spans: tuple[Span, ...]


class Event(Record):
    """An engine start or a measured window on the time axis. `begin` and `seconds`: see Report."""

    arm: str  # Arm.key
    method: str
    n: int
    kind: str  # "start", or the role of the block
    load: Load
    begin: float
    seconds: float
    rate: float | None = None
    error: str | None = None


class Report(Record):
    """All of it. `recommendation` None: the study is not finished, or there is none."""

    kind: Literal["study", "recording"]
    name: str  # the study's id, or the recording's file name without its ending
    state: str  # done, running, interrupted; or "recording"
    model: str
    workload: str
    engine: str | None
    created: str | None
    recommendation: Recommendation | None
    rows: tuple[Row, ...]
    baseline: tuple[BaselineResult, ...]
    loads: tuple[Load, ...]
    methods: tuple[str, ...]
    curves: tuple[Curve, ...] = ()
    baseline_steps: tuple[tuple[Load, float, float | None], ...] = ()  # load, verify, rest: seconds
    events: tuple[Event, ...] = ()
    # what `begin` counts: seconds by the clock, seconds that the engine says, or windows in order
    axis: Literal["clock", "cost", "order"] = "order"
    pauses: int = 0  # idle times of a resumed study that the axis leaves out
    starts: int = 0
    seconds: float | None = None  # spent on the study so far
    failures: tuple[Failure, ...] = ()
    facts: tuple[tuple[str, str | None], ...] = ()  # environment and settings; None: not known
    warnings: tuple[str, ...] = ()
    tries_schedule: bool = True  # N by batch size is tried where the loads want different N


def span(interval: Interval | None) -> Span | None:
    if interval is None:
        return None
    return Span(value=interval.value, low=interval.low, high=interval.high)


def row_of(c: CandidateResult, rest_seconds: float | None = None) -> Row:
    """A row of a recommendation. What was only predicted has no measured speed-up."""
    unmeasured = c.status == Status.PREDICTED
    rates = c.per_position_acceptance_rates or ()
    intervals = c.per_position_acceptance_intervals
    length = span(c.acceptance_length_interval)
    if length is None and c.acceptance_length is not None:
        length = Span(value=c.acceptance_length)
    return Row(
        method=c.method,
        n=c.num_speculative_tokens,
        load=c.concurrency,
        status=c.status.value,
        rate=c.output_tokens_per_second,
        baseline_rate=c.baseline_output_tokens_per_second,
        speedup=None if unmeasured else span(c.speedup),
        predicted=span(c.speedup if unmeasured else c.predicted_speedup),
        acceptance_length=length,
        acceptance=tuple(
            Span(value=rate, low=intervals[i].low, high=intervals[i].high)
            if intervals and i < len(intervals)
            else Span(value=rate)
            for i, rate in enumerate(rates)
        ),
        draft_seconds=c.draft_seconds_per_step,
        verify_seconds=c.verify_seconds_per_step,
        rest_seconds=rest_seconds,
        tpot_seconds=c.tpot_p50_seconds,
        ttft_seconds=c.ttft_p50_seconds,
        share_within_limits=c.share_within_limits,
        flags=c.flags,
        why=c.error or c.reason,
    )


def best_row(report: Report, load: Load) -> Row | None:
    """The fastest measured row at a load that beats no speculation; None: none does."""
    rows = [r for r in report.rows if r.load == load and r.measured and r.speedup is not None]
    best = max(rows, key=lambda r: r.speedup.value if r.speedup else 0.0, default=None)
    return best if best is not None and best.speedup and best.speedup.value > 1 else None
