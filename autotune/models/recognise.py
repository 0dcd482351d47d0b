"""Which method a draft checkpoint is for, told by its config.json alone."""

from __future__ import annotations

from autotune.errors import ConfigurationError
from autotune.methods._families import becomes_mtp
from autotune.methods._rules import SPECULATORS
from autotune.models.facts import ModelFacts, read_facts

HINT = "say which: --drafter METHOD=ID_OR_PATH"
SAME = {"dflash2": "dflash"}  # read by the same method


def method_of(drafter: str) -> str:
    """The catalogue name of the method that a Hub id or folder drafts for.

    Raises ConfigurationError where config.json cannot be read or does not tell.
    """
    return method_of_facts(read_facts(drafter))


def method_of_facts(facts: ModelFacts) -> str:
    """The same for a checkpoint whose config.json was read."""
    source = facts.source
    if not facts.known:
        raise ConfigurationError(
            f"what {source} drafts for cannot be told: config.json was not read ({facts.unknown})",
            HINT,
        )
    if facts.speculators_type and facts.speculators_type not in SPECULATORS:
        raise ConfigurationError(
            f"{source}: vLLM reads no speculators checkpoint of kind {facts.speculators_type!r}"
        )
    if facts.kind == "eagle3" and facts.parallel_token:
        return "peagle"
    if facts.kind:
        return SAME.get(facts.kind, facts.kind)
    return _language_model(facts)


def _language_model(facts: ModelFacts) -> str:
    source = facts.source
    named = ", ".join(facts.architectures) or facts.model_type
    if not named:
        raise ConfigurationError(
            f"what {source} drafts for cannot be told: its config.json names no architecture", HINT
        )
    if facts.parallel_token:
        return "pard"
    if becomes_mtp(facts):
        raise ConfigurationError(
            f"{source} is a whole model ({named}), which vLLM would load as MTP modules",
            hint="give a drafter; a model's own MTP modules need no --drafter",
        )
    if facts.layers == 1:
        raise ConfigurationError(
            f"{source} can be an EAGLE head or a small language model: one layer ({named})",
            hint="say which: --drafter eagle=... or --drafter draft_model=...",
        )
    return "draft_model"
