"""All studies of a database: list, load, remove."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from autotune.errors import StorageError
from autotune.records import Plan
from autotune.storage.lock import held, lock_for
from autotune.storage.pending import pending_file, read_pending
from autotune.storage.stored import (
    State,
    StoredStudy,
    StudyInfo,
    parse,
    read_engine_starts,
    read_failures,
    read_recommendation,
    read_windows,
)
from autotune.storage.url import resolve_storage, shown

if TYPE_CHECKING:
    from sqlalchemy import Connection

Row = Mapping[str, Any]


def list_studies(url: str | None = None) -> list[StudyInfo]:
    """All studies, oldest first; empty where there is no database yet."""
    url = resolve_storage(url, create=False)
    with _reading(url) as connection:
        if connection is None:
            return []
        return [_info(row, url) for row in _studies(connection)]


def load_study(url: str | None = None, id_or_prefix: str | None = None) -> StoredStudy:
    """One study by its id or an unambiguous beginning of it; None means the newest.

    Raises StorageError when there is no such study, or when several begin like that.
    """
    url = resolve_storage(url, create=False)
    with _reading(url) as connection:
        if connection is None:
            raise _unknown(url, id_or_prefix, [])
        row = _find(_studies(connection), id_or_prefix, url)
        pending = read_pending(pending_file(url, row["name"]))
        return StoredStudy(
            info=_info(row, url),
            plan=parse(Plan, row["plan"]),
            recommendation=read_recommendation(row["recommendation"]),
            windows=tuple(read_windows(connection, row["id"], pending)),
            engine_starts=tuple(read_engine_starts(connection, row["id"], pending)),
            failures=tuple(read_failures(connection, row["id"], pending)),
        )


def find_studies(url: str | None, ids_or_prefixes: Sequence[str]) -> list[StudyInfo]:
    """Each study that is named, once. Raises StorageError as `load_study` does."""
    url = resolve_storage(url, create=False)
    with _reading(url) as connection:
        rows = [] if connection is None else _studies(connection)
        found = [_info(_find(rows, wanted, url), url) for wanted in ids_or_prefixes]
    return list({info.id: info for info in found}.values())


def remove_study(url: str | None, id_or_prefix: str) -> StudyInfo:
    """Delete a study, its Optuna study and its side file; says what is gone.

    Raises StorageError when the study is unknown, ambiguous, or being run.
    """
    url = resolve_storage(url, create=False)
    with _reading(url) as connection:
        if connection is None:
            raise _unknown(url, id_or_prefix, [])
        row = _find(_studies(connection), id_or_prefix, url)
        info = _info(row, url)
    from autotune.storage.database import open_database
    from autotune.storage.optuna_storage import delete_optuna_study

    with held(lock_for(url, info.id), f"study {info.id} is being run"):
        database = open_database(url)
        try:
            delete_optuna_study(url, info.id)
            with database.write() as connection:
                _delete(connection, row["id"])
        finally:
            database.close()
        pending_file(url, info.id).unlink(missing_ok=True)
    return info


# ------------------------------------------------------------------------------- the rows


@contextmanager
def _reading(url: str) -> Iterator[Connection | None]:
    from autotune.storage.database import open_for_reading

    database = open_for_reading(url)
    if database is None:
        yield None
        return
    try:
        with database.read() as connection:
            yield connection
    finally:
        database.close()


def _studies(connection: Connection) -> list[Row]:
    import sqlalchemy as sa

    from autotune.storage.tables import study, window

    windows = sa.select(sa.func.count()).where(window.c.study_id == study.c.id).scalar_subquery()
    query = sa.select(study, windows.label("windows")).order_by(study.c.created_at, study.c.id)
    return [dict(row) for row in connection.execute(query).mappings()]


def _delete(connection: Connection, study_id: int) -> None:
    from autotune.storage import tables

    for table in (tables.window, tables.engine_start, tables.failure):
        connection.execute(table.delete().where(table.c.study_id == study_id))
    connection.execute(tables.study.delete().where(tables.study.c.id == study_id))


def _find(rows: Sequence[Row], wanted: str | None, url: str) -> Row:
    if wanted is None and rows:
        return rows[-1]
    exact = [row for row in rows if row["name"] == wanted]
    found = exact or [row for row in rows if wanted and row["name"].startswith(wanted)]
    if not found:
        raise _unknown(url, wanted, rows)
    if len(found) > 1:
        names = ", ".join(row["name"] for row in found)
        raise StorageError(f"{wanted!r} is the beginning of several studies: {names}")
    return found[0]


def _unknown(url: str, wanted: str | None, rows: Sequence[Row]) -> StorageError:
    names = [row["name"] for row in rows]
    if not names:
        return StorageError(
            f"there are no studies in {shown(url)}",
            hint="`spectune run` makes one; --storage names another database",
        )
    close = difflib.get_close_matches(wanted or "", names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else "`spectune studies list` shows all"
    return StorageError(f"there is no study {wanted!r} in {shown(url)}", hint=hint)


def _info(row: Row, url: str) -> StudyInfo:
    pending = read_pending(pending_file(url, row["name"]))
    facts = {
        "id": row["name"],
        "attempt": row["attempt"],
        "created": _day(row["created_at"]),
        "windows": row["windows"] + sum(each.table == "spectune_window" for each in pending),
        "total_seconds": row["total_seconds"],
    }
    try:
        plan, result = json.loads(row["plan"]), json.loads(row["recommendation"] or "{}")
        return StudyInfo(
            **facts,
            model=plan["target"]["model"],
            workload=plan["workload"]["name"],
            engine=plan["engine"],
            state=_state(url, row["name"], done=bool(result)),
            decision=result.get("decision"),
            method=result.get("method"),
            num_speculative_tokens=result.get("num_speculative_tokens"),
            speedup=(result.get("speedup") or {}).get("value"),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return StudyInfo(**facts, model="", workload="", engine="", state="damaged")


def _day(created_at: Any) -> str:
    """Empty where a damaged file holds no time."""
    try:
        return datetime.fromtimestamp(created_at, UTC).isoformat(timespec="seconds")
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def _state(url: str, study_id: str, *, done: bool) -> State:
    """Done with a recommendation; running while a living process holds it; else interrupted."""
    if done:
        return "done"
    return "running" if lock_for(url, study_id).holder() else "interrupted"
