"""Recordings: tables of measurements that are played back in place of an engine.

The file format is `spectune.recording/1`. Published sweeps come in it (studies/published), and a
study can be written in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from autotune.documents import complaints, read_document
from autotune.errors import ConfigurationError
from autotune.records import BASELINE, Record, digest

SCHEMA = "spectune.recording/1"

MAX_LENGTH = 1024  # drafted tokens per round; beyond every drafter, and a table stays a table
# tokens per second or seconds: what a machine can do, with many decades to spare
Positive = Annotated[float, Field(ge=1e-9, le=1e12, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Load = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]

ROUNDING = 0.01  # acceptance lengths are printed with two digits


class RecordedRow(Record):
    """One measurement. Types are strict: "12" and true are no numbers."""

    model_config = ConfigDict(strict=True)


class RecordedBaseline(RecordedRow):
    """The engine without speculation at one load. `concurrency` None: the source does not say."""

    concurrency: Load | None = None
    output_tokens_per_second: Positive


class RecordedPoint(RecordedRow):
    """One method at one N and one load.

    `per_position_acceptance` is unconditional (accepted at position i / drafts);
    `mean_acceptance_length` includes the bonus token.
    """

    method: Text
    num_speculative_tokens: int = Field(ge=1, le=MAX_LENGTH)
    concurrency: Load | None = None
    output_tokens_per_second: Positive
    per_position_acceptance: tuple[Rate, ...] | None = None
    mean_acceptance_length: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    draft_seconds_per_step: Positive | None = None
    verify_seconds_per_step: Positive | None = None

    @model_validator(mode="after")
    def _possible(self) -> RecordedPoint:
        n, rates = self.num_speculative_tokens, self.per_position_acceptance
        if self.method == BASELINE:
            raise ValueError(f"method {BASELINE!r} belongs under `baseline`")
        if rates is not None and not 1 <= len(rates) <= n:
            raise ValueError(f"{len(rates)} acceptance rates for {n} drafted tokens")
        if (self.mean_acceptance_length or 1) > n + 1 + ROUNDING:
            raise ValueError(
                f"acceptance length {self.mean_acceptance_length} is above N + 1 = {n + 1}"
            )
        return self


class Recording(Record):
    """A whole table, in the order of the file.

    Rows with the same (method, N, concurrency) and different results are repeated measurements;
    they are kept, and whoever reads the table takes their mean. An exact copy of a row is a
    mistake and refused: it would count one measurement twice.
    """

    schema_: Literal["spectune.recording/1"] = Field(default="spectune.recording/1", alias="schema")
    model_config = ConfigDict(strict=True, populate_by_name=True)
    model: Text
    workload: Text
    hardware: str | None = None
    engine_version: str | None = None
    baseline: tuple[RecordedBaseline, ...]
    points: tuple[RecordedPoint, ...]

    @model_validator(mode="after")
    def _comparable(self) -> Recording:
        if not self.baseline:
            raise ValueError("no baseline: nothing can be compared without one")
        loads = {row.concurrency for row in self.baseline}
        loads |= {point.concurrency for point in self.points}
        if None in loads and len(loads) > 1:
            raise ValueError("concurrency is null in some rows and a number in others")
        if copy := _copied(self.baseline) or _copied(self.points):
            raise ValueError(f"the same row twice: {copy.model_dump_json(exclude_none=True)}")
        return self

    @property
    def sha256(self) -> str:
        """Identity of the content; layout and key order of the file do not matter."""
        return digest(self.model_dump(mode="json", by_alias=True, exclude_none=True))

    @property
    def concurrencies(self) -> tuple[int | None, ...]:
        """The loads that have a baseline, in the order of the file."""
        return tuple(dict.fromkeys(row.concurrency for row in self.baseline))

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(point.method for point in self.points))


def _copied(rows: Iterable[RecordedRow]) -> RecordedRow | None:
    seen: set[RecordedRow] = set()
    for row in rows:
        if row in seen:
            return row
        seen.add(row)
    return None


def load_recording(path: str | Path) -> Recording:
    """Read and check one recording.

    Raises ConfigurationError, naming the file and the place in it, when the file is missing or is
    not JSON, has another schema version, lacks a baseline, holds a number that cannot be
    (zero, negative, NaN, a rate above 1), an unknown key or the same row twice.
    """
    text, document = read_document(path, "recording", SCHEMA)
    try:
        return Recording.model_validate_json(text)
    except ValidationError as error:
        raise ConfigurationError(f"recording {path}: {_complaints(error, document)}") from error


def save_recording(recording: Recording, path: str | Path) -> None:
    """Write a recording. Columns that were not measured are left out; `concurrency` stays."""
    document = recording.model_dump(mode="json", by_alias=True, exclude_none=True)
    for kind in ("baseline", "points"):
        rows = [row.model_dump(mode="json") for row in getattr(recording, kind)]
        document[kind] = [
            {key: value for key, value in row.items() if value is not None or key == "concurrency"}
            for row in rows
        ]
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


def _complaints(error: ValidationError, document: dict[str, Any]) -> str:
    """What is wrong, each with its place and the row it is in."""
    return complaints(error, lambda place: _row(document, place))


def _row(document: dict[str, Any], place: tuple[int | str, ...]) -> str:
    """` (mtp N=3)` for a place inside `points`, else nothing."""
    if len(place) < 2 or place[0] != "points":
        return ""
    row = document["points"][place[1]]
    if not isinstance(row, dict) or "method" not in row:
        return ""
    return f" ({row['method']} N={row.get('num_speculative_tokens')})"
