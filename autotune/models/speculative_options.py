"""`--speculative-option METHOD.KEY=VALUE`: further keys of vLLM's speculative_config."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from autotune.errors import ConfigurationError
from autotune.methods import get_method

Options = Mapping[str, Mapping[str, Any]]  # by method, then by key
HINT = "write METHOD.KEY=VALUE, e.g. ngram.prompt_lookup_max=3; `spectune methods NAME` lists KEYs"
WORD = re.compile(r"[A-Za-z_][\w./-]*")


def parse_options(values: Iterable[str]) -> dict[str, dict[str, Any]]:
    """`ngram.prompt_lookup_max=3`, ... -> {method: {key: value}}. Raises ConfigurationError.

    VALUE is JSON; a bare word stands for a string.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in values:
        left, equals, right = text.partition("=")
        name, dot, key = (part.strip() for part in left.partition("."))
        if not (equals and dot and name and key):
            raise ConfigurationError(f"bad speculative option {text!r}", HINT)
        value, options = _value(right.strip(), text), found.setdefault(get_method(name).name, {})
        if key in options and options[key] != value:
            raise ConfigurationError(f"two values for {name}.{key}: one study tries one of them")
        options[key] = value
    for name, options in found.items():
        get_method(name).with_options(options)
    return found


def _value(text: str, whole: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if WORD.fullmatch(text):
            return text
    raise ConfigurationError(f"bad speculative option {whole!r}: {text!r} is no JSON value", HINT)
