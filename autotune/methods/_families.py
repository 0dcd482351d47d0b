"""Families whose MTP modules vLLM can run: what config.json calls them.

Read in vLLM 0.32, config/speculative.py, hf_config_override; a test compares the installed one.
vLLM rewrites a draft checkpoint of these families into its MTP modules before it looks at
`method`, so such a checkpoint cannot serve as a draft model.
"""

from __future__ import annotations

from autotune.models.facts import ModelFacts

# fmt: off
MTP_TYPES = frozenset((
    "bailing_hybrid", "deepseek_v3", "deepseek_v32", "deepseek_v4", "deepseek_v41",
    "dots3_note", "ernie4_5_moe", "exaone4_5", "exaone_moe", "gemma4_assistant",
    "gemma4_unified_assistant", "glm5_next", "glm_moe_dsa", "hy_v3", "hy_v4",
    "inkling_mm_model", "inkling_model", "intern_s2_preview", "interns2_mobius", "kimi_k3",
    "longcat_flash", "minimax_m3_vl", "nemotron_h", "nemotron_h_puzzle", "pangu_ultra_moe",
    "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp",
    "qwen4_exp_text", "step3p5", "step3p7",
))
MTP_ARCHITECTURES = frozenset((
    "BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM",
    "BailingMoeV3VLForConditionalGeneration", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM",
    "GlmOcrForConditionalGeneration", "MiMoForCausalLM", "MiMoV2FlashForCausalLM",
    "MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM", "MiniMaxM3SparseForConditionalGeneration",
    "NemotronH_Omni_Reasoning_V3", "NemotronH_Super_Omni_Reasoning_V3", "Step3p5ForCausalLM",
    "Step3p7ForConditionalGeneration",
))
# fmt: on
ONLY_WITH_MODULES = frozenset(("nemotron_h", "nemotron_h_puzzle"))  # rewritten if they have any


def has_mtp_code(model: ModelFacts) -> bool:
    """Whether vLLM has MTP modules for the family; an unknown family counts as one that it has."""
    if not model.model_type and not model.architectures:
        return True
    known = (model.model_type or "").removesuffix("_mtp") in MTP_TYPES
    return known or model.kind == "mtp" or bool(MTP_ARCHITECTURES.intersection(model.architectures))


def becomes_mtp(drafter: ModelFacts) -> bool:
    """Whether vLLM loads this language model as MTP modules when it is given as a drafter."""
    if drafter.model_type in ONLY_WITH_MODULES:
        return bool(drafter.n_predict)
    return drafter.model_type in MTP_TYPES or bool(
        MTP_ARCHITECTURES.intersection(drafter.architectures)
    )
