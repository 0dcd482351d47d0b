"""Gemma 4 MTP: Google's assistant checkpoint drafts from the target's hidden states and KV cache.

vLLM's method is "mtp" with a model; "gemma4_mtp" is its deprecated name there.
"""

from __future__ import annotations

from autotune.methods import Method
from autotune.methods._knobs import COMMON
from autotune.methods._rules import SEQUENTIAL, multiple_of_n_predict, other_target
from autotune.models.facts import ModelFacts

ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant", "gemma4_mtp")


def check(model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    if model.model_type and not model.model_type.startswith("gemma4"):
        return f"only for Gemma 4 models; {model.source} is {model.model_type}"
    if drafter and drafter.model_type and drafter.model_type not in ASSISTANTS:
        return f"{drafter.source} is no Gemma 4 assistant but {drafter.model_type}"
    return other_target(model, drafter)


METHOD = Method(
    name="gemma4_mtp",
    vllm_method="mtp",
    summary="Google's assistant checkpoint of a Gemma 4 model",
    needs="the model's assistant (google/...-it-assistant)",
    allows="any",
    default_lengths=SEQUENTIAL,
    needs_drafter=True,
    since=(0, 21),
    live_on_v2=("Gemma4Speculator",),
    check=check,
    length_rule=multiple_of_n_predict,
    knobs=COMMON,
)
