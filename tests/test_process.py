"""Nothing of an engine survives, whoever dies first; and what its log says about why it died."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from autotune.engines import last_words, process, supervisor
from autotune.engines.process import ManagedProcess, cleanup_stale, describe_exit, free_port
from autotune.errors import EngineStartError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="engines run on Linux only"),
    pytest.mark.slow,  # trees of real processes, started and killed
]

# argv: mode, depth. Every process but the leaves has two children. "stubborn": ignores signals,
# leaves the session and clears its environment, as far from us as a process can get.
FAKE_ENGINE = """
import os, signal, subprocess, sys, time
mode, depth = sys.argv[1], int(sys.argv[2])
stubborn = mode == "stubborn"
if stubborn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
children = []
for _ in range(2 if depth else 0):
    child_mode = "stubborn" if mode == "orphan" else mode
    command = [sys.executable, "-I", "-S", __file__, child_mode, str(depth - 1)]
    away = child_mode == "stubborn"
    env = {} if away else None
    children.append(subprocess.Popen(command, start_new_session=away, env=env))
open(os.path.join(os.path.dirname(__file__), f"up-{os.getpid()}"), "w").close()
while mode == "orphan":
    time.sleep(0.02)
    here = os.path.dirname(__file__)
    if all(os.path.exists(os.path.join(here, f"up-{child.pid}")) for child in children):
        sys.exit(3)
if mode == "traceback":
    raise RuntimeError("the draft model does not fit")
if mode == "abort":
    os.abort()
