"""Settings of a method beside N that are worth tuning: vLLM's own names, read in its source.

`since` is the first minor version whose config/speculative.py has the field (of 0.19 to 0.32).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Version = tuple[int, ...]


@dataclass(frozen=True)
class Knob:
    """One key of speculative_config. `values`: worth trying, vLLM's default first (if it has one).

    `closed`: nothing but `values` is taken. Numbers may be bounded (both ends belong to them).
    """

    name: str
    meaning: str
    values: tuple[Any, ...]
    kind: type = str
    closed: bool = False
    least: float | None = None
    most: float | None = None
    since: Version | None = None  # None: in all versions read
    on_v2: tuple[Any, ...] = ()  # values that only vLLM's V2 runner heeds, so none on a CPU

    def why_not(self, value: Any) -> str | None:
        """What speaks against the value; None: nothing known here."""
        if self.closed and not any(value == v and type(value) is type(v) for v in self.values):
            return f"{self.name} is one of {', '.join(map(str, self.values))}, not {value!r}"
        whole = isinstance(value, int) and not isinstance(value, bool)
        fits = whole if self.kind is int else isinstance(value, self.kind)
        if self.kind is float:
            fits = whole or (isinstance(value, float) and math.isfinite(value))
        if not fits or value == "":
            return f"{self.name} takes {_KINDS[self.kind]}, not {value!r}"
        if self.least is not None and value < self.least:
            return f"{self.name} is at least {self.least:g}, not {value!r}"
        if self.most is not None and value > self.most:
            return f"{self.name} is at most {self.most:g}, not {value!r}"
        return None


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def _switch(
    name: str, meaning: str, since: Version | None = None, on_v2: tuple[Any, ...] = ()
) -> Knob:
    return Knob(name, meaning, (False, True), bool, closed=True, since=since, on_v2=on_v2)


SAMPLING = (
    Knob(
        "draft_sample_method",
        "greedy drafts, or drafts sampled from the drafter's distribution (more memory): "
        "matters at temperature above 0 only",
        ("greedy", "probabilistic"), closed=True, since=(0, 21),
    ),
    Knob(
        "rejection_sample_method",
        "token by token, or the draft verified as one block; vLLM's V1 runner ignores `block`",
        ("standard", "block"), closed=True, since=(0, 25), on_v2=("block",),
    ),
)  # fmt: skip
LOADING = (
    Knob(
        "attention_backend",
        "the drafter's attention backend: on ROCm acceptance can collapse with a wrong one",
        ("FLASH_ATTN", "TRITON_ATTN", "ROCM_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN"),
        since=(0, 21),
    ),
    Knob("kv_cache_dtype", "the drafter's KV cache", ("auto", "fp8"), since=(0, 26)),
    Knob("moe_backend", "the drafter's MoE kernels", ("auto", "triton", "aiter")),
    Knob("quantization", "of the drafter's weights", ("fp8",)),
    Knob(
        "draft_tensor_parallel_size",
        "GPUs that share the drafter: 1, or as many as share the model",
        (1,), int, least=1,
    ),
    _switch(
        "use_local_argmax_reduction",
        "under tensor parallelism gather the best token instead of all logits (greedy drafts)",
    ),
    _switch(
        "disable_padded_drafter_batch",
        "drafts without padding (EAGLE kind on the V1 runner); switches async scheduling off",
    ),
)  # fmt: skip
COMMON = SAMPLING + LOADING
OTHER_VOCABULARY = _switch(
    "use_heterogeneous_vocab",
    "a drafter with another vocabulary drafts what both share (greedy drafts, V1 runner)",
    since=(0, 25),
)
SPARSE_INDICES = _switch(
    "index_share_for_mtp_iteration",
    "later MTP passes reuse the first one's sparse attention indices",
    since=(0, 29),
)
ADAPTIVE = _switch(
    "enable_adaptive_verification",
    "verify fewer drafted tokens where confidence is low (V2 runner, full graphs, no LoRA, no "
    "pipeline parallelism; vLLM's recipe for DeepSeek V4.1: not on ROCm yet)",
    since=(0, 28),
    on_v2=(True,),
)
TOPK = Knob(
    "dspark_draft_topk",
    "run the Markov head on the k likeliest tokens only (Qwen3 DSpark, drafter on one GPU)",
    (64, 256, 1024), int, least=1, since=(0, 28),
)  # fmt: skip
LOOKUP = (
    Knob("prompt_lookup_max", "longest run of tokens looked up", (4, 3, 5, 8), int, least=1),
    Knob(
        "prompt_lookup_min",
        "shortest run of tokens looked up: shorter finds more drafts, and worse ones",
        (2, 1, 3, 5), int, least=1,
    ),
)  # fmt: skip
SUFFIX = (
    Knob(
        "suffix_decoding_max_tree_depth",
        "bound on matched plus drafted tokens", (24, 32, 64), int, least=1,
    ),
    Knob(
        "suffix_decoding_max_spec_factor",
        "drafted tokens per matched token", (1.0, 2.0, 4.0), float, least=0,
    ),
    Knob(
        "suffix_decoding_min_token_prob",
        "draft only tokens at least so likely", (0.1, 0.05, 0.3), float, least=0, most=1,
    ),
)  # fmt: skip
