"""`spectune run` as a user runs it, in a folder of its own, to be watched, killed and resumed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from autotune.errors import StorageError
from autotune.store import StoredStudy, StoredWindow, load_study


class StudyProcess:
    """One command line in one folder. Whatever it starts has that folder as its own, too."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.arguments = arguments
        self.storage = f"sqlite:///{folder}/studies/spectune.db"
        self.commands: dict[str, list[str]] = {}  # of the engines seen, by their state file
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, *more: str, seconds: float = 600) -> int:
        """Start, wait for the end and return the exit code."""
        self.start(*more)
        return self.wait(seconds)

    def start(self, *more: str) -> None:
        """Start in the background. `more` is put before the flags for the engine."""
        own, dashes, engine = _split(self.arguments)
        argv = [sys.executable, "-m", "autotune", "run", *own, *more, *dashes, *engine]
        with self._file("stdout").open("wb") as out, self._file("stderr").open("wb") as err:
            self._process = subprocess.Popen(
                argv,
                cwd=self.folder,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env={**os.environ, "SPECTUNE_STATE_DIR": str(self._file("state"))},
            )

    def wait(self, seconds: float) -> int:
        self.until(lambda: self._process.poll() is not None, seconds, "its end")
        return self._process.returncode

    def until(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Wait for a condition, noting engine commands meanwhile. Fails the test in the end."""
        deadline = time.monotonic() + seconds
        while not condition():
            self._note_commands()
            over = self._process is not None and self._process.poll() is not None
            if time.monotonic() > deadline or (over and not condition()):
                ended = f", exit code {self._process.returncode}" if over else ""
                pytest.fail(f"waited for {what}{ended}; the command said:\n{self.stderr[-3000:]}")
            time.sleep(0.05)

    def signal(self, number: int) -> None:
        """To the command's process group, as a terminal does it."""
        os.killpg(self._process.pid, number)

    def kill_engine_core(self) -> None:
        """Kill the process in which vLLM schedules, and nothing else."""
        (core,) = self.engine_cores()
        core.kill()

    def engine_cores(self) -> list[psutil.Process]:
        return [p for p in self.processes() if "EngineCore" in _command(p)]

    def processes(self) -> list[psutil.Process]:
        """Everything alive that works in our folder: the command, its supervisor, the engine."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                here = Path(process.cwd()).is_relative_to(self.folder)
                if here and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def vanished(self, seconds: float = 40) -> bool:
        """Whether nothing is left of it, given some time."""
        deadline = time.monotonic() + seconds
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def clean_up(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self._process is not None:
            self._process.wait()

    # -------------------------------------------------------------------- what came of it

    @property
    def document(self) -> dict:
        return json.loads(self._file("stdout").read_text())

    @property
    def stderr(self) -> str:
        return self._file("stderr").read_text()

    @property
    def study(self) -> StoredStudy:
        return load_study(self.storage)

    def windows(self, method: str = "") -> list[StoredWindow]:
        """What is stored so far, of arms of that method; nothing while there is no database."""
        try:
            return [window for window in self.study.windows if window.arm.startswith(method)]
        except StorageError:
            return []

    def _file(self, name: str) -> Path:
        return self.folder.with_name(f"{self.folder.name}.{name}")

    def _note_commands(self) -> None:
        for path in sorted(self._file("state").glob("*.json")):
            with contextlib.suppress(OSError, ValueError):  # it goes when its engine goes
                self.commands.setdefault(path.name, json.loads(path.read_text())["command"])


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _split(arguments: list[str]) -> tuple[list[str], list[str], list[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at : at + 1], arguments[at + 1 :]