time.sleep(600)
"""

TUNER = """
import json, sys, time
from pathlib import Path
from autotune.engines.process import ManagedProcess
arguments = json.loads(sys.argv[1])
paths = {key: Path(arguments.pop(key)) for key in ("log_path", "state_dir")}
engine = ManagedProcess.start(**arguments, **paths)
print(engine.pid, flush=True)
time.sleep(600)
"""


class Lab:
    """A fake engine and the processes that it made."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "fake_engine.py"
        self.script.write_text(FAKE_ENGINE)
        self.folder = folder
        self.state_dir = folder / "state"
        self.log_path = folder / "logs" / "engine.log"

    def arguments(self, mode: str, depth: int, grace: float = 0.3, term: float = 0.3) -> dict:
        return {
            "argv": [sys.executable, "-I", "-S", str(self.script), mode, str(depth)],
            "env": dict(os.environ),
            "log_path": self.log_path,
            "state_dir": self.state_dir,
            "grace_seconds": grace,
            "term_seconds": term,
        }

    def start(self, mode: str, depth: int, **seconds: float) -> ManagedProcess:
        engine = ManagedProcess.start(**self.arguments(mode, depth, **seconds))
        if mode in ("tree", "stubborn"):
            self.wait_up(depth)
        return engine

    def start_tuner(self, mode: str, depth: int) -> subprocess.Popen[str]:
        arguments = json.dumps(self.arguments(mode, depth), default=str)
        command = [sys.executable, "-c", TUNER, arguments]
        root = Path(process.__file__).parents[2]
        tuner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
        assert tuner.stdout is not None
        with tuner.stdout as answer:
            assert int(answer.readline())
        self.wait_up(depth)
        return tuner

    def wait_up(self, depth: int) -> None:
        expected = 2 ** (depth + 1) - 1
        eventually(lambda: len(list(self.folder.glob("up-*"))) == expected)

    def alive(self) -> list[int]:
        found = []
        for candidate in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                runs_it = str(self.script) in candidate.cmdline()[:4]
                if runs_it and candidate.status() != psutil.STATUS_ZOMBIE:
                    found.append(candidate.pid)
        return found

    def state(self) -> dict:
        (path,) = self.state_dir.glob("*.json")
        return json.loads(path.read_text())

    def change_state(self, **changes: object) -> Path:
        (path,) = self.state_dir.glob("*.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        return path

    def wait_census(self) -> None:
        """Until the state file knows every process."""
        eventually(lambda: {pid for pid, _ in self.state()["members"]} == set(self.alive()))

    def assert_nothing_left(self) -> None:
        assert self.alive() == []
        assert list(self.state_dir.iterdir()) == []


def eventually(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "ORPHAN_SECONDS", 0.3)
    lab = Lab(tmp_path)
    yield lab
    for pid in lab.alive():  # only after a failed test
        kill(pid)


# ------------------------------------------------------------------------------- stopping


def test_normal_stop_leaves_nothing(lab):
    engine = lab.start("tree", 2, grace=20.0)
    assert engine.poll() is None
    assert os.getsid(engine.pid) == engine.pid  # a terminal's Ctrl-C does not reach it
    assert len(lab.alive()) == 7
    report = engine.stop()
    assert report.survivors == () and report.leftovers == ()
    assert report.returncode == engine.poll() == -signal.SIGINT
    assert engine.stop() == report
    lab.assert_nothing_left()


def test_stubborn_tree_leaves_nothing(lab):
    engine = lab.start("stubborn", 2)
    report = engine.stop()
    assert report.survivors == () and len(report.leftovers) == 7
    assert report.returncode == -signal.SIGKILL
    lab.assert_nothing_left()


def test_ignored_interrupt_is_not_inherited(lab):
    """As under nohup, or in a shell's background job."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        engine = lab.start("tree", 0, grace=20.0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert engine.stop().leftovers == ()


def test_orphans_of_a_dead_engine_are_ended(lab):
    engine = lab.start("orphan", 1)
    eventually(lambda: engine.poll() == 3)
    eventually(lambda: not lab.alive())  # without being asked
    report = engine.stop()
    assert report.returncode == 3 and report.survivors == () and len(report.leftovers) == 2
    lab.assert_nothing_left()


def test_dropping_the_object_ends_the_engine(lab):
    engine = lab.start("tree", 1)
    with pytest.warns(ResourceWarning):
        del engine
        eventually(lambda: not lab.alive())


@pytest.mark.parametrize("mode", ["tree", "stubborn"])
def test_killed_tuner_leaves_nothing(lab, mode):
    tuner = lab.start_tuner(mode, 1)
    tuner.kill()
    tuner.wait()
    eventually(lambda: not lab.alive() and not list(lab.state_dir.iterdir()))


def test_cleanup_waits_for_a_supervisor_at_work(lab):
    tuner = lab.start_tuner("stubborn", 1)
    tuner.kill()
    tuner.wait()
    cleanup_stale(lab.state_dir)
    lab.assert_nothing_left()


def test_killed_supervisor_is_replaced(lab):
    engine = lab.start("stubborn", 1)
    lab.wait_census()
    kill(lab.state()["supervisor"][0])
    eventually(lambda: engine.poll() == -signal.SIGKILL)
    assert lab.alive()
    report = engine.stop()
    assert report.survivors == () and len(report.leftovers) >= 2
    lab.assert_nothing_left()


def test_hanging_supervisor_is_replaced(lab, monkeypatch):
    engine = lab.start("tree", 1)
    os.kill(lab.state()["supervisor"][0], signal.SIGSTOP)
    monkeypatch.setattr(engine, "_stop_seconds", 0.2)
    assert engine.stop().survivors == ()
    lab.assert_nothing_left()


# ---------------------------------------------------------------------------- cleaning up


@pytest.fixture
def crashed(lab):
    """Tuner and supervisor killed; of the engine, two stubborn orphans are left."""
    tuner = lab.start_tuner("stubborn", 1)
    lab.wait_census()
    kill(lab.state()["supervisor"][0])
    tuner.kill()
    tuner.wait()
    eventually(lambda: len(lab.alive()) == 2)
    return lab


def test_cleanup_ends_what_a_crash_left(crashed):
    left = crashed.alive()
    (cleaned,) = cleanup_stale(crashed.state_dir)
    assert cleaned.action == "killed" and cleaned.killed == tuple(sorted(left))
    assert cleaned.survivors == () and cleaned.command[-2:] == ("stubborn", "1")
    crashed.assert_nothing_left()
    assert cleanup_stale(crashed.state_dir) == []


def test_cleanup_finds_the_token(lab):
    """Processes that the state file does not know, but that kept their environment."""
    tuner = lab.start_tuner("tree", 2)
    lab.wait_census()
    kill(lab.state()["supervisor"][0])
    tuner.kill()
    tuner.wait()
    lab.change_state(members=[])
    assert len(lab.alive()) >= 6
    cleanup_stale(lab.state_dir)
    lab.assert_nothing_left()


@pytest.mark.parametrize("shift", [-1000, 1000])
def test_reused_pids_are_left_alone(crashed, shift):
    """Same pids, other start times: other processes, also where they started later."""
    left = crashed.alive()
    members = [(pid, ticks + shift) for pid, ticks in crashed.state()["members"]]
    crashed.change_state(members=members)
    (cleaned,) = cleanup_stale(crashed.state_dir)
    assert cleaned.action == "already gone" and cleaned.killed == ()
    assert crashed.alive() == left
    assert list(crashed.state_dir.iterdir()) == []


def test_what_cannot_be_judged_is_left_alone(crashed):
    """A living tuner's engine; pids of another machine, container or boot."""
    before = crashed.state()
    own = supervisor.read_process(os.getpid())
    for field, value in [("owner", own.identity), ("node", "else"), ("pid_namespace", "else")]:
        path = crashed.change_state(**{**before, field: value})
        assert cleanup_stale(crashed.state_dir) == []
        assert path.exists()
    path = crashed.change_state(**{**before, "boot_id": "another"})
    (cleaned,) = cleanup_stale(crashed.state_dir)
    assert cleaned.action == "other boot" and not path.exists()
    assert len(crashed.alive()) == 2


def test_cleanup_ignores_what_is_not_a_state_file(tmp_path):
    (tmp_path / "1.json").write_text("{}")
    (tmp_path / "2.json").write_bytes(b"\xff\x00")
    assert cleanup_stale(tmp_path) == []
    assert cleanup_stale(tmp_path / "missing") == []
    assert len(list(tmp_path.iterdir())) == 2


# ------------------------------------------------------------------------------- starting


def test_missing_command(lab):
    arguments = {**lab.arguments("tree", 0), "argv": ["/nowhere/vllm", "serve"]}
    with pytest.raises(EngineStartError, match="/nowhere/vllm"):
        ManagedProcess.start(**arguments)
    lab.assert_nothing_left()


def test_environment_is_exactly_what_was_given(lab):
    show = "import os; print(sorted(os.environ))"
    arguments = lab.arguments("tree", 0)
    arguments |= {"argv": [sys.executable, "-I", "-S", "-c", show], "env": {"ONLY": "\udcff"}}
    engine = ManagedProcess.start(**arguments)
    eventually(lambda: engine.poll() == 0)
    engine.stop()
    assert "'ONLY'" in lab.log_path.read_text() and "'PATH'" not in lab.log_path.read_text()


def test_unwritable_state_folder(lab):
    lab.state_dir.write_text("a file")
    with pytest.raises(EngineStartError, match="state"):
        ManagedProcess.start(**lab.arguments("tree", 0))
    assert lab.alive() == []


def test_other_systems_are_refused(lab, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(EngineStartError, match="Linux"):
        ManagedProcess.start(**lab.arguments("tree", 0))
    with pytest.raises(EngineStartError, match="Linux"):
        cleanup_stale(lab.state_dir)


def test_free_ports_can_be_used():
    with socket.create_server(("127.0.0.1", free_port())) as server:
        assert server.getsockname()[1] > 0


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit status 0"),
        (1, "exit status 1"),
        (255, "exit status 255"),
        (-6, "killed by SIGABRT (signal 6)"),
        (-9, "killed by SIGKILL (signal 9); if nobody sent it, the kernel's out-of-memory killer"),
        (137, "exit status 137 (as a shell reports SIGKILL); if nobody"),
        (-99, "killed by signal 99 (signal 99)"),
    ],
)
def test_describe_exit(code, words):
    assert describe_exit(code).startswith(words)


