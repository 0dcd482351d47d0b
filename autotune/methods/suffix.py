"""Suffix decoding: like n-gram, with suffix trees over prompts and earlier answers."""

from __future__ import annotations

from autotune.methods import Method

METHOD = Method(
    name="suffix",
    vllm_method="suffix",
    summary="suffix trees over the prompt and earlier answers",
    needs="the package arctic-inference beside vLLM; pays off where answers repeat",
    allows="any; N is a ceiling, drafts follow the match",
    default_lengths=(8, 16, 24),
    needs_drafter=False,
    takes_drafter=False,
    live_n=False,
    live_note="switching N kills the engine (vLLM 0.32): one start per N",
    package="arctic_inference",
    install="pip install arctic-inference==0.1.1",
)
