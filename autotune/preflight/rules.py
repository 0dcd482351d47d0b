"""What vLLM does not check before a start, or never: each rule looks at one method's candidates.

A rule is a function from a Situation to a Finding or None. Facts that are not known never speak
against anything. Where a rule comes from stands with it. Faults of versions and machines are not
here but in machine/fault_table.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.models.facts import ModelFacts
from autotune.preflight.client import EngineFacts
from autotune.records import MethodSpace, Record

LORA_FLAGS = ("--enable-lora", "--lora-modules")
STRUCTURED_FLAGS = (
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "--structured-outputs-config",
)


class Finding(Record):
    """What a rule found about a method."""

    text: str
    refuse: bool = False  # else a warning


@dataclass(frozen=True)
class Situation:
    """What a rule may look at. `facts` are of the start without speculation."""

    space: MethodSpace
    drafter: ModelFacts | None
    facts: EngineFacts
    flags: Mapping[str, str]  # what the user wrote after `--`, as vLLM reads it
    request_tokens: Sequence[int] | None = None  # each prompt with its longest answer


def findings(situation: Situation) -> list[Finding]:
    return [found for rule in RULES if (found := rule(situation)) is not None]


def refused_sampling(it: Situation) -> Finding | None:
    """vLLM answers a request that has min_p with an error wherever it speculates.

    vllm/sampling_params.py, _validate_spec_decode (0.32). Its default comes from the model's
    generation_config.json or --override-generation-config.
    """
    min_p = (it.facts.sampling or {}).get("min_p")
    if not isinstance(min_p, (int, float)) or min_p <= 0:
        return None
    return Finding(
        refuse=True,
        text=f"requests get min_p={min_p} by default (generation_config.json or a flag), and vLLM "
        "refuses min_p where it speculates; -- --generation-config vllm leaves it out",
    )


def logits_processors(it: Situation) -> Finding | None:
    """V1 runner: `STR_SPEC_DEC_REJECTS_LOGITSPROCS`, raised when the worker is up (0.32)."""
    if not it.facts.logits_processors or it.facts.v2_runner is not False:
        return None
    names = ", ".join(it.facts.logits_processors)
    return Finding(
        refuse=True, text=f"vLLM takes no custom logits processors where it speculates ({names})"
    )


def adapters(it: Situation) -> Finding | None:
    """What a drafter accepts of the model says nothing about an adapter on it."""
    if not any(flag in it.flags for flag in LORA_FLAGS):
        return None
    return Finding(
        text="measured on the model without an adapter: with LoRA, acceptance can be another; "
        "try requests with the adapter before serving"
    )


def structured_outputs(it: Situation) -> Finding | None:
    """A grammar refuses drafts that the prompts measured here would have accepted."""
    flag = next((flag for flag in STRUCTURED_FLAGS if flag in it.flags), None)
    if flag is None:
        return None
    return Finding(
        text=f"{flag}: tool calls and JSON schemas are not measured here; fewer of their drafts "
        "may be accepted"
    )


def beyond_the_drafter(it: Situation) -> Finding | None:
    """Requests longer than the drafter was trained for: accepted less, up to slower than nothing.

    vLLM 0.32 stretches an EAGLE head's positions to the target's, and `max_model_len` of a
    speculative config does not stop drafting beyond it.
    """
    known = it.drafter.max_position_embeddings if it.drafter else None
    if not known or it.drafter is None or not it.request_tokens:
        return None
    longer = [tokens for tokens in it.request_tokens if tokens > known]
    if not longer:
        return None
    return Finding(
        text=f"{it.space.method}: {it.drafter.source} was trained to {known} positions; "
        f"{len(longer)} of {len(it.request_tokens)} requests can be longer (up to {max(longer)} "
        "tokens), where drafts are worth less: tune for them with a workload of their own"
    )


RULES: tuple[Callable[[Situation], Finding | None], ...] = (
    refused_sampling,
    logits_processors,
    adapters,
    structured_outputs,
    beyond_the_drafter,
)
