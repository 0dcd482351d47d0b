"""Draft model: a small language model with the target's vocabulary drafts token after token."""

from __future__ import annotations

from autotune.methods import Method
from autotune.methods._families import becomes_mtp
from autotune.methods._knobs import COMMON, OTHER_VOCABULARY
from autotune.methods._rules import SEQUENTIAL, V1_ONLY, drafter_n_predict
from autotune.models.facts import ModelFacts


def check(model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    if drafter is None:
        return None
    if drafter.kind:
        return f"{drafter.source} is no language model but a drafter of kind {drafter.kind}"
    if becomes_mtp(drafter):
        return f"vLLM would load {drafter.source} ({drafter.model_type}) as MTP modules"
    return None


METHOD = Method(
    name="draft_model",
    vllm_method="draft_model",
    summary="a small language model drafts for the large one",
    needs="a small model with the same vocabulary (another one: use_heterogeneous_vocab)",
    same_vocabulary=True,
    allows="any",
    default_lengths=SEQUENTIAL,
    needs_drafter=True,
    live_note=V1_ONLY,
    check=check,
    length_rule=drafter_n_predict,
    knobs=(*COMMON, OTHER_VOCABULARY),
)
