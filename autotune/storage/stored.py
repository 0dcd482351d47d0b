"""What a study database gives back: typed records, and how rows become records."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import ValidationError

from autotune.errors import StorageError
from autotune.records import Plan, Recommendation, Record, Window
from autotune.storage.pending import PendingRow

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

State = Literal["running", "done", "interrupted", "damaged"]
AnyRecord = TypeVar("AnyRecord", bound=Record)


class StoredWindow(Record):
    """One measured block and the key under which it is stored."""

    arm: str  # Arm.key
    n: int
    block: str  # Block.key
    repeat: int
    at: float  # Unix time of storing
    window: Window


class EngineStart(Record):
    """One start of an engine; `error` where it failed."""

    arm: str
    method: str
    live: bool
    seconds: float
    error: str | None
    at: float


class Failure(Record):
    """A candidate that must not be tried again; N None: the whole method."""

    method: str
    num_speculative_tokens: int | None
    error: str
    last_words: str
    at: float


class StudyInfo(Record):
    """One line of `spectune studies list`. The decision is None until there is one.

    A damaged study cannot be read: its model, workload and engine are empty. It can be removed.
    """

    id: str
    attempt: int
    model: str
    workload: str
    engine: str
    state: State
    created: str  # ISO 8601, UTC
    windows: int
    total_seconds: float
    decision: str | None = None
    method: str | None = None
    num_speculative_tokens: int | None = None
    speedup: float | None = None


class StoredStudy(Record):
    """Everything that is known of one study."""

    info: StudyInfo
    plan: Plan
    recommendation: Recommendation | None
    windows: tuple[StoredWindow, ...]
    engine_starts: tuple[EngineStart, ...]
    failures: tuple[Failure, ...]


# ----------------------------------------------------------------------- records as JSON


def to_json(record: Record) -> str:
    """A record as the text that is stored; `parse` reads it back.

    numpy scalars and arrays become plain numbers. Raises StorageError, naming the place, for a
    number that is not finite: JSON has none, and it would come back as "not measured".
    """
    computed = set(type(record).model_computed_fields)
    dumped = record.model_dump(
        by_alias=True, exclude=computed, warnings=False
    )  # numpy may be in it
    plain = to_plain(dumped, type(record).__name__)
    return json.dumps(plain, ensure_ascii=False, allow_nan=False)


def to_plain(value: Any, place: str) -> Any:
    """JSON-able form of a dumped value; `place` says in messages where it is."""
    if hasattr(value, "tolist"):  # numpy
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): to_plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item, f"{place}.{i}") for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise StorageError(f"{place} is {value}: only finite numbers are stored")
    return _encodable(value) if isinstance(value, str) else value


def to_text(text: str) -> str:
    """Text every database takes: an engine's last words may hold NULs and broken characters."""
    return _encodable(text).replace("\0", "\\x00")


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def parse(kind: type[AnyRecord], text: str) -> AnyRecord:
    """Read back what `to_json` wrote. Raises StorageError where another version wrote it."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise StorageError(
            f"a stored {kind.__name__} cannot be read: {place}: {problem['msg']}",
            hint="another version of spectune wrote it; use that version, or a fresh study",
        ) from error


# ------------------------------------------------------------------------ rows as records


def read_windows(
    connection: Connection, study: int, pending: Sequence[PendingRow] = ()
) -> list[StoredWindow]:
    """A study's windows in order of measurement, those still in the side file last."""
    from autotune.storage.tables import window

    keys = set()
    found = []
    for row in _rows(connection, window, study, pending):
        key = (row["arm"], row["n"], row["block"], row["repeat"])
        if key not in keys:  # a process may die after writing, before emptying the side file
            keys.add(key)
            content = parse(Window, row.pop("content"))
            found.append(StoredWindow(**row, window=content))
    return found


def read_engine_starts(
    connection: Connection, study: int, pending: Sequence[PendingRow] = ()
) -> list[EngineStart]:
    """A study's engine starts, oldest first."""
    from autotune.storage.tables import engine_start

    rows = _rows(connection, engine_start, study, pending)
    return list(dict.fromkeys(EngineStart(**row) for row in rows))


def read_failures(
    connection: Connection, study: int, pending: Sequence[PendingRow] = ()
) -> list[Failure]:
    """A study's failed candidates, oldest first."""
    from autotune.storage.tables import failure

    rows = _rows(connection, failure, study, pending)
    return list(dict.fromkeys(Failure(num_speculative_tokens=row.pop("n"), **row) for row in rows))


def read_recommendation(text: str | None) -> Recommendation | None:
    return None if text is None else parse(Recommendation, text)


def _rows(
    connection: Connection, table: Table, study: int, pending: Sequence[PendingRow]
) -> list[dict[str, Any]]:
    import sqlalchemy as sa

    columns = [column for column in table.columns if column.name not in ("id", "study_id")]
    query = sa.select(*columns).where(table.c.study_id == study).order_by(table.c.id)
    stored = [dict(row) for row in connection.execute(query).mappings()]
    return stored + [dict(each.row) for each in pending if each.table == table.name]
