"""Opening a study database: is it ours, is it current, can it be read or written?

Only imported inside functions: it imports SQLAlchemy.
"""

from __future__ import annotations

import logging
from pathlib import Path

import sqlalchemy as sa

from autotune import migrations
from autotune.errors import StorageError
from autotune.storage import tables
from autotune.storage.connect import (
    BUSY_TIMEOUT_SECONDS,
    Database,
    UnavailableError,
    explained,
    make_engine,
)
from autotune.storage.url import shown, sqlite_path

logger = logging.getLogger(__name__)

READ_MODES = ("mode=rw", "mode=ro", "mode=ro&immutable=1")  # see `_reading`
OPTUNA_TABLES = frozenset(  # of Optuna 5 and of earlier releases
    [
        "alembic_version",
        "studies",
        "study_directions",
        "study_system_attributes",
        "study_user_attributes",
        "trial_heartbeats",
        "trial_intermediate_values",
        "trial_params",
        "trial_system_attributes",
        "trial_user_attributes",
        "trial_values",
        "trials",
        "version_info",
    ]
)
OPTUNA_CORE = {"studies", "trials", "version_info"}  # no database of Optuna is without them


def open_database(url: str, busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS) -> Database:
    """Open a resolved URL for writing; makes or upgrades spectune's tables.

    Raises StorageError at once for a foreign, damaged, read-only or newer database, which stays
    as it was.
    """
    path = sqlite_path(url)
    database = Database(url, make_engine(url, path, "mode=rwc", busy_timeout_seconds))
    try:
        with database.read() as connection:
            check(connection, url)
        if path is not None:
            _use_wal(database)
        with database.write() as connection:
            if check(connection, url) != tables.REVISION:
                migrations.upgrade(connection)
    except BaseException:
        database.close()
        raise
    return database


def open_for_reading(url: str) -> Database | None:
    """Open a resolved URL for looking at it; None where there are no studies yet.

    Works on read-only files and folders. Raises StorageError as `open_database` does.
    """
    path = sqlite_path(url)
    if path is not None and not path.exists():
        return None
    database = (
        Database(url, make_engine(url, None, "", BUSY_TIMEOUT_SECONDS))
        if path is None
        else _reading(url, path)
    )
    try:
        with database.read() as connection:
            revision = check(connection, url)
    except BaseException:
        database.close()
        raise
    if revision is None:
        database.close()
        return None
    return database


def check(connection: sa.Connection, url: str) -> str | None:
    """The database's schema revision; None where spectune has no tables yet.

    Raises StorageError for a foreign database and for a revision this code does not know.
    """
    inspector = sa.inspect(connection)
    found = {*inspector.get_table_names(), *inspector.get_view_names()}
    if tables.VERSION_TABLE not in found:
        foreign = sorted(found - OPTUNA_TABLES) or ([] if found >= OPTUNA_CORE else sorted(found))
        if foreign:
            raise StorageError(
                f"{shown(url)} belongs to another program (table {foreign[0]!r})",
                hint="name another file or database with --storage; this one was not changed",
            )
        return None
    version = sa.table(tables.VERSION_TABLE, sa.column("version_num"))
    revision = connection.execute(sa.select(version.c.version_num)).scalar()
    if revision is not None and revision not in tables.REVISIONS:
        raise StorageError(
            f"{shown(url)} has schema revision {revision}, but this spectune knows revisions up"
            f" to {tables.REVISION}",
            hint="pip install --upgrade spectune",
        )
    return None if revision is None else str(revision)


def _reading(url: str, path: Path) -> Database:
    """Open a SQLite file without changing it.

    `mode=rw` comes first: only a reader that could write tidies away the -wal and -shm files that
    any reader of a WAL database makes. SQLite falls back to reading where the file is protected;
    where its folder is protected too, only `immutable` is left, which sees no -wal file.
    """
    for mode in READ_MODES:
        database = Database(
            url, make_engine(url, path, mode, BUSY_TIMEOUT_SECONDS, query_only=True)
        )
        try:
            with database.read() as connection:
                connection.execute(sa.text("SELECT count(*) FROM sqlite_master"))
        except UnavailableError as error:
            database.close()
            if mode == READ_MODES[-1] or "not a SQLite" in error.message:
                raise
            continue
        log = path.with_name(path.name + "-wal")
        if "immutable" in mode and log.exists() and log.stat().st_size:
            logger.warning("%s holds later changes that cannot be read in this folder", log)
        break
    return database


def _use_wal(database: Database) -> None:
    """Write-ahead log: readers and the writer do not wait for each other."""
    engine = database.engine.execution_options(spectune_begin=None)
    with explained(database.url), engine.connect() as connection:
        if connection.exec_driver_sql("PRAGMA journal_mode").scalar() != "wal":
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
