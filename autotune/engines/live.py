"""Whether N can be switched on a running vLLM: by version, arguments and model runner.

vLLM has two model runners. V1 drafts as many tokens as the scheduler asks for. V2 passes the
number on since 0.32 only, and then only some drafters heed it (`Method.live_on_v2`); the others
draft the largest N and cut, so that acceptance is right and drafting time is not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from autotune.engines.arguments import data_parallel_size, read_flags
from autotune.machine.environment import EngineInfo
from autotune.methods import get_method
from autotune.records import Record

LIVE_SINCE = (0, 24)  # first vLLM with num_speculative_tokens_per_batch_size
V2_SINCE = (0, 32)  # first one whose V2 runner passes N on, and uses V2 wherever it can
V2_SWITCH = "VLLM_USE_V2_MODEL_RUNNER"
V1_FLAGS = ("--enable-dbo", "--ubatch-size", "--distributed-executor-backend")  # can mean V1


class Runner(Record):
    """What a worker says of itself: see `StepTimer.spectune_about`."""

    name: str  # the model runner's class
    v2: bool
    drafter: str | None  # class of what drafts; None: nothing does there


def why_not_live(info: EngineInfo, engine_args: Sequence[str], method: str) -> str | None:
    """What is known before a start against switching N; None: nothing, the running engine tells."""
    if version(info) < LIVE_SINCE:
        return f"vLLM {info.vllm} cannot switch N while it runs"
    if data_parallel_size(engine_args) > 1:
        return "vLLM drops the schedule under data parallelism"
    if expects_v2(info, engine_args) and not (version(info) >= V2_SINCE and _on_v2(method)):
        return _always_largest(method)
    return None


def why_not_switched(info: EngineInfo, runner: Runner | None, method: str) -> str | None:
    """What the running engine says against it. `runner` None: it could not be asked."""
    if runner is None:
        known = expects_v2(info, ()) is False
        return None if known else "it is not known whether its model runner drafts the N asked for"
    if not runner.v2 or (version(info) >= V2_SINCE and runner.drafter in _on_v2(method)):
        return None
    return _always_largest(method)


def expects_v2(info: EngineInfo, engine_args: Sequence[str]) -> bool | None:
    """Which runner vLLM will take, as far as it can be told from outside; None: it cannot.

    As in vLLM 0.32, config/vllm.py, use_v2_model_runner; older versions decided otherwise.
    """
    switch = os.environ.get(V2_SWITCH, "")
    if switch.isdigit():
        return int(switch) > 0
    if "triton" not in info.packages:
        return False
    flags = {flag for flag, _ in read_flags(engine_args)}
    settled = info.platform in ("cuda", "rocm") and not flags.intersection(V1_FLAGS)
    return True if settled and version(info) >= V2_SINCE else None


def version(info: EngineInfo) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", info.vllm or "")[:2])


def _on_v2(method: str) -> tuple[str, ...]:
    return get_method(method).live_on_v2


def _always_largest(method: str) -> str:
    return f"vLLM's V2 model runner drafts the largest N whatever is asked for ({method})"
