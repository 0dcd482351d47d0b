"""What every section of a report is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autotune.records import Record
from autotune.report.data import Load
from autotune.report.figures import Figure
from autotune.report.tables import Table

Keep = Callable[[str, str, Figure | None], tuple[tuple[str, str], ...]]


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


def at_load(load: Load) -> str:
    return "load not stated" if load is None else f"concurrency {load}"
