"""Run a server so that nothing of it can survive: see supervisor.py, which does the work.

`ManagedProcess` is the tuner's end of it; where even the supervisor was killed, `cleanup_stale` of
the next run ends the engine. Linux only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.engines import supervisor
from autotune.engines.last_words import last_words
from autotune.engines.leftovers import (
    CleanedUp,
    cleanup_stale,
    finish_engine,
    read_state,
    require_linux,
    state_dir,
)
from autotune.engines.supervisor import Identity
from autotune.errors import EngineStartError
from autotune.records import Record

__all__ = [
    "CleanedUp",
    "ManagedProcess",
    "StopReport",
    "cleanup_stale",
    "describe_exit",
    "free_port",
    "state_dir",
]

logger = logging.getLogger(__name__)

START_SECONDS = 60.0  # for the supervisor to start the command, on a busy machine
MARGIN_SECONDS = 10.0


class StopReport(Record):
    """What stopping an engine took."""

    returncode: int | None  # negative: a signal; None: it could not be ended, or nobody saw it end
    seconds: float
    leftovers: tuple[int, ...]  # pids that outlived the polite stop and were killed
    survivors: tuple[int, ...]  # pids that even SIGKILL did not end; () proves a clean stop


class ManagedProcess:
    """One engine under a supervisor. It ends with `stop`, with this object, or with this process.

    Not thread-safe: call it from one thread at a time.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], token: str, log_path: Path, stop_seconds: float
    ) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the supervisor needs pipes as stdin and stdout")
        self._supervisor = process
        self._orders, self._answers = process.stdin, process.stdout
        process.stdin = process.stdout = None  # else Popen keeps them open beyond our own end
        self.log_path = log_path
        self._token = token
        self._stop_seconds = stop_seconds
        self._events: dict[str, dict[str, Any]] = {}
        self._buffer = b""
        self._silent = False  # the supervisor closed its end: it is gone
        self._report: StopReport | None = None

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        log_path: Path,
        state_dir: Path,
        grace_seconds: float = 10.0,
        term_seconds: float = 10.0,
    ) -> ManagedProcess:
        """Start `argv` with exactly the environment `env`; its output replaces `log_path`.

        A stop sends SIGINT, after `grace_seconds` SIGTERM, after `term_seconds` SIGKILL.
        Raises EngineStartError when the command cannot be run at all.
        """
        require_linux()
        own = supervisor.read_process(os.getpid())
        if own is None:
            raise EngineStartError("cannot read /proc", hint="mount /proc in this container")
        token = secrets.token_hex(16)
        order = {
            "argv": list(argv),
            "env": dict(env),
            "owner": own.identity,
            "state_dir": str(state_dir.absolute()),
            "token": token,
            "grace_seconds": grace_seconds,
            "term_seconds": term_seconds,
        }
        process = _start_supervisor(log_path, state_dir)
        stop_seconds = grace_seconds + term_seconds + supervisor.KILL_SECONDS + MARGIN_SECONDS
        managed = cls(process, token, log_path, stop_seconds)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(managed.stop)
            managed._give(order)
            on_failure.pop_all()
        return managed

    @property
    def pid(self) -> int:
        return self._engine[0]

    def poll(self) -> int | None:
        """The engine's return code, negative for a signal; None while it runs."""
        self._listen(0.0)
        if "exited" in self._events:
            code: int = self._events["exited"]["returncode"]
            return code
        if self._silent and not supervisor.is_alive(self._engine):
            return -signal.SIGKILL  # the supervisor was killed; the kernel then kills the engine
        return None

    def stop(self) -> StopReport:
        """End the engine and everything that it started. May be called again."""
        if self._report is not None:
            return self._report
        began = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # the supervisor may be gone
            self._orders.close()
        if not self._wait_event("end", self._stop_seconds):
            self._supervisor.kill()  # hangs, or is dead: do its work
        self._supervisor.wait()
        end = self._events.get("end", {})
        own = self._finish_ourselves()
        self._report = StopReport(
            returncode=self.poll() if "started" in self._events else None,
            seconds=time.monotonic() - began,
            leftovers=(*end.get("leftovers", ()), *own["leftovers"]),
            survivors=tuple(own["survivors"]),
        )
        self._answers.close()
        if self._report.survivors:
            logger.error("engine processes that cannot be killed: %s", self._report.survivors)
        return self._report

    def last_words(self, lines: int = 20) -> str:
        """The most telling end of the engine's log: see `autotune.engines.last_words`."""
        return last_words(self.log_path, lines)

    @property
    def _engine(self) -> Identity:
        pid, ticks = self._events["started"]["engine"]
        return pid, ticks

    def _give(self, order: dict[str, Any]) -> None:
        """Hand the order over and wait until the engine's process exists."""
        with contextlib.suppress(BrokenPipeError):  # it died at once: noticed below
            self._orders.write(json.dumps(order).encode() + b"\n")
            self._orders.flush()
        started = self._wait_event("started", START_SECONDS)
        if "failed" in self._events:
            raise EngineStartError(
                f"cannot run {order['argv'][0]}: {self._events['failed']['error']}"
            )
        if not started:
            raise EngineStartError(
                "the process that watches over the engine did not start",
                last_words=self.last_words(),
            )

    def _finish_ourselves(self) -> dict[str, list[int]]:
        """Look for anything left, from outside; kill it where the supervisor could not."""
        if "started" not in self._events:
            return {"leftovers": [], "survivors": []}
        path = Path(self._events["started"]["state"])
        state = read_state(path) if path.exists() else None
        return finish_engine(path, state.members if state else (self._engine,), self._token)

    def _wait_event(self, name: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while name not in self._events and not self._silent:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._listen(left)
        return name in self._events

    def _listen(self, seconds: float) -> None:
        """Take in what the supervisor says; wait up to `seconds` for its next word."""
        if self._silent or self._answers.closed:
            return
        poller = select.poll()
        poller.register(self._answers, select.POLLIN)
        while poller.poll(seconds * 1000):
            data = os.read(self._answers.fileno(), 65536)
            if not data:
                self._silent = True
                return
            *complete, self._buffer = (self._buffer + data).split(b"\n")
            for line in complete:
                event = json.loads(line)
                self._events[event["event"]] = event
            seconds = 0.0


def _start_supervisor(log_path: Path, state_dir: Path) -> subprocess.Popen[bytes]:
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log_path.write_bytes(b"")
        with log_path.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
    except OSError as error:
        raise EngineStartError(f"cannot prepare an engine start: {error}") from error


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that is free now. Somebody else may take it before the engine does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


def describe_exit(returncode: int) -> str:
    """A return code in words, e.g. "killed by SIGABRT (signal 6)"."""
    number = -returncode if returncode < 0 else returncode - 128
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    out_of_memory = "; if nobody sent it, the kernel's out-of-memory killer did"
    hint = out_of_memory if number == signal.SIGKILL else ""
    if returncode < 0:
        return f"killed by {name} (signal {number}){hint}"
    if number in set(signal.Signals):
        return f"exit status {returncode} (as a shell reports {name}){hint}"
    return f"exit status {returncode}"
