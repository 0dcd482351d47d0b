"""DSpark: a block drafted in one pass, then corrected token by token by a small Markov head."""

from __future__ import annotations

from autotune.methods import Method
from autotune.methods._knobs import ADAPTIVE, COMMON, TOPK
from autotune.methods._rules import other_target, wrong_kind
from autotune.models.facts import ModelFacts

OMNI = "qwen3_omni_moe"  # vLLM demands N == block size there


def inside(model: ModelFacts) -> bool:
    """DeepSeek V4 and V4.1 checkpoints can carry the DSpark stages themselves."""
    return model.dspark_inside


def check(model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    if drafter and drafter.architectures and drafter.kind is None:
        return f"{drafter.source} is no DSpark drafter ({', '.join(drafter.architectures)})"
    return wrong_kind(drafter, "dspark") or other_target(model, drafter)


def within_block(n: int, model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    """The trained block is the ceiling: above it every position can collapse, not only the last.

    Where the anchor predicts a token too a block of B drafts B tokens, else B-1 (vLLM:
    speculators/algos.py, update_dspark).
    """
    facts = drafter or model
    if not facts.block_size:
        return None
    if model.model_type == OMNI:
        exact = n == facts.block_size
        return None if exact else f"Qwen3-Omni needs N equal to the block size {facts.block_size}"
    ceiling = facts.block_size - (facts.sample_from_anchor is False)
    return f"a block of {facts.block_size} drafts at most {ceiling} tokens" if n > ceiling else None


def whole_block(n: int, version: tuple[int, ...], facts: ModelFacts) -> str | None:
    """vLLM 0.26 and 0.27 refuse N below dspark_block_size (config/speculative.py there)."""
    if (0, 26) <= version <= (0, 27) and facts.dspark_key and n < (facts.block_size or 0):
        return f"vLLM {version[0]}.{version[1]} refuses N below the block of {facts.block_size}"
    return None


METHOD = Method(
    name="dspark",
    vllm_method="dspark",
    summary="DSpark: a block drafted in one pass, refined by a sequential head",
    needs="a DSpark drafter trained for the model",
    allows="1 to block size (- 1 if the anchor predicts nothing)",
    default_lengths=(1, 3, 5, 7),
    needs_drafter=True,
    since=(0, 25),
    parallel=True,
    nested=False,  # masked positions see each other
    live_n=False,
    live_note="not tried: one engine start per N until someone has",
    not_on_cpu="DSpark needs vLLM's V2 model runner, which does not run on a CPU",
    inside=inside,
    check=check,
    length_rule=within_block,
    engine_rule=whole_block,
    knobs=(*COMMON, ADAPTIVE, TOPK),
)
