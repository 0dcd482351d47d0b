"""Published faults of a method on an attention backend or version: shown, never acted upon.

Reports, not measured here. Each names where it was read; `before` is the first version without it,
as far as the report goes.
"""

from __future__ import annotations

import re

from autotune.gpu import Platform
from autotune.records import Record


class Circumstances(Record):
    """What a fault may depend on. None: not known."""

    method: str
    version: str | None = None
    platform: Platform | None = None
    attention_backend: str | None = None  # asked for by flag or variable
    aiter: bool = False  # VLLM_ROCM_USE_AITER=1
    model_type: str | None = None
    quantized: bool = False
    latent_attention: bool | None = None


class Fault(Record):
    """Applies where everything it names is so; what it does not name does not matter."""

    text: str
    source: str
    methods: tuple[str, ...] = ()  # empty: all
    before: tuple[int, int] | None = None
    platform: Platform | None = None
    attention_backends: tuple[str, ...] = ()
    aiter: bool = False
    model_types: tuple[str, ...] = ()  # beginnings
    quantized: bool = False
    latent_attention: bool = False
    above: int = 0  # only larger N

    def applies(self, here: Circumstances) -> bool:
        return (
            (not self.methods or here.method in self.methods)
            and self._version(here.version)
            and self.platform in (None, here.platform)
            and (not self.attention_backends or here.attention_backend in self.attention_backends)
            and (here.aiter or not self.aiter)
            and (not self.model_types or (here.model_type or "").startswith(self.model_types))
            and (here.quantized or not self.quantized)
            and (bool(here.latent_attention) or not self.latent_attention)
        )

    def _version(self, version: str | None) -> bool:
        if self.before is None:
            return True
        numbers = tuple(int(part) for part in re.findall(r"\d+", version or "")[:2])
        return bool(numbers) and numbers < self.before


FAULTS = (
    Fault(
        text="drafts were verified wrongly and outputs were garbage on this attention backend",
        source="vLLM 0.13, ROCm, pull 31714",
        methods=("eagle3",), before=(0, 14), platform="rocm", aiter=True,
        attention_backends=("ROCM_AITER_FA",),
    ),
    Fault(
        text="some AITER kernels for latent attention take at most 4 query tokens: N above 3 can "
        "abort the engine while it captures graphs",
        source="aiter issue 2760", platform="rocm", aiter=True, latent_attention=True, above=3,
    ),
    Fault(
        text="no draft was accepted on TRITON_ATTN; another attention backend may be needed",
        source="vLLM 0.14, gpt-oss on ROCm", before=(0, 15), platform="rocm",
        attention_backends=("TRITON_ATTN",), model_types=("gpt_oss",),
    ),
    Fault(
        text="the drafter was given the target's TRITON_ATTN, which cannot draft without causality",
        source="vLLM 0.20", methods=("dflash",), before=(0, 21), model_types=("gemma4",),
    ),
    Fault(
        text="the drafter was loaded with the target's quantisation and failed",
        source="vLLM 0.11", methods=("eagle3", "eagle"), before=(0, 12), quantized=True,
    ),
)  # fmt: skip