# ------------------------------------------------------------------------------ last words


def test_last_words_of_a_traceback(lab):
    engine = lab.start("traceback", 0)
    eventually(lambda: engine.poll() == 1)
    assert engine.last_words().splitlines()[-1] == "RuntimeError: the draft model does not fit"
    assert engine.last_words(1) == "RuntimeError: the draft model does not fit"
    engine.stop()


def test_abort(lab):
    engine = lab.start("abort", 0)
    eventually(lambda: engine.poll() == -signal.SIGABRT)
    assert engine.stop().returncode == -signal.SIGABRT


@pytest.fixture
def words(tmp_path):
    def read(text: str | bytes, lines: int = 20) -> list[str]:
        path = tmp_path / "engine.log"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return process.last_words(path, lines).splitlines()

    return read


NESTED = """\
(EngineCore pid=7) INFO 11-29 12:00:00 [core.py:80] avoiding out of memory
(EngineCore pid=7) \x1b[31mERROR 11-29 12:00:01 [core.py:866] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-29 12:00:01 [core.py:866]   File "a.py", line 1, in run
(APIServer pid=5) INFO 11-29 12:00:01 [x.py:1] something else
(EngineCore pid=7) ERROR 11-29 12:00:01 [core.py:866]     raise OutOfMemoryError("x")
(EngineCore pid=7) ERROR 11-29 12:00:01 [core.py:866] torch.OutOfMemoryError: HIP out of memory.
(EngineCore pid=7) ERROR 11-29 12:00:01 [core.py:866] Tried to allocate 20 GiB.\x1b[0m
(APIServer pid=5) Traceback (most recent call last):
(APIServer pid=5)   File "b.py", line 2, in main
(APIServer pid=5)     raise RuntimeError("see root cause above")
(APIServer pid=5) RuntimeError: Engine core initialization failed. See root cause above.
Exception ignored in: <function Engine.__del__ at 0x7f>
Traceback (most recent call last):
  File "c.py", line 3, in __del__
AttributeError: no attribute 'shutdown'
nanobind: leaked 4 instances!
 - leaked instance 0x7f
"""


