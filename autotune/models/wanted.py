"""What users write about methods, lengths and drafters -> checked values."""

from __future__ import annotations

import re
from collections.abc import Iterable

from autotune.errors import ConfigurationError
from autotune.methods import Method, get_method
from autotune.models.catalog import DrafterEntry, existing_path, is_hub_id, local_checkpoint
from autotune.models.recognise import method_of
from autotune.records import BASELINE

MAX_LENGTH = 64
LENGTHS_HINT = "write 1-8, 1,3,7 or 1-4,6"


def own_drafter(method: Method, value: str) -> DrafterEntry:
    """The drafter a user names: an existing folder (made absolute) or a Hub id."""
    if not method.takes_drafter:
        raise ConfigurationError(f"{method.name} takes no drafter (--drafter {method.name}=...)")
    if folder := existing_path(value):
        return DrafterEntry(id=local_checkpoint(folder), checked="source")
    if is_hub_id(value):
        return DrafterEntry(id=value, checked="source")  # the user vouches for it
    raise ConfigurationError(
        f"drafter {value!r} is neither a folder nor a Hub id", hint="write org/name or a path"
    )


def parse_lengths(text: str) -> tuple[int, ...]:
    """`1-8`, `1,3,7`, `1-4,6` -> ascending, each once. Raises ConfigurationError."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part, re.ASCII)
        if not match:
            raise ConfigurationError(f"bad number of speculative tokens {text!r}", LENGTHS_HINT)
        low, high = int(match[1]), int(match[2] or match[1])
        if low > high:
            raise ConfigurationError(f"{part.strip()!r} counts down", f"write {high}-{low}")
        if low == 0:
            raise ConfigurationError(
                "0 speculative tokens is the baseline, which is always measured", LENGTHS_HINT
            )
        if high > MAX_LENGTH:
            raise ConfigurationError(f"{high} speculative tokens: at most {MAX_LENGTH} are tried")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def parse_methods(text: str) -> list[str]:
    """`mtp,eagle3` -> checked names, each once, in the order given. Raises ConfigurationError."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ConfigurationError(f"empty method name in {text!r}", hint="write e.g. mtp,eagle3")
    if BASELINE in names:
        raise ConfigurationError(f"{BASELINE!r} is the baseline, which is always measured")
    return list(dict.fromkeys(get_method(name).name for name in names))


def parse_drafters(values: Iterable[str]) -> dict[str, str]:
    """`eagle3=org/x`, `folder`, ... -> {method: drafter}. Raises ConfigurationError.

    Without METHOD= the checkpoint's config.json tells the method.
    """
    found: dict[str, str] = {}
    for value in values:
        name, drafter = _named_drafter(value.strip())
        method = get_method(name)
        if found.get(method.name, drafter) != drafter:
            raise ConfigurationError(f"two drafters for {method.name}: one method has one drafter")
        own_drafter(method, drafter)
        found[method.name] = drafter
    return found


def _named_drafter(value: str) -> tuple[str, str]:
    """(method, drafter) of one --drafter."""
    name, equals, drafter = (part.strip() for part in value.partition("="))
    if equals and not existing_path(value):
        if not (name and drafter):
            raise ConfigurationError(f"bad drafter {value!r}", hint="write METHOD=ID_OR_PATH")
        return name, drafter
    if folder := existing_path(value):
        return method_of(local_checkpoint(folder)), value
    if is_hub_id(value):
        return method_of(value), value
    raise ConfigurationError(
        f"bad drafter {value!r}", hint="write METHOD=ID_OR_PATH, org/name or an existing folder"
    )
