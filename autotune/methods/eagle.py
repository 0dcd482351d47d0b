"""EAGLE: one small transformer layer drafts from the target's last hidden state."""

from __future__ import annotations

from autotune.methods import Method
from autotune.methods._knobs import COMMON
from autotune.methods._rules import SEQUENTIAL, drafter_n_predict, other_width, wrong_kind
from autotune.models.facts import ModelFacts


def check(model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    return wrong_kind(drafter, "eagle") or other_width(model, drafter)


METHOD = Method(
    name="eagle",
    vllm_method="eagle",
    summary="EAGLE head: drafts from the target's last hidden state",
    needs="an EAGLE head trained for the model",
    allows="any",
    default_lengths=SEQUENTIAL,
    needs_drafter=True,
    live_on_v2=("EagleSpeculator",),
    check=check,
    length_rule=drafter_n_predict,
    knobs=COMMON,
)
