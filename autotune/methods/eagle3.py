"""EAGLE-3: a small head drafts from hidden states of several of the target's layers."""

from __future__ import annotations

from autotune.methods import Method
from autotune.methods._knobs import COMMON
from autotune.methods._rules import SEQUENTIAL, drafter_n_predict, other_target, wrong_kind
from autotune.models.facts import ModelFacts


def check(model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    if drafter and drafter.kind == "peagle":
        return f"{drafter.source} is a P-EAGLE head: that is the method peagle"
    return wrong_kind(drafter, "eagle3") or other_target(model, drafter)


METHOD = Method(
    name="eagle3",
    vllm_method="eagle3",
    summary="EAGLE-3 head: drafts from several of the target's layers",
    needs="an EAGLE-3 head trained for the model",
    allows="any",
    default_lengths=SEQUENTIAL,
    needs_drafter=True,
    live_on_v2=("EagleSpeculator",),
    check=check,
    length_rule=drafter_n_predict,
    knobs=COMMON,
)
