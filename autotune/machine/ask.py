"""Ask another program something: its answer is bounded in time and in size, whatever it does."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress
from typing import IO, NamedTuple

MOST_BYTES = 8 << 20  # of an answer; 64 GPUs in all detail are well below 1 MiB


class Answer(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def ask(command: list[str], timeout_seconds: float) -> Answer:
    """What the program printed, and its exit status.

    Raises OSError for one that cannot be run, subprocess.TimeoutExpired for one that takes longer,
    ValueError for one that prints more than MOST_BYTES. It and its children are then ended: a child
    that lives on would hold the pipes open.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    kept: dict[str, bytes] = {}
    readers = [
        threading.Thread(target=_keep, args=(name, process, kept), daemon=True)
        for name in ("stdout", "stderr")
    ]
    for reader in readers:
        reader.start()
    try:
        process.wait(timeout_seconds)
    finally:
        _end(process)  # also what it left running
        process.wait()
        for reader in readers:
            reader.join(timeout=5)
    if any(len(content) > MOST_BYTES for content in kept.values()):
        raise ValueError(f"{command[0]} printed more than {MOST_BYTES >> 20} MiB")
    texts = (kept.get(name, b"").decode(errors="replace") for name in ("stdout", "stderr"))
    return Answer(process.returncode, *texts)


def _keep(name: str, process: subprocess.Popen[bytes], kept: dict[str, bytes]) -> None:
    stream: IO[bytes] = getattr(process, name)
    with stream, suppress(OSError):
        kept[name] = stream.read(MOST_BYTES + 1)
        if len(kept[name]) > MOST_BYTES:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The program and its children: they are a process group of their own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
