"""The side process that holds command lines against vLLM's own validators: `preflight/worker.py`.

vLLM is imported once, in its own interpreter; after that a check takes about 0.01 s.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from autotune.engines import Progress
from autotune.engines.process import describe_exit
from autotune.records import Record

WORKER = Path(__file__).with_name("worker.py")
LOAD_SECONDS = 300.0  # to import vLLM: 8 s warm on a CPU, minutes from a cold network disk
CHECK_SECONDS = 120.0  # one configuration: it may ask the Hub, or inspect a model anew
END_SECONDS = 5.0
STEP_SECONDS = 0.5  # between two lines of progress


class EngineFacts(Record):
    """What vLLM made of the arguments. None: this version does not say, or nobody was asked."""

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    kv_cache_dtype: str | None = None
    gpu_memory_utilization: float | None = None
    capture_sizes: tuple[int, ...] | None = None  # tokens; empty: no graphs
    cudagraph_mode: str | None = None  # "NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE", ...
    dtype: str | None = None  # "torch.bfloat16"
    logits_processors: tuple[str, ...] | None = None
    v2_runner: bool | None = None
    sampling: dict[str, Any] | None = None  # what requests get unless they say otherwise


class Verdict(Record):
    """vLLM's answer for one command line."""

    ok: bool
    error: str = ""  # why not, in vLLM's words, on one line
    facts: EngineFacts = EngineFacts()
    tokens: tuple[int, ...] | None = None  # of each conversation asked about


class ValidatorError(Exception):
    """The side process cannot answer, so nothing is known. Never leaves the preflight."""


class Validator:
    """A running side process; `close` ends it, children and all."""

    def __init__(
        self, python: str, environment: Mapping[str, str], progress: Progress,
        *, load_seconds: float = LOAD_SECONDS, check_seconds: float = CHECK_SECONDS,
    ) -> None:  # fmt: skip
        """Starts it and waits until vLLM is imported. Raises ValidatorError."""
        self._progress, self._check_seconds = progress, check_seconds
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._noise: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        try:
            self._process = subprocess.Popen(
                [python, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._noise, env=dict(environment), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._noise.close()
            raise ValidatorError(f"{python} does not run: {error}") from error
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self._next("ready", load_seconds, "loading vLLM to check the configurations")
        except BaseException:
            self.close()
            raise

    def check(
        self, arguments: Sequence[str], chats: Sequence[Sequence[Mapping[str, str]]] = ()
    ) -> Verdict:
        """vLLM's verdict on these arguments of its server, and how long these conversations are.

        Raises ValidatorError.
        """
        line = json.dumps({"arguments": list(arguments), "chats": list(chats)}) + "\n"
        threading.Thread(target=self._write, args=(line.encode(),), daemon=True).start()
        said = self._next("ok", self._check_seconds, "checking a configuration")
        try:
            verdict = Verdict.model_validate(said)
        except ValidationError as error:
            raise ValidatorError(f"an answer that makes no sense: {said!r:.200}") from error
        return verdict.model_copy(update={"error": sentence(verdict.error)})

    def _write(self, line: bytes) -> None:
        """In a thread, like `_read`: a pipe cannot be waited for with a limit."""
        with contextlib.suppress(OSError, ValueError):  # it ended, which `_next` finds out
            if self._process.stdin is not None:
                self._process.stdin.write(line)
                self._process.stdin.flush()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._process.stdout or ():
                self._answers.put(line.decode(errors="replace"))
        self._answers.put(None)

    def _next(self, key: str, seconds: float, what: str) -> dict[str, Any]:
        began = time.monotonic()
        while (waited := time.monotonic() - began) < seconds:
            try:
                line = self._answers.get(timeout=min(STEP_SECONDS, seconds - waited))
            except queue.Empty:
                self._progress(f"{what} ({waited + STEP_SECONDS:.0f} s)")
                continue
            if line is None:
                raise ValidatorError(self._ended())
            answer = _object(line)
            if key not in answer:
                raise ValidatorError(f"an answer that makes no sense: {line.strip()!r:.200}")
            return answer
        raise ValidatorError(f"no answer after {seconds:.0f} s ({what})")

    def _ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        code = self._process.returncode
        how = "it closed its output" if code is None else describe_exit(code)
        self._noise.seek(0)
        last = self._noise.read().decode(errors="replace").strip().splitlines()[-1:]
        return one_line(f"the side process ended ({how})" + "".join(f": {line}" for line in last))

    def close(self) -> None:
        """End it and everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # it holds nothing that needs an end
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError, ValueError):
                if pipe is not None:
                    pipe.close()
        self._noise.close()


def sentence(text: str) -> str:
    """A message on one line; of several lines only the first where that is a whole sentence."""
    first = text.strip().partition("\n")[0].rstrip()
    return one_line(first if first.endswith(".") else text)


def one_line(text: str, characters: int = 300) -> str:
    """Blanks and line ends collapsed, cut at `characters`."""
    text = " ".join(text.split())
    return text if len(text) <= characters else text[: characters - 3] + "..."


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
