"""What all test files share."""

import contextlib
import os
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("engine_contract")
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
# Its side process imports vLLM, which takes seconds: tests of the preflight ask for it.
os.environ.setdefault("SPECTUNE_PREFLIGHT", "0")


def pytest_configure():
    """A suite started in the background ignores Ctrl-C, and so would every process it starts.

    A handler, unlike SIG_IGN, is not inherited by a program that is started.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


@contextlib.contextmanager
def folder_in_memory():
    """Where the system has it: a study commits often, and a disk takes its time for each."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def empty():
    """A database without studies, to be copied: making one takes longer than most studies."""
    from tuner_samples import plan_of

    from autotune.store import open_study, remove_study

    with folder_in_memory() as folder:
        file = folder / "study.db"
        with open_study(f"sqlite:///{file}", plan_of(mtp=[1])) as study:
            pass
        remove_study(f"sqlite:///{file}", study.id)
        yield file


@pytest.fixture
def stage(empty):
    """Whole studies, in a database of their own."""
    from tuner_samples import Stage

    with folder_in_memory() as folder:
        yield Stage(folder, empty)
