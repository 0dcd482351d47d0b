"""P-EAGLE: an EAGLE-3 head trained to fill masked positions, so that it drafts in one pass."""

from __future__ import annotations

from autotune.methods import Method
from autotune.methods._knobs import COMMON
from autotune.methods._rules import drafter_n_predict, other_target
from autotune.models.facts import ModelFacts


def check(model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    if drafter and drafter.kind not in (None, "peagle", "eagle3"):
        return f"{drafter.source} is a drafter of another kind ({drafter.kind})"
    if drafter and drafter.known and not drafter.parallel_token:
        return f"{drafter.source} names no token for parallel drafting (mask_token_id, pard_token)"
    return other_target(model, drafter)


METHOD = Method(
    name="peagle",
    vllm_method="eagle3",
    summary="P-EAGLE head: an EAGLE-3 head that drafts all tokens in one pass",
    needs="a P-EAGLE head trained for the model; vLLM runs it on its V1 runner only",
    allows="any",
    default_lengths=(2, 4, 6, 8),
    needs_drafter=True,
    parallel=True,
    live_n=False,
    live_note="not tried; pard, by the same code of vLLM's, dies when N is switched",
    config={"parallel_drafting": True},
    check=check,
    length_rule=drafter_n_predict,
    knobs=COMMON,
)