def test_cause_goes_before_consequence(words):
    assert words(NESTED) == [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in run',
        '    raise OutOfMemoryError("x")',
        "torch.OutOfMemoryError: HIP out of memory.",
        "Tried to allocate 20 GiB.",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert words(NESTED, 1) == ["torch.OutOfMemoryError: HIP out of memory."]
    assert len(words(NESTED, 3)) == 3


def test_validation_error_keeps_its_message(words):
    found = words(
        "INFO: start\nTraceback (most recent call last):\n  File 'x', line 1\n"
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\n"
        "num_speculative_tokens\n  Input should be greater than 0 [type=greater_than]\n"
        "    For further information visit https://errors.pydantic.dev\n"
        "nanobind: leaked 4 instances!\n"
    )
    assert found[2].startswith("pydantic_core")
    assert "  Input should be greater than 0 [type=greater_than]" in found
    assert not any("nanobind" in line for line in found)


def test_abort_lines(words):
    found = words(
        "loading\nterminate called after throwing an instance of 'c10::Error'\n"
        "  what():  HIP error: invalid argument\n  frame #0: x\n\nFatal Python error: Aborted\n"
        'Thread 0x7f:\n  File "x"\n'
    )
    assert found == [
        "terminate called after throwing an instance of 'c10::Error'",
        "  what():  HIP error: invalid argument",
        "  frame #0: x",
        "Fatal Python error: Aborted",
    ]


def test_refused_option(words):
    found = words("usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --x\n")
    assert found == ["api_server.py: error: unrecognized arguments: --x"]


def test_without_a_cause_the_end_is_shown(words, tmp_path):
    assert words("one\n\n\x1b[1mtwo\x1b[0m\n 10%\r 99%\rthree\r\n", 2) == ["two", "three"]
    assert words("Loading\nSegmentation fault (core dumped)\n") == [
        "Segmentation fault (core dumped)"
    ]
    assert words("") == []
    assert process.last_words(tmp_path / "missing.log") == ""


def test_huge_logs_and_bad_bytes(words):
    noise = b"\xff\xfe noise \x00\n" * 200_000
    assert words(noise + b"ValueError: bad \xff\n") == ["ValueError: bad \ufffd"]
    assert words(b"ValueError: long ago\n" + noise)[-1] == "\ufffd\ufffd noise"
    assert len(words(b"x" * 1_000_000)) <= 1


def test_reason_is_one_line():
    nested = last_words.reason(
        "Traceback (most recent call last):\n  raise OutOfMemoryError\n"
        "torch.OutOfMemoryError: HIP out of memory.\nTried to allocate 20 GiB.\n"
        "RuntimeError: Engine core initialization failed. See root cause above."
    )
    assert nested == "OutOfMemoryError: HIP out of memory. Tried to allocate 20 GiB."
    refused = last_words.reason(
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\n"
        "  Value error, no such method [type=value_error, input_value=ArgsKwargs()]\n"
        "    For further information visit https://errors.pydantic.dev"
    )
    assert refused == (
        "ValidationError: 1 validation error for SpeculativeConfig Value error, no such method"
    )
    assert last_words.reason("one\ntwo") == "two"
    assert last_words.reason("") == ""
    assert len(last_words.reason("ValueError: " + "long " * 1000)) == 300


def test_a_lost_engine_core_is_named_once(words):
    dead = "(APIServer pid=5) ERROR 11-29 12:00:02 [x.py:2] "
    found = words(
        "(APIServer pid=5) WARNING 11-29 12:00:01 [x.py:1] engine core exited unexpectedly\n"
        + 2 * f"{dead}Traceback (most recent call last):\n{dead}  File 'x'\n{dead}EngineDeadError\n"
    )
    assert found == ["engine core exited unexpectedly", "EngineDeadError"]


def test_the_usage_before_a_refused_option_is_left_out(words):
    usage = "usage: vllm serve [-h]\n" + "   [--flag VALUE]\n" * 5
    assert words(usage + "vllm serve: error: no such flag\n") == ["vllm serve: error: no such flag"]
