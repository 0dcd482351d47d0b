"""MLP speculator: known by name only; vLLM lists it and cannot run it."""

from __future__ import annotations

from autotune.methods import Method

METHOD = Method(
    name="mlp_speculator",
    vllm_method="mlp_speculator",
    summary="multi-stage MLP that drafts from the last hidden state",
    needs="a vLLM that can run it: none since the V1 engine",
    allows="none",
    default_lengths=(1,),
    needs_drafter=True,
    live_n=False,
    live_note="cannot run",
    refused="vLLM's V1 engine took the MLP speculator out of its model registry",
)
