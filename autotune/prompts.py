"""Prompts: read them from JSONL, and notice those on which acceptance must not be measured."""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any

from autotune.errors import ConfigurationError
from autotune.records import Message, Prompt

log = logging.getLogger(__name__)

EXPECTED = (
    'each line is {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}, '
    'with an optional "id"'
)


def parse_jsonl(data: bytes, source: str) -> tuple[Prompt, ...]:
    """Parse a workload file. `source` names it in messages.

    Blank lines and a byte order mark are tolerated, other keys are ignored with a warning.
    Raises ConfigurationError, with the line, for everything else.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"{source}, line {number}: not valid UTF-8", EXPECTED) from error
    prompts: list[Prompt] = []
    seen: dict[str, int] = {}
    ignored: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = _json_object(line)
            prompt = _prompt(entry, f"prompt-{len(prompts) + 1:04d}")
            if prompt.id in seen:
                raise ValueError(f"id {prompt.id!r} is already used on line {seen[prompt.id]}")
        except ValueError as error:
            raise ConfigurationError(f"{source}, line {number}: {error}", EXPECTED) from error
        prompts.append(prompt)
        seen[prompt.id] = number
        ignored |= entry.keys() - {"id", "prompt", "messages"}
    if not prompts:
        raise ConfigurationError(f"{source} contains no prompts", EXPECTED)
    if ignored:
        log.warning("%s: keys that are ignored: %s", source, ", ".join(sorted(ignored)))
    return tuple(prompts)


def _json_object(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON that can be read ({error})") from error
    if not isinstance(entry, dict):
        raise ValueError(f"a JSON object is expected, not {_kind(entry)}")
    return entry


def _prompt(entry: Mapping[str, Any], default_id: str) -> Prompt:
    given = [key for key in ("prompt", "messages") if key in entry]
    if len(given) != 1:
        raise ValueError('"prompt" and "messages" are both there' if given else "no prompt")
    prompt_id = default_id if entry.get("id") is None else entry["id"]
    if isinstance(prompt_id, bool) or not isinstance(prompt_id, str | int):
        raise ValueError(f'"id" must be a string, not {_kind(prompt_id)}')
    prompt_id = _text(str(prompt_id), '"id"')
    if given == ["prompt"]:
        return user_prompt(prompt_id, _text(entry["prompt"], '"prompt"'))
    items = entry["messages"]
    if not isinstance(items, list) or not items:
        raise ValueError(f'"messages" must be a list with at least one message, not {_kind(items)}')
    messages = tuple(_message(item, f"message {n}") for n, item in enumerate(items, 1))
    if messages[-1].role != "user":
        raise ValueError(f'the last message must have the role "user", not "{messages[-1].role}"')
    return Prompt(id=prompt_id, messages=messages)


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, dict):
        raise ValueError(f"{where} must be an object, not {_kind(item)}")
    if item.keys() != {"role", "content"}:
        keys = ", ".join(sorted(item)) or "none"
        raise ValueError(f'{where} must have the keys "role" and "content", it has: {keys}')
    if item["role"] not in ("system", "user", "assistant"):
        raise ValueError(f'{where}: role must be "system", "user" or "assistant"')
    return Message(role=item["role"], content=_text(item["content"], f"{where}: content"))


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} must be a string, not {_kind(value)}")
    if not value.strip():
        raise ValueError(f"{where} is empty")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError(f"{where} contains half of a surrogate pair")
    return value


def _kind(value: Any) -> str:
    """What a JSON value is, in JSON's words."""
    if value is None:
        return "null"
    names = {bool: "true or false", str: "a string", list: "a list", dict: "an object"}
    return "an empty list" if value == [] else names.get(type(value), "a number")


def user_prompt(prompt_id: str, text: str) -> Prompt:
    """A prompt that is one user message."""
    return Prompt(id=prompt_id, messages=(Message(role="user", content=text),))


# ------------------------------------------------------------------------------------- quality

SHINGLE = 6  # words; shorter repetitions are normal in natural text
NOISE_WORDS = (60, 200)  # fewest words to judge by, most words looked at
NOISE_DISTINCT = 0.93  # natural text of 60 words and more repeats its function words
NOISE_SCRIPTS = 5  # alphabets in one prompt


def is_padded(prompt: Prompt) -> bool:
    """Whether more than half of the text is word sequences that occur again in it."""
    words = re.findall(r"\w+", _content(prompt).lower())
    shingles = [tuple(words[i : i + SHINGLE]) for i in range(len(words) - SHINGLE + 1)]
    count = Counter(shingles)
    repeated = sum(1 for shingle in shingles if count[shingle] > 1)
    return repeated > 0.5 * len(shingles)


def is_noise(prompt: Prompt) -> bool:
    """Whether the text looks like randomly drawn tokens: no word returns, or many alphabets."""
    text = _content(prompt)
    words = re.findall(r"[^\W\d_]+", text.lower())[: NOISE_WORDS[1]]
    if len(words) >= NOISE_WORDS[0] and len(set(words)) > NOISE_DISTINCT * len(words):
        return True
    scripts = Counter(_script(char) for char in text if char.isalpha())
    return sum(1 for letters in scripts.values() if letters > 1) >= NOISE_SCRIPTS


def _script(char: str) -> str:
    """First word of the letter's Unicode name; Japanese counts as one script with Chinese."""
    name = unicodedata.name(char, "UNKNOWN").split(maxsplit=1)[0]
    return "CJK" if name in ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA") else name


def _content(prompt: Prompt) -> str:
    return "\n".join(message.content for message in prompt.messages)
