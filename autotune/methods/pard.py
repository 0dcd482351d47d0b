"""PARD: a draft model trained to fill masked positions, so that it drafts in one pass."""

from __future__ import annotations

from autotune.methods import Method
from autotune.methods import draft_model as sequential
from autotune.methods._knobs import COMMON
from autotune.methods._rules import drafter_n_predict
from autotune.models.facts import ModelFacts


def check(model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    if drafter and drafter.known and not drafter.parallel_token:
        return f"{drafter.source} names no token for parallel drafting (pard_token)"
    return sequential.check(model, drafter)


METHOD = Method(
    name="pard",
    vllm_method="draft_model",
    summary="a draft model trained to draft all tokens in one pass",
    needs="a PARD model with the same vocabulary",
    same_vocabulary=True,
    allows="any",
    default_lengths=(2, 4, 6, 8),
    needs_drafter=True,
    parallel=True,
    live_n=False,
    live_note="switching N kills the engine (vLLM 0.32): one start per N",
    config={"parallel_drafting": True},
    check=check,
    length_rule=drafter_n_predict,
    knobs=COMMON,
)
