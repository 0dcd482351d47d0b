"""A tiny process between the tuner and its engine, so that nothing of the engine survives.

It lives in a session of its own (a terminal's Ctrl-C does not reach it), adopts orphans of the
engine (child subreaper) and ends the whole tree as soon as the engine exits, the tuner asks, or
the tuner is gone. Standard library only: it is run by path (`python -I -S supervisor.py`).

stdin:  one JSON line, the order (see `ManagedProcess.start`); then silence. End of file = stop.
stdout: JSON lines with an `event`: `started`, `exited` (the engine's own process), `end`; or
        `failed` where the engine could not be started at all. stderr is the engine's log.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

TOKEN_VARIABLE = "SPECTUNE_ENGINE_TOKEN"  # in the environment of everything the engine starts
ORPHAN_SECONDS = 2.0  # what children get to go by themselves once the engine's parent is gone
KILL_SECONDS = 10.0  # how long SIGKILL is repeated; beyond that only the kernel can help
TICK_SECONDS = 0.2
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

Identity = tuple[int, int]  # pid and start time in clock ticks after boot: unique on one boot


class Process(NamedTuple):
    """One line of /proc/PID/stat."""

    pid: int
    ticks: int
    ppid: int
    sid: int
    alive: bool

    @property
    def identity(self) -> Identity:
        return self.pid, self.ticks


def read_process(pid: int) -> Process | None:
    """The process with this pid; None when there is none. Format: proc_pid_stat(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    # A zombie leader whose other threads still run holds memory and devices: not dead yet.
    alive = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
    return Process(pid, int(fields[19]), int(fields[1]), int(fields[3]), alive)


def is_alive(identity: Identity) -> bool:
    found = read_process(identity[0])
    return found is not None and found.ticks == identity[1] and found.alive


def this_machine() -> dict[str, str]:
    """What must be equal before a recorded pid means anything here."""
    boot = namespace = "unknown"
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return {"node": os.uname().nodename, "boot_id": boot, "pid_namespace": namespace}


def _carries(pid: int, token: str) -> bool:
    try:
        return f"{TOKEN_VARIABLE}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def family(known: Collection[Identity], token: str = "", parent: int = 0) -> list[Process]:
    """Every process that is provably the engine's, zombies included.

    Proof: pid and start time are `known`, it carries the token, or it is a child of `parent` (the
    supervisor). From there descent and session follow: a session is only ever inherited, and its
    number is not used again while it has members.
    """
    names = [path.name for path in Path("/proc").iterdir()]
    entries = (read_process(int(name)) for name in names if name.isdigit())
    processes = [found for found in entries if found and found.pid != os.getpid()]
    ours = {
        process.pid: process
        for process in processes
        if process.identity in known
        or (parent and process.ppid == parent)
        or (token and _carries(process.pid, token))
    }
    while True:
        sessions = {process.sid for process in ours.values()} - {0, os.getsid(0)}
        more = [p for p in processes if p.pid not in ours and (p.ppid in ours or p.sid in sessions)]
        if not more:
            return list(ours.values())
        ours.update((process.pid, process) for process in more)


def living(find: Callable[[], list[Process]], keep: int = 0) -> list[Process]:
    """What `find` finds alive. Dead children of ours are reaped, except `keep`."""
    while True:
        found = find()
        reaped = 0
        for process in found:
            if not process.alive and process.ppid == os.getpid() and process.pid != keep:
                with contextlib.suppress(ChildProcessError):
                    reaped += os.waitpid(process.pid, os.WNOHANG)[0]
        if not reaped:  # else look again: the dead may have left children to us meanwhile
            return [process for process in found if process.alive]


def send(process: Process, number: int) -> None:
    """Signal this very process: its start time is compared while a pidfd refers to it."""
    pinned = None
    with contextlib.suppress(OSError, AttributeError):  # old kernel, C library or sandbox
        pinned = os.pidfd_open(process.pid)
    try:
        if not is_alive(process.identity):
            return
        if pinned is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(pinned, number)
    except (ProcessLookupError, PermissionError):
        return  # gone meanwhile, or not ours to signal: then it is reported as a survivor
    finally:
        if pinned is not None:
            os.close(pinned)


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def finish(alive: Callable[[], list[Process]], gentle_seconds: float) -> dict[str, list[int]]:
    """SIGTERM, a wait, then SIGKILL until nothing is left.

    Returns the pids that had to be signalled (`leftovers`) and those alive all the same
    (`survivors`: stuck in the kernel, or of a user whom we may not signal).
    """
    left = alive()
    signalled = {process.pid for process in left}
    for process in left:
        send(process, signal.SIGTERM)
    wait_for(lambda: not alive(), gentle_seconds)
    deadline = time.monotonic() + KILL_SECONDS
    while (left := alive()) and time.monotonic() < deadline:
        for process in left:
            send(process, signal.SIGKILL)
        signalled.update(process.pid for process in left)
        time.sleep(0.02)
    return {"leftovers": sorted(signalled), "survivors": sorted(p.pid for p in left)}


def _prctl(option: int, value: int) -> bool:
    try:
        zero = ctypes.c_ulong(0)
        result: int = ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), zero, zero, zero)
    except (OSError, AttributeError):
        return False
    return result == 0


