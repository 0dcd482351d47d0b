"""Studies on disk: what was measured survives whatever happens to the process.

`open_study` gives the one study of a plan, new or resumed; each of its methods has committed when
it returns. `list_studies`, `load_study`, `remove_study` and `as_recording` look at what is there,
also on read-only media. Times are seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from autotune.errors import StorageError
from autotune.records import Arm, Block, Plan, Recommendation, Window
from autotune.storage.lock import held, lock_for
from autotune.storage.recording import as_recording
from autotune.storage.stored import (
    AnyRecord,
    EngineStart,
    Failure,
    State,
    StoredStudy,
    StoredWindow,
    StudyInfo,
    parse,
    read_engine_starts,
    read_failures,
    read_recommendation,
    read_windows,
    to_json,
    to_plain,
    to_text,
)
from autotune.storage.studies import find_studies, list_studies, load_study, remove_study
from autotune.storage.url import resolve_storage, shown, sqlite_path

if TYPE_CHECKING:
    import optuna
    from optuna.storages import RDBStorage
    from sqlalchemy import Connection

    from autotune.storage.ledger import Ledger
    from autotune.storage.pending import PendingRow

__all__ = [
    "EngineStart",
    "Failure",
    "StoredStudy",
    "StoredWindow",
    "Study",
    "StudyInfo",
    "as_recording",
    "find_studies",
    "list_studies",
    "load_study",
    "open_study",
    "remove_study",
    "resolve_storage",
    "shown",
    "sqlite_path",
]


def open_study(
    url: str | None, plan: Plan, *, fresh: bool = False, busy_timeout_seconds: float = 60.0
) -> Study:
    """The study of a plan: its latest attempt goes on, unless `fresh` asks for another one.

    Use it as a context manager, or call `close`. Raises StorageError when the storage cannot be
    used, or when another process runs this study.
    """
    url = resolve_storage(url)
    from autotune.storage.database import open_database
    from autotune.storage.ledger import Ledger
    from autotune.storage.optuna_storage import close_optuna, open_optuna

    setup = lock_for(url, "setup")
    with held(setup, f"{shown(url)} is being set up", busy_timeout_seconds):
        database = open_database(url, busy_timeout_seconds)
        try:
            storage = open_optuna(url, busy_timeout_seconds)
        except BaseException:
            database.close()
            raise
    ledger = None
    try:
        ledger = Ledger(database, plan, fresh=fresh)
        return Study(ledger, storage, plan)
    except BaseException:
        close_optuna(storage)
        database.close()
        if ledger is not None:
            ledger.release()
        raise


class Study:
    """One attempt at one plan. One process at a time has it open. Made by `open_study`."""

    def __init__(self, ledger: Ledger, storage: RDBStorage, plan: Plan) -> None:
        self.plan = plan
        self.id = ledger.name
        self.url = ledger.database.url
        self.attempt = ledger.attempt
        self.resumed = ledger.resumed  # an earlier run has worked on it
        self._ledger = ledger
        self._storage = storage
        stored: list[StoredWindow] = self._read(read_windows)
        # the only writer may keep them: a search asks for all of them at every step
        self._windows = {(each.arm, each.n, each.block, each.repeat): each for each in stored}

    # ------------------------------------------------------------------------- measurements

    def recall(self, arm: Arm, n: int, block: Block, repeat: int = 0) -> Window | None:
        """The stored window of exactly this measurement, or None."""
        stored = self._windows.get((arm.key, int(n), block.key, int(repeat)))
        return None if stored is None else stored.window

    def save(self, arm: Arm, block: Block, repeat: int, window: Window) -> None:
        """Store one window for good; N is the window's.

        Where the database stays locked, the window goes to a side file and from there to the
        database with the next write. Saving the same window twice changes nothing. Raises
        StorageError for a number that is not finite, and for a different window under a key
        that is taken.
        """
        from autotune.storage.tables import window as table

        content = to_json(window)
        # int(): sqlite3 would store a numpy integer as bytes
        key = (arm.key, int(window.num_speculative_tokens), block.key, int(repeat))
        names = dict(zip(("arm", "n", "block", "repeat"), key, strict=True))
        if (known := self._windows.get(key)) is None:
            plain = parse(Window, content)
            at = self._ledger.append(table, **names, content=content)
            self._windows[key] = StoredWindow.model_validate({**names, "at": at, "window": plain})
        elif to_json(known.window) != content:
            raise StorageError(
                f"study {self.id} already holds another window for {arm.key}, N={key[1]},"
                f" {block.key}",
                hint="a measurement is never overwritten: store it under another repeat",
            )

    def windows(self) -> list[StoredWindow]:
        """All windows in order of measurement."""
        return list(self._windows.values())

    # ------------------------------------------------------------------------ what happened

    def engine_started(self, arm: Arm, seconds: float, error: str | None = None) -> None:
        """Note one engine start and what it cost; `error` where it failed."""
        from autotune.storage.tables import engine_start

        self._ledger.append(
            engine_start,
            arm=arm.key,
            method=arm.method,
            live=arm.live,
            seconds=_finite(seconds),
            error=None if error is None else to_text(error),
        )

    def engine_starts(self) -> list[EngineStart]:
        """All engine starts of all runs of this study, oldest first."""
        return self._read(read_engine_starts)

    def fail(
        self, method: str, num_speculative_tokens: int | None, error: str, last_words: str = ""
    ) -> None:
        """Note a candidate that cannot be run; N None means the whole method."""
        from autotune.storage.tables import failure

        n = None if num_speculative_tokens is None else int(num_speculative_tokens)
        words = {"error": to_text(error), "last_words": to_text(last_words)}
        self._ledger.append(failure, method=method, n=n, **words)

    def failures(self) -> list[Failure]:
        """All failed candidates, oldest first."""
        return self._read(read_failures)

    def add_seconds(self, seconds: float) -> None:
        """Add wall time; it accumulates over resumed runs."""
        self._ledger.owed_seconds += _finite(seconds)
        self._ledger.flush()

    def total_seconds(self) -> float:
        """Wall time of all runs of this study."""
        return float(self._ledger.value("total_seconds")) + self._ledger.owed_seconds

    # ------------------------------------------------------------------------------ the end

    def finish(self, recommendation: Recommendation) -> None:
        """Store the recommendation: the study is done. A later one replaces it."""
        content = to_json(recommendation)
        self._ledger.flush()
        self._ledger.update(recommendation=content, finished_at=time.time())

    def recommendation(self) -> Recommendation | None:
        """What `finish` stored, or None."""
        return read_recommendation(self._ledger.value("recommendation"))

    @property
    def state(self) -> State:
        """`load_study` and `list_studies` also say "interrupted"; an open study runs."""
        return "running" if self._ledger.value("recommendation") is None else "done"

    def close(self) -> None:
        """Let go of the study and its database; what was measured stays."""
        from autotune.storage.optuna_storage import close_optuna

        close_optuna(self._storage)
        self._ledger.database.close()
        self._ledger.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------- Optuna

    def optuna_study(self, sampler: optuna.samplers.BaseSampler | None = None) -> optuna.Study:
        """The Optuna study of the same name in the same storage (direction: maximize)."""
        from autotune.storage.optuna_storage import open_optuna_study

        return open_optuna_study(self.url, self._storage, self.id, self.plan.sha256, sampler)

    def optuna_explained(self) -> AbstractContextManager[None]:
        """Within it, Optuna's storage errors (a lock that lasts, ...) are StorageErrors."""
        from autotune.storage.optuna_storage import optuna_explained

        return optuna_explained(self.url)

    def running_trials(self, study: optuna.Study | None = None) -> list[optuna.Trial]:
        """Trials that a lost process left RUNNING, to be continued or told; oldest first.

        `study` is what `optuna_study` gave; its sampler then serves these trials too.
        """
        from autotune.storage.optuna_storage import running_trials

        return running_trials(self.optuna_study() if study is None else study)

    def _read(
        self, read: Callable[[Connection, int, list[PendingRow]], list[AnyRecord]]
    ) -> list[AnyRecord]:
        with self._ledger.database.read() as connection:
            return read(connection, self._ledger.row, self._ledger.pending)


def _finite(seconds: float) -> float:
    return float(to_plain(float(seconds), "seconds"))
