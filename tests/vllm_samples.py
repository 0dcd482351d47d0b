"""What the tests with a real vLLM share: when they run, and with which flags and variables."""

from __future__ import annotations

import contextlib
import importlib.util

import pytest

NEEDS_VLLM = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="this interpreter has no vLLM"
    ),
]
ENGINE_ARGS = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024")
ENGINE_ARGS += ("--max-num-seqs", "8")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


@contextlib.contextmanager
def engine_environment(tmp_path_factory):
    """Variables for engines on few shared cores, and a state folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECTUNE_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield
