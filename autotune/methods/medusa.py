"""Medusa: several heads on the target, each predicting one later token, all in one pass."""

from __future__ import annotations

from autotune.methods import Method
from autotune.methods._rules import other_width, wrong_kind
from autotune.models.facts import ModelFacts


def check(model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    return wrong_kind(drafter, "medusa") or other_width(model, drafter)


def within_heads(n: int, model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    """vLLM builds N heads and loads those of the checkpoint that fit: more stay untrained."""
    if drafter and drafter.num_heads and n > drafter.num_heads:
        return f"the checkpoint has {drafter.num_heads} heads; further ones would be untrained"
    return None


METHOD = Method(
    name="medusa",
    vllm_method="medusa",
    summary="extra heads on the model, one per later token",
    needs="Medusa heads trained for the model",
    allows="1 to the number of heads",
    default_lengths=(1, 3, 5),
    needs_drafter=True,
    parallel=True,
    live_n=False,
    live_note="switching N kills the engine (vLLM 0.32): one start per N",
    check=check,
    length_rule=within_heads,
)
