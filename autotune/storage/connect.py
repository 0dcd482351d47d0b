"""Connections to a study database, and plain words for what goes wrong with them.

Only imported inside functions: it imports SQLAlchemy.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from autotune.errors import StorageError
from autotune.storage.url import shown

BUSY_TIMEOUT_SECONDS = 60.0


class UnavailableError(StorageError):
    """The database did not take or give the data (locked, gone, damaged); later it may."""


@dataclass(frozen=True)
class Database:
    """An opened database. Every error of the driver leaves as a StorageError of one line."""

    url: str
    engine: sa.Engine
    busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection that sees one consistent state and writes nothing."""
        with explained(self.url), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """One transaction, committed at the end; waits for other writers first."""
        # SQLite: a transaction that reads first and writes later could not wait for other writers
        engine = self.engine.execution_options(spectune_begin="BEGIN IMMEDIATE")
        with explained(self.url), engine.begin() as connection:
            yield connection

    def close(self) -> None:
        self.engine.dispose()


def make_engine(
    url: str, path: Path | None, mode: str, timeout_seconds: float, *, query_only: bool = False
) -> sa.Engine:
    if path is None:
        options = f"-c lock_timeout={round(timeout_seconds * 1000)}"
        return postgresql_engine(url, pool_pre_ping=True, connect_args={"options": options})
    engine = sa.create_engine("sqlite:///file", creator=connector(path, mode, timeout_seconds))

    @sa.event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # transactions begin where `begin` below says
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA query_only = {int(query_only)}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        if statement := connection.get_execution_options().get("spectune_begin", "BEGIN"):
            connection.exec_driver_sql(statement)

    return engine


def connector(path: Path, mode: str, timeout_seconds: float) -> Callable[[], sqlite3.Connection]:
    """How to connect to a SQLite file whatever characters its name has."""
    address = f"file:{quote(str(path))}?{mode}"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(address, uri=True, timeout=timeout_seconds, check_same_thread=False)

    return connect


def postgresql_engine(url: str, **options: Any) -> sa.Engine:
    """An engine for a resolved PostgreSQL URL; connects when it is first used."""
    try:
        return sa.create_engine(url, **options)
    except (ImportError, ValueError, sa.exc.ArgumentError) as error:
        raise StorageError(
            f"storage {shown(url)} cannot be used: {error}",
            hint="check the --storage URL; pip install 'spectune[postgresql]' brings the driver",
        ) from error


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn the driver's errors into a StorageError of one line with a hint."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        message, hint = _explain(str(error.orig).strip(), shown(url))
        raise UnavailableError(message, hint=hint) from error
    except UnicodeDecodeError as error:  # a text in the file, or in the driver's own words
        message, hint = _explain("malformed", shown(url))
        raise UnavailableError(message, hint=hint) from error
    except sa.exc.SQLAlchemyError as error:
        first_line = str(error).partition("\n")[0]
        raise StorageError(f"{shown(url)}: {first_line}") from error


def _explain(reason: str, name: str) -> tuple[str, str]:
    known = {
        "locked": (
            "is locked by another program",
            "end the program that holds it; what was measured is kept",
        ),
        "not a database": ("is not a SQLite database", "name another file with --storage"),
        "malformed": (
            "is damaged: it was cut off or overwritten",
            "restore a copy of the file, or name another one with --storage",
        ),
        "readonly": ("is read-only", "make it writable, or name another file with --storage"),
        "unable to open": (
            "cannot be opened",
            "check the rights of the file and its folder, or name another with --storage",
        ),
        "is full": ("could not be written: the disk is full", "make room; then run again"),
    }
    for symptom, (message, hint) in known.items():
        if symptom in reason:
            return f"{name} {message}", hint
    return f"{name}: {reason.partition(chr(10))[0]}", "check the --storage URL"
