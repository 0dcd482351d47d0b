"""Draft model: a small language model with the target's vocabulary drafts token after token."""

from __future__ import annotations

from autotune.methods import Method
from autotune.methods._rules import SEQUENTIAL, V1_ONLY, drafter_n_predict, other_vocabulary
from autotune.model_facts import ModelFacts

# A draft checkpoint of these types is rewritten into its MTP modules before vLLM looks at
# `method`, so it cannot serve as a draft model (vllm/config/speculative.py, hf_config_override).
# fmt: off
REWRITTEN_TYPES = frozenset((
    "bailing_hybrid", "deepseek_v3", "deepseek_v32", "deepseek_v4", "deepseek_v41",
    "dots3_note", "ernie4_5_moe", "exaone4_5", "exaone_moe", "gemma4_assistant",
    "gemma4_unified_assistant", "glm5_next", "glm_moe_dsa", "hy_v3", "hy_v4",
    "inkling_mm_model", "inkling_model", "intern_s2_preview", "interns2_mobius", "kimi_k3",
    "longcat_flash", "minimax_m3_vl", "pangu_ultra_moe", "qwen3_5", "qwen3_5_moe",
    "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp", "qwen4_exp_text", "step3p5",
    "step3p7",
))
REWRITTEN_ARCHITECTURES = frozenset((
    "MiMoForCausalLM", "MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM",
    "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM", "GlmOcrForConditionalGeneration",
))
# fmt: on


def check(model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    if drafter is None:
        return None
    if drafter.kind:
        return f"{drafter.source} is no language model but a drafter of kind {drafter.kind}"
    if drafter.model_type in REWRITTEN_TYPES or REWRITTEN_ARCHITECTURES & set(
        drafter.architectures
    ):
        return f"vLLM would load {drafter.source} ({drafter.model_type}) as MTP modules"
    return other_vocabulary(model, drafter)


METHOD = Method(
    name="draft_model",
    vllm_method="draft_model",
    summary="a small language model drafts for the large one",
    needs="a small model with the same vocabulary",
    allows="any",
    default_lengths=SEQUENTIAL,
    needs_drafter=True,
    live_note=V1_ONLY,
    check=check,
    length_rule=drafter_n_predict,
)
