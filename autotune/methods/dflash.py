"""DFlash: a block-diffusion drafter fills a block of masked positions in one pass."""

from __future__ import annotations

from autotune.methods import Method
from autotune.methods._knobs import COMMON
from autotune.methods._rules import V1_ONLY, drafter_n_predict, other_target, wrong_kind
from autotune.models.facts import ModelFacts


def check(model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    if drafter and drafter.sample_from_anchor:
        return f"{drafter.source} samples from its anchor, which vLLM refuses for DFlash"
    return wrong_kind(drafter, "dflash", "dflash2") or other_target(model, drafter)


def within_block(n: int, model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    """A block of B drafts B-1 tokens: its first slot repeats the last confirmed token.

    vLLM does not check this; above it acceptance falls without any error.
    """
    if drafter and drafter.block_size and n > drafter.block_size - 1:
        return f"a block of {drafter.block_size} drafts at most {drafter.block_size - 1} tokens"
    if drafter and not drafter.block_size and 0 < (drafter.speculative_tokens or 0) < n:
        return f"the drafter was trained for {drafter.speculative_tokens} tokens"
    return drafter_n_predict(n, model, drafter)


METHOD = Method(
    name="dflash",
    vllm_method="dflash",
    summary="DFlash: a block of tokens drafted in one pass",
    needs="a DFlash drafter trained for the model",
    allows="1 to block size - 1",
    default_lengths=tuple(range(1, 16)),
    needs_drafter=True,
    live_note=V1_ONLY,
    since=(0, 20),
    parallel=True,
    nested=False,  # masked positions see each other
    check=check,
    length_rule=within_block,
    knobs=COMMON,
)
