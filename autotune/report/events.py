"""When what was run: engine starts and windows of a study on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from autotune.records import BASELINE, SCHEDULED
from autotune.report.data import Event
from autotune.storage.stored import EngineStart, StoredWindow

Axis = Literal["clock", "cost", "order"]
START = "start"  # the kind of an engine start; windows have the role of their block
PAUSE_SECONDS = 300.0  # idle for longer: the run was interrupted and resumed
SHOWN_PAUSE_SECONDS = 30.0  # what is left of such a pause on the axis


def timeline(
    windows: Sequence[StoredWindow], starts: Sequence[EngineStart]
) -> tuple[tuple[Event, ...], Axis, int]:
    """Events in order, what their axis counts, and how many pauses it leaves out.

    By the clock where every window says when it began; else, in order of storing, by what each
    cost; else (playing a recording takes no time) one unit per event.
    """
    timed = all(s.window.duration_seconds for s in windows)
    if not windows or not (timed and all(s.window.started_at for s in windows)):
        axis: Axis = "cost" if timed and windows else "order"
        return _in_order(windows, starts, axis), axis, 0
    events = [*map(_start, starts), *(_window(s, s.window.started_at or s.at) for s in windows)]
    moved, pauses = _without_pauses(sorted(events, key=lambda event: event.begin))
    return moved, "clock", pauses


def _start(start: EngineStart) -> Event:
    """A start is noted when it is over."""
    method, n = _method_and_n(start.arm)
    return Event(
        arm=start.arm,
        method=method,
        n=n,
        kind=START,
        load=None,
        begin=start.at - start.seconds,
        seconds=start.seconds,
        error=start.error,
    )


def _window(stored: StoredWindow, begin: float) -> Event:
    window = stored.window
    return Event(
        arm=stored.arm,
        method=window.method,
        n=stored.n,
        kind=stored.block.partition(":")[0],
        load=window.concurrency,
        begin=begin,
        seconds=window.duration_seconds or 0.0,
        rate=window.output_tokens_per_second,
    )


def _method_and_n(arm: str) -> tuple[str, int]:
    method, n, _, _ = arm.rsplit(":", 3)
    return method, int(n)


def _in_order(
    windows: Sequence[StoredWindow], starts: Sequence[EngineStart], axis: Axis
) -> tuple[Event, ...]:
    """One after the other, as they were stored."""
    found = [(start.at, 0, _start(start)) for start in starts]
    found += [(stored.at, 1, _window(stored, stored.at)) for stored in windows]
    begin, placed = 0.0, []
    for _, _, event in sorted(found, key=lambda each: each[:2]):
        seconds = event.seconds if axis == "cost" else 1.0
        placed.append(event.model_copy(update={"begin": begin, "seconds": seconds}))
        begin += seconds
    return tuple(placed)


def _without_pauses(events: Sequence[Event]) -> tuple[tuple[Event, ...], int]:
    """Seconds since the first event, long idle times cut short."""
    moved: list[Event] = []
    until = shift = events[0].begin
    pauses = 0
    for event in events:
        idle = event.begin - until
        if idle > PAUSE_SECONDS:
            shift += idle - SHOWN_PAUSE_SECONDS
            pauses += 1
        until = max(until, event.begin + event.seconds)
        moved.append(event.model_copy(update={"begin": event.begin - shift}))
    return tuple(moved), pauses


def arm_label(arm: str) -> str:
    """ "dflash N=7", "mtp, live N", "no speculation": an Arm.key in words."""
    method, n, kind, generation = arm.rsplit(":", 3)
    fresh = ", fresh" if generation != "0" else ""
    if method == BASELINE:
        return f"no speculation{fresh}"
    if kind == "live":
        return f"{method}, live N{fresh}"
    if kind.startswith(SCHEDULED):
        return f"{method}, N by batch size"
    return f"{method} N={n}{fresh}"
