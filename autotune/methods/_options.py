"""What may be set in a method's speculative_config, and on which engine."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.errors import ConfigurationError
from autotune.machine.environment import EngineInfo
from autotune.methods._knobs import Knob, Version

# Keys of vLLM's speculative_config that nobody sets by hand here, and why.
OWNED = {
    "method": "--methods chooses it",
    "model": "--drafter METHOD=ID_OR_PATH names it",
    "num_speculative_tokens": "--num-speculative-tokens gives the N to try",
    "num_speculative_tokens_per_batch_size": "spectune measures it (--schedule)",
    "parallel_drafting": "the method decides it: pard and peagle are the parallel ones",
    "suffix_decoding_max_cached_requests": "0, or a block measured twice would be drafted from "
    "its own first answers",
    "tensor_parallel_size": "vLLM wants draft_tensor_parallel_size",
    "max_model_len": "it is no bound on drafting: vLLM drafts longer texts all the same",
    "synthetic_acceptance_rates": "acceptance must be measured, not set",
    "synthetic_acceptance_length": "acceptance must be measured, not set",
    "revision": "name a folder with --drafter for a fixed revision",
    "code_revision": "name a folder with --drafter for a fixed revision",
    "enforce_eager": "it belongs to the engine: after `--`",
    "draft_load_config": "the engine's own --load-format serves",
    "disable_eagle_block_drop": "an experiment of vLLM's developers on prefix caching, which is "
    "isolated in every window here",
    "target_model_config": "vLLM fills it in",
    "target_parallel_config": "vLLM fills it in",
    "draft_model_config": "vLLM fills it in",
    "draft_parallel_config": "vLLM fills it in",
}


def clash(config: Mapping[str, Any]) -> str | None:
    """Settings that vLLM 0.32 refuses together (config/speculative.py, its speculators)."""
    low, high = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
    if low is not None and high is not None and low > high:
        return f"prompt_lookup_min={low} is above prompt_lookup_max={high}"
    if config.get("draft_sample_method") == "probabilistic":
        for name in ("use_heterogeneous_vocab", "use_local_argmax_reduction"):
            if config.get(name):
                return f"{name} takes greedy drafts only, not draft_sample_method=probabilistic"
    if config.get("dspark_draft_topk") and config.get("draft_tensor_parallel_size", 1) != 1:
        return "dspark_draft_topk needs draft_tensor_parallel_size=1"
    return None


def check_options(
    method: str, knobs: Sequence[Knob], options: Mapping[str, Any], engine: EngineInfo | None
) -> None:
    """Raise ConfigurationError for an option that the method or the engine does not take."""
    known = {knob.name: knob for knob in knobs}
    for name, value in options.items():
        if name not in known:
            raise ConfigurationError(*_no_knob(method, name, known))
        if reason := known[name].why_not(value):
            raise ConfigurationError(f"{method}: {reason}", hint=known[name].meaning)
        if engine:
            _require(method, known[name], value, engine)


def _require(method: str, knob: Knob, value: Any, engine: EngineInfo) -> None:
    """Raise ConfigurationError for a setting that this engine would refuse or ignore."""
    if engine.vllm and knob.since and vllm_version(engine.vllm) < knob.since:
        raise ConfigurationError(
            f"{method}: vLLM {engine.vllm} does not know {knob.name}",
            hint=f"it came with vLLM {dotted(knob.since)}",
        )
    if engine.platform == "cpu" and value in knob.on_v2:
        raise ConfigurationError(
            f"{method}: {knob.name}={value} has no effect on a CPU",
            hint="only vLLM's V2 model runner heeds it, which needs a GPU",
        )


def _no_knob(method: str, name: str, known: Mapping[str, Knob]) -> tuple[str, str]:
    if name in OWNED:
        return f"{method}: {name} cannot be set by hand", OWNED[name]
    close = difflib.get_close_matches(name, known, n=1)
    advice = f"did you mean {close[0]}? " if close else ""
    return f"{method} has no option {name!r}", f"{advice}it takes {', '.join(known) or 'nothing'}"


def vllm_version(text: str) -> Version:
    """ "0.32.0+rocm722" -> (0, 32)."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def dotted(version: Version) -> str:
    return ".".join(map(str, version))