def _before_exec(parent: int) -> None:
    """In the engine's process: die with the supervisor; no inherited signal settings."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if os.getppid() != parent:
        os._exit(127)


def _say(event: str, **facts: object) -> None:
    with contextlib.suppress(OSError):  # the tuner may be gone
        os.write(1, json.dumps({"event": event, **facts}).encode() + b"\n")


class Supervisor:
    """Starts one engine, watches it, ends it. Its state file lets a later run finish the job."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.owner: Identity = (order["owner"][0], order["owner"][1])
        self.pid = 0  # of the engine; never reaped before the end, so it cannot be used again
        self.returncode: int | None = None
        self.known: set[Identity] = set()
        self.state_path = Path()
        self.stop_asked = False
        # Without subreaper (old kernel, sandbox) orphans go to init: the token finds them.
        self.token = "" if _prctl(PR_SET_CHILD_SUBREAPER, 1) else str(order["token"])

    def start(self) -> None:
        """Raises OSError, ValueError or SubprocessError when the engine cannot be started."""
        parent = os.getpid()
        self.engine = subprocess.Popen(
            self.order["argv"],
            env={**self.order["env"], TOKEN_VARIABLE: self.order["token"]},
            stdin=subprocess.DEVNULL,
            stdout=2,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _before_exec(parent),
        )
        self.pid = self.engine.pid
        name = f"{self.pid}-{self.order['token'][:8]}.json"
        self.state_path = Path(self.order["state_dir"]) / name
        found = read_process(self.pid)
        if found is None:
            raise OSError("/proc does not show the engine that was just started")
        self.known = {found.identity}
        self.write_state()
        _say("started", engine=found.identity, state=str(self.state_path), **this_machine())

    def write_state(self) -> None:
        own = read_process(os.getpid())
        state = {
            **this_machine(),
            "owner": self.owner,
            "supervisor": own.identity if own else (0, 0),
            "engine_pid": self.pid,
            "members": sorted(self.known),
            "token": self.order["token"],
            "command": self.order["argv"],
        }
        temporary = self.state_path.with_suffix(".tmp")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(state, file)
        temporary.replace(self.state_path)

    def living(self) -> list[Process]:
        return living(lambda: family(self.known, self.token, os.getpid()), keep=self.pid)

    def exit_status(self) -> int | None:
        """The engine's return code, negative for a signal; None while it runs."""
        if self.returncode is None and self.pid:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            info = os.waitid(os.P_PID, self.pid, flags)
            if info is not None:
                exited = info.si_code == os.CLD_EXITED
                self.returncode = info.si_status if exited else -info.si_status
                _say("exited", returncode=self.returncode)
        return self.returncode

    def census(self) -> None:
        """Note who belongs to the engine: the proof for the run that cleans up after us."""
        now = {process.identity for process in self.living()}
        if now - self.known or self.known - now:
            self.known = now
            with contextlib.suppress(OSError):  # a full disk must not end a measurement
                self.write_state()

    def watch(self) -> None:
        """Return when the engine is gone, the tuner is gone, or a stop is asked for."""
        next_census = 0.0
        while self.exit_status() is None and not self.stop_asked and is_alive(self.owner):
            began = time.monotonic()
            if began >= next_census:
                self.census()
                cost = time.monotonic() - began
                next_census = began + max(1.0, 200 * cost)  # at most half a percent of a core
            readable, _, _ = select.select([0], [], [], TICK_SECONDS)
            if readable and not os.read(0, 4096):
                return

    def stop(self) -> None:
        """End everything and report. The state file goes only when nothing is left."""
        began = time.monotonic()
        if self.exit_status() is None and self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGINT)
            wait_for(lambda: self.exit_status() is not None, self.order["grace_seconds"])
        gentle: float = self.order["term_seconds"]
        if self.exit_status() is not None:
            gentle = min(gentle, ORPHAN_SECONDS)
            wait_for(lambda: not self.living(), gentle)
        outcome = finish(self.living, gentle)
        returncode = self.exit_status()
        if outcome["survivors"]:
            self.census()
        elif self.pid:
            with contextlib.suppress(OSError):
                os.waitpid(self.pid, os.WNOHANG)
                self.state_path.unlink(missing_ok=True)
                self.state_path.with_suffix(".tmp").unlink(missing_ok=True)
        _say("end", returncode=returncode, seconds=time.monotonic() - began, **outcome)

    def ask_to_stop(self, *_: object) -> None:
        self.stop_asked = True


def main() -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        return 1  # the tuner died while it spoke
    supervisor = Supervisor(json.loads(line))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, supervisor.ask_to_stop)  # a handler: SIG_IGN would be inherited
    try:
        supervisor.start()
        supervisor.watch()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _say("failed", error=str(error))
    finally:
        supervisor.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
