"""`--discover`: drafters on the Hugging Face Hub that name a model as theirs.

The Hub is asked for checkpoints that give the model as their base model or carry its name, and
whose own name sounds like a drafter. Which method one is for, and whether it fits, is read from its
config.json; one that says it was made for another model is left out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.errors import ConfigurationError, SpectuneError
from autotune.methods import get_method
from autotune.models.catalog import DrafterEntry, ResolvedModel
from autotune.models.config_json import offline
from autotune.models.facts import ModelFacts, read_facts
from autotune.models.recognise import method_of_facts
from autotune.records import Record

log = logging.getLogger(__name__)

# what drafters are called on the Hub
WORDS = ("eagle", "dflash", "dspark", "speculator", "assistant", "medusa", "pard", "mtp")
FORMATS = ("gguf", "mlx")  # copies that vLLM does not draft from
TIMEOUT_SECONDS = 10.0
PAGE = 50  # entries of one answer of the Hub
MOST_READ = 24  # config.json files read, those of the most downloaded checkpoints


class DiscoveryError(SpectuneError):
    """The Hub could not be asked."""


class Found(Record):
    """A checkpoint of the Hub that may draft for the model."""

    id: str
    downloads: int = 0
    bases: tuple[str, ...] = ()  # base models that its card names, lower case


def with_discovered(model: ResolvedModel) -> tuple[ResolvedModel, tuple[str, ...]]:
    """The model with the drafters that the Hub has for it, and what to say about that.

    Where the Hub cannot be asked the model stays as it is and the reason is said.
    """
    try:
        drafters = discover(model)
    except DiscoveryError as error:
        return model, (f"--discover found nothing: {error.message}",)
    if not drafters:
        return model, (f"--discover found no drafter that names {model.model}",)
    said = [
        f"{method}: {entries[0].id} was found by --discover ({entries[0].note})"
        for method, entries in drafters.items()
        if not (model.entry and method in model.entry.drafters)
    ]
    return model.model_copy(update={"discovered": drafters}), tuple(said)


def discover(model: ResolvedModel) -> dict[str, tuple[DrafterEntry, ...]]:
    """Drafters by method, the most downloaded first. Raises DiscoveryError."""
    if model.local:
        raise DiscoveryError(f"{model.model} is a folder, and the Hub knows models by their names")
    if offline():
        raise DiscoveryError("Hugging Face is set to offline")
    target = read_facts(model.model)
    found: dict[str, tuple[DrafterEntry, ...]] = {}
    for candidate in candidates(model.model)[:MOST_READ]:
        if method := _method(candidate, model.model, target):
            entry = DrafterEntry(id=candidate.id, note=f"{candidate.downloads} downloads")
            found[method] = (*found.get(method, ()), entry)
    return dict(sorted(found.items()))


def candidates(target: str) -> list[Found]:
    """What sounds like a drafter of the target, the most downloaded first."""
    seen: dict[str, Found] = {}
    for item in _listed(target):
        found = _found(item)
        if found and _names(found, target):
            seen.setdefault(found.id, found)
    return sorted(seen.values(), key=lambda found: (-found.downloads, found.id))


def _listed(target: str) -> Iterator[Any]:
    short = target.rpartition("/")[2]
    yield from _ask({"search": short})
    for word in WORDS:
        yield from _ask({"search": word, "filter": f"base_model:{target}"})


def _ask(query: Mapping[str, str]) -> list[Any]:
    """One answer of the Hub's list of models. Raises DiscoveryError."""
    try:
        from huggingface_hub import constants, get_session
        from huggingface_hub.utils._headers import build_hf_headers
    except ImportError as error:
        raise DiscoveryError("huggingface_hub is not installed") from error
    try:
        answer = get_session().get(
            f"{constants.ENDPOINT}/api/models",
            params={**query, "sort": "downloads", "limit": str(PAGE)},
            headers=build_hf_headers(),
            timeout=TIMEOUT_SECONDS,
        )
        answer.raise_for_status()
        listed = answer.json()
    except Exception as error:  # clients raise their HTTP library's own errors
        log.debug("the Hub, asked for %s: %s", query, error)
        raise DiscoveryError(f"the Hub cannot be asked: {type(error).__name__}") from error
    if not isinstance(listed, list):
        raise DiscoveryError("the Hub's answer is no list of models")
    return listed


def _found(item: Any) -> Found | None:
    if not isinstance(item, dict) or not isinstance(item.get("id"), str):
        return None
    tags = [tag.lower() for tag in item.get("tags") or () if isinstance(tag, str)]
    bases = {tag.rpartition(":")[2] for tag in tags if tag.startswith("base_model:")}
    downloads = item.get("downloads")
    return Found(
        id=item["id"],
        downloads=downloads if isinstance(downloads, int) and downloads > 0 else 0,
        bases=tuple(sorted(bases)),
    )


def _names(found: Found, target: str) -> bool:
    """Whether it sounds like a drafter, and names the target and no other model as its base."""
    name = found.id.lower()
    if found.id == target or any(part in re.split(r"[-_./]", name) for part in FORMATS):
        return False
    if not any(word in name for word in WORDS):
        return False
    if found.bases:
        return target.lower() in found.bases
    short = re.escape(target.rpartition("/")[2].lower())
    return re.search(rf"(?<![a-z0-9.]){short}(?![a-z0-9])", name) is not None


def _method(found: Found, name: str, target: ModelFacts) -> str | None:
    """The method it drafts for; None where it cannot be told or does not fit."""
    try:
        facts = read_facts(found.id)
        method = get_method(method_of_facts(facts))
    except ConfigurationError as error:
        log.debug("%s: %s", found.id, error.message)
        return None
    if method.name == "draft_model" or other_verifier(facts, name):
        return None  # a language model is no drafter of this target only for its name
    reason = method.why_not(target, facts)
    if reason:
        log.debug("%s: %s", found.id, reason)
    return None if reason else method.name


def other_verifier(drafter: ModelFacts, target: str) -> str | None:
    """The model that the drafter says it was made for, if that is not this one."""
    made_for = (drafter.verifier or "").rstrip("/").rpartition("/")[2]
    same = made_for.lower() == target.rstrip("/").rpartition("/")[2].lower()
    return None if same or not made_for else drafter.verifier
