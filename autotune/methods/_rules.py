"""Rules that several methods share. Each returns a reason against, or None.

Facts that are not known (None) never speak against anything.
"""

from __future__ import annotations

from autotune.models.facts import ModelFacts

SEQUENTIAL = tuple(range(1, 9))  # default N of methods that draft token after token
# kinds of checkpoints in the speculators format that vLLM 0.32 reads (speculators/algos.py)
SPECULATORS = ("eagle3", "peagle", "dflash", "dflash2", "dspark")
V1_ONLY = "switched live on vLLM 0.32, CPU; on its V2 model runner one start per N"


def multiple_of_n_predict(n: int, model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    """N above n_predict must be a multiple of it (vllm/config/speculative.py, __post_init__)."""
    n_predict = (drafter or model).n_predict
    if n_predict and n > n_predict and n % n_predict:
        return f"N above n_predict must be a multiple of it (n_predict={n_predict})"
    return None


def drafter_n_predict(n: int, model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    """The same rule where only a separate drafter can have n_predict."""
    return multiple_of_n_predict(n, model, drafter) if drafter else None


def wrong_kind(drafter: ModelFacts | None, *accepted: str) -> str | None:
    """The drafter's config.json says that it is another kind of drafter."""
    if drafter and drafter.speculators_type and drafter.speculators_type not in SPECULATORS:
        return f"vLLM reads no speculators checkpoint of kind {drafter.speculators_type!r}"
    if drafter is None or drafter.kind is None or drafter.kind in accepted:
        return None
    shown = drafter.speculators_type or ", ".join(drafter.architectures)
    return f"{drafter.source} is a drafter of another kind ({shown})"


def other_target(model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    """The drafter reads hidden states of another width than the target's."""
    if drafter is None or not drafter.target_hidden_size or not model.hidden_size:
        return None
    if drafter.target_hidden_size == model.hidden_size:
        return None
    return (
        f"{drafter.source} was made for a model with hidden size {drafter.target_hidden_size}; "
        f"{model.source} has {model.hidden_size}"
    )


def other_width(model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    """The drafter's own hidden size must equal the target's (EAGLE-1, Medusa)."""
    if drafter is None or not drafter.hidden_size or not model.hidden_size:
        return None
    if drafter.hidden_size == model.hidden_size:
        return None
    return (
        f"hidden sizes differ: {drafter.source} has {drafter.hidden_size}, "
        f"{model.source} has {model.hidden_size}"
    )


def other_vocabulary(model: ModelFacts, drafter: ModelFacts | None) -> str | None:
    """vLLM refuses a draft model with another vocabulary size than the target's."""
    if drafter is None or not drafter.vocab_size or not model.vocab_size:
        return None
    if drafter.vocab_size == model.vocab_size:
        return None
    return (
        f"vocabulary sizes differ: {drafter.source} has {drafter.vocab_size}, "
        f"{model.source} has {model.vocab_size}"
    )
