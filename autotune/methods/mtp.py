"""MTP: the model's own multi-token-prediction modules draft."""

from __future__ import annotations

from autotune.methods import Method
from autotune.methods._families import has_mtp_code
from autotune.methods._knobs import COMMON, SPARSE_INDICES
from autotune.methods._rules import SEQUENTIAL, multiple_of_n_predict, wrong_kind
from autotune.models.facts import MTP_KEYS, ModelFacts


def check(model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    if drafter is not None:  # a separate MTP checkpoint
        return wrong_kind(drafter, "mtp", "gemma4_mtp")
    model_type = model.model_type or ""
    if model_type == "deepseek_v41":
        return "DeepSeek V4.1 has no MTP modules; its checkpoints carry DSpark stages"
    if model.known and not model.n_predict:
        other = (
            "; its assistant is the method gemma4_mtp" if model_type.startswith("gemma4") else ""
        )
        return f"config.json names no multi-token-prediction layers ({', '.join(MTP_KEYS)}){other}"
    if not has_mtp_code(model):
        return (
            f"vLLM 0.32 runs no MTP modules of {model_type or ', '.join(model.architectures)}; "
            f"with a newer one: --drafter mtp={model.source}"
        )
    return None


METHOD = Method(
    name="mtp",
    vllm_method="mtp",
    summary="the model's own multi-token-prediction modules",
    needs="a model with MTP modules (Qwen3.5, Qwen3.6, DeepSeek, GLM, MiMo, ...)",
    allows="up to n_predict, above it its multiples",
    default_lengths=SEQUENTIAL,
    needs_drafter=False,
    live_on_v2=("MTPSpeculator",),  # not MultiModuleMTPSpeculator, for several modules
    live_note="switched live on vLLM 0.32, CPU; several modules on its V2 runner: one start per N",
    check=check,
    length_rule=multiple_of_n_predict,
    knobs=(*COMMON, SPARSE_INDICES),
)
