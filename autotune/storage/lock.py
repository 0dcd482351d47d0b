"""One process a study: a lock that the operating system or the server drops with its holder."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from autotune.errors import StorageError
from autotune.records import digest
from autotune.storage.url import beside, sqlite_path

if TYPE_CHECKING:
    from sqlalchemy import Connection

PAUSE_SECONDS = 0.05
PATIENCE_SECONDS = 0.5  # longer than anyone looks whether a lock is held


class Lock(Protocol):
    """An exclusive lock on one name in one storage."""

    def acquire(self, wait_seconds: float = PATIENCE_SECONDS) -> bool:
        """Take it; False when somebody else still holds it after `wait_seconds`."""

    def holder(self) -> str | None:
        """Who holds it now ("pid 12"), or None. Changes nothing."""

    def release(self) -> None:
        """Give it back; harmless when it is not held."""


def lock_for(url: str, name: str) -> Lock:
    """The lock called `name`: a file next to SQLite's, an advisory lock in PostgreSQL."""
    if sqlite_path(url) is None:
        return AdvisoryLock(url, name)
    return FileLock(beside(url, f"{name}.lock"))


def take(lock: Lock, what: str, wait_seconds: float = PATIENCE_SECONDS) -> None:
    """Acquire a lock. Raises StorageError "`what` by pid N" when it cannot be had in time."""
    if not lock.acquire(wait_seconds):
        raise StorageError(
            f"{what} by {lock.holder() or 'another process'}", hint="wait until it has ended"
        )


@contextmanager
def held(lock: Lock, what: str, wait_seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Hold a lock for a while. Raises StorageError "`what` by pid N" when it cannot be had."""
    take(lock, what, wait_seconds)
    try:
        yield
    finally:
        lock.release()


class FileLock:
    """flock on a small file that names its holder; the file goes away with the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, wait_seconds: float = PATIENCE_SECONDS) -> bool:
        deadline = time.monotonic() + wait_seconds
        while not self._try():
            if time.monotonic() >= deadline:
                return False
            time.sleep(PAUSE_SECONDS)
        return True

    def _try(self) -> bool:
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be written: {error.strerror}",
                hint="make the folder writable, or name another file with --storage",
            ) from error
        if not _flock(descriptor, fcntl.LOCK_EX) or not _is(descriptor, self.path):
            os.close(descriptor)  # held, or released and removed since it was opened
            return False
        os.ftruncate(descriptor, 0)
        os.write(descriptor, _who().encode())
        self._descriptor = descriptor
        return True

    def holder(self) -> str | None:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if _flock(descriptor, fcntl.LOCK_SH):
                return None
            return os.read(descriptor, 200).decode(errors="replace") or "another process"
        finally:
            os.close(descriptor)

    def release(self) -> None:
        if self._descriptor is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


class AdvisoryLock:
    """A PostgreSQL session lock on a connection of its own, which names its holder."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        # two signed 32-bit numbers: how pg_locks shows them back
        number = int(digest(f"spectune {name}")[:16], 16)
        self._key = {"high": _signed(number >> 32), "low": _signed(number & 0xFFFFFFFF)}
        self._connection: Connection | None = None

    def acquire(self, wait_seconds: float = PATIENCE_SECONDS) -> bool:
        connection = self._connect()
        deadline = time.monotonic() + wait_seconds
        while not self._ask(connection, "SELECT pg_try_advisory_lock(:high, :low)"):
            if time.monotonic() >= deadline:
                connection.close()
                return False
            time.sleep(PAUSE_SECONDS)
        self._connection = connection
        return True

    def holder(self) -> str | None:
        connection = self._connection or self._connect()
        try:
            name = self._ask(
                connection,
                "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
                " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2"
                " AND l.classid::bigint = :high & 4294967295"
                " AND l.objid::bigint = :low & 4294967295"
                " AND l.database ="
                " (SELECT oid FROM pg_database WHERE datname = current_database())",
            )
        finally:
            if connection is not self._connection:
                connection.close()
        return None if name is None else str(name).removeprefix("spectune ")

    def release(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> Connection:
        import sqlalchemy as sa

        from autotune.storage.connect import explained, postgresql_engine

        engine = postgresql_engine(
            self.url,
            poolclass=sa.NullPool,  # closing the connection ends the session and its lock
            isolation_level="AUTOCOMMIT",
            connect_args={"application_name": f"spectune {_who()}"[:63]},
        )
        with explained(self.url):
            return engine.connect()

    def _ask(self, connection: Connection, statement: str) -> Any:
        import sqlalchemy as sa

        from autotune.storage.connect import explained

        with explained(self.url):
            return connection.execute(sa.text(statement), self._key).scalar()


def _who() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StorageError(
            f"this file system cannot lock files: {error.strerror}",
            hint="keep the database on a local disk, or use PostgreSQL",
        ) from error
    return True


def _is(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
