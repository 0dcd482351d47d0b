"""The rows of one study, as its single writer sees them. The SQL behind `autotune.store.Study`."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from autotune import __version__
from autotune.records import Plan
from autotune.storage import tables
from autotune.storage.connect import Database, UnavailableError
from autotune.storage.lock import Lock, lock_for, take
from autotune.storage.pending import PendingRow, append_pending, pending_file, read_pending
from autotune.storage.stored import to_json

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

ID_LENGTH = 10  # hex digits of the plan's digest
WINDOW_KEY = ("arm", "n", "block", "repeat")


class Ledger:
    """One row of spectune_study, locked, and everything that hangs on it."""

    def __init__(self, database: Database, plan: Plan, *, fresh: bool) -> None:
        """Claim the plan's latest attempt, or a new one. Raises StorageError if another has it."""
        self.database = database
        self.owed_seconds = 0.0  # not in the database yet
        self.attempt, self.name, self.resumed, self._lock = _claim(database, plan, fresh)
        try:
            with database.read() as connection:
                query = sa.select(tables.study.c.id).where(tables.study.c.name == self.name)
                self.row: int = connection.execute(query).scalar_one()
            self._side_file: Path = pending_file(database.url, self.name)
            self.pending = read_pending(self._side_file)
            self.flush()
        except BaseException:
            self._lock.release()
            raise

    def value(self, column: str) -> Any:
        """One column of the study's row."""
        query = sa.select(tables.study.c[column]).where(tables.study.c.id == self.row)
        with self.database.read() as connection:
            return connection.execute(query).scalar_one()

    def update(self, **values: Any) -> None:
        """Set columns of the study's row. Raises StorageError when that cannot be done now."""
        with self.database.write() as connection:
            query = tables.study.update().where(tables.study.c.id == self.row)
            connection.execute(query.values(values))

    def append(self, table: sa.Table, **values: Any) -> float:
        """Insert a row; where the database does not take it, the side file does. Returns `at`."""
        at = time.time()
        row = PendingRow(table=table.name, row={**values, "at": at})
        try:
            self._write([*self.pending, row])
        except UnavailableError as error:
            append_pending(self._side_file, row)
            self.pending.append(row)
            logger.warning("%s; the measurement waits in %s", error, self._side_file)
        return at

    def flush(self) -> None:
        """Write what is owed, if the database takes it now."""
        if not self.pending and not self.owed_seconds:
            return
        try:
            self._write(self.pending)
        except UnavailableError as error:
            logger.warning("%s; writing again later", error)

    def release(self) -> None:
        self._lock.release()

    def _write(self, rows: Sequence[PendingRow]) -> None:
        with self.database.write() as connection:
            for each in rows:
                table = tables.metadata.tables[each.table]
                key = {name: each.row[name] for name in WINDOW_KEY if name in table.columns}
                same = self._same(table, key if table is tables.window else each.row)
                # a process may have died after writing, before it removed the side file
                if not connection.execute(sa.select(table.c.id).where(*same)).first():
                    connection.execute(table.insert().values(study_id=self.row, **each.row))
            total = tables.study.c.total_seconds + self.owed_seconds
            query = tables.study.update().where(tables.study.c.id == self.row)
            connection.execute(query.values(total_seconds=total))
        self.owed_seconds = 0.0
        self.pending = []
        self._side_file.unlink(missing_ok=True)

    def _same(self, table: sa.Table, values: dict[str, Any]) -> list[sa.ColumnElement[bool]]:
        conditions = [table.c[name].is_not_distinct_from(values[name]) for name in values]
        return [table.c.study_id == self.row, *conditions]


def _claim(database: Database, plan: Plan, fresh: bool) -> tuple[int, str, bool, Lock]:
    """(attempt, name, resumed, lock) of the study to work on; its row exists afterwards."""
    sha256 = plan.sha256
    of_plan = tables.study.c.plan_sha256 == sha256
    while True:
        with database.read() as connection:
            latest = connection.execute(
                sa.select(sa.func.max(tables.study.c.attempt)).where(of_plan)
            ).scalar()
        attempt = (latest or 0) + 1 if fresh or latest is None else latest
        name = sha256[:ID_LENGTH] + (f"-{attempt}" if attempt > 1 else "")
        lock = lock_for(database.url, name)
        take(lock, f"study {name} is being run")
        try:
            inserted = _insert_or_refresh(database, plan, sha256, name, attempt)
        except BaseException:
            lock.release()
            raise
        if inserted or not fresh:
            return attempt, name, not inserted, lock
        lock.release()  # another process made, and left, this attempt just now


def _insert_or_refresh(
    database: Database, plan: Plan, sha256: str, name: str, attempt: int
) -> bool:
    """Insert the study's row; where it is there, note the plan's budget and warnings of today."""
    study = tables.study
    content = to_json(plan)
    with database.write() as connection:
        found = connection.execute(sa.select(study.c.id).where(study.c.name == name)).scalar()
        if found is not None:
            connection.execute(study.update().where(study.c.id == found).values(plan=content))
            return False
        connection.execute(
            study.insert().values(
                name=name,
                plan_sha256=sha256,
                attempt=attempt,
                plan=content,
                spectune=__version__,
                created_at=time.time(),
                total_seconds=0.0,
            )
        )
        return True
