"""What the engine benchmarks share: an engine, a target and prompts from the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from autotune.engines import EngineOptions
from autotune.engines.vllm import VllmEngine
from autotune.models.candidates import build_spaces
from autotune.models.catalog import resolve_model
from autotune.records import MethodSpace, Target, Workload
from autotune.workload import load_workload


def split_arguments(usage: str) -> tuple[list[str], list[str]]:
    """(own arguments, vLLM's arguments after --)."""
    arguments = sys.argv[1:]
    if not arguments:
        sys.exit(usage)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def real_engine() -> VllmEngine:
    return VllmEngine(EngineOptions(log_dir=".demo/engine-logs"))


def target(model: str, vllm_args: Sequence[str]) -> Target:
    return Target(model=resolve_model(model).model, engine_args=tuple(vllm_args))


def ngram_space(model: str, lengths: Sequence[int]) -> MethodSpace:
    spaces, _, _ = build_spaces(resolve_model(model), methods=["ngram"], lengths=lengths)
    return spaces[0]


def prompts(count: int, max_tokens: int) -> Workload:
    return load_workload("humaneval", num_prompts=count, max_tokens=max_tokens)
