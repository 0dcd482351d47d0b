"""Arguments of `vllm serve`, taken apart as vLLM's own parser does it, without vLLM.

vLLM (0.24 to 0.32) reads underscores in a flag as dashes, `--flag.part VALUE` as a part of a JSON
value, `-O3` as --optimization-level, and a YAML file (`--config`) in front of the command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from autotune.errors import ConfigurationError
from autotune.records import BASELINE

if TYPE_CHECKING:
    from autotune.records import Recommendation

CONFIG = "--config"
# vLLM refuses to start with these where nothing is drafted
ONLY_WITH_DRAFTS = ("--per-request-spec-decode-metrics",)
FLAG = re.compile(r"--?[A-Za-z][^=]*")
LEVEL = "--optimization-level"


class Option(NamedTuple):
    """One flag with what belongs to it; no values: a switch."""

    flag: str  # dashes for underscores up to the first dot
    values: tuple[str, ...]
    tokens: tuple[str, ...]  # as the user wrote them

    @property
    def dotted(self) -> bool:
        return "." in self.flag


def serve_args(speculative_config: dict[str, Any] | None) -> tuple[str, ...]:
    """Arguments to append to `vllm serve MODEL`; none when speculation is not recommended."""
    if speculative_config is None:
        return ()
    return ("--speculative-config", json.dumps(speculative_config, separators=(",", ":")))


def split_options(arguments: Sequence[str]) -> list[Option]:
    """The options in their order. Raises ConfigurationError for what no flag precedes."""
    rest, found = list(arguments), []
    if rest and rest[-1] == "--":
        rest.pop()  # ends the options; nothing follows
    while rest:
        token = rest.pop(0)
        if FLAG.match(token) is None:
            raise ConfigurationError(
                f"{token!r} after -- belongs to no flag of vLLM",
                hint="write it as --flag=value",
            )
        name, equals, value = token.partition("=")
        level = re.fullmatch(r"-O=?(\w+)", token)
        if level is not None:
            option = Option(LEVEL, (level[1],), (token,))
        elif equals:
            option = Option(dashed(name), (value,), (token,))
        else:
            count = _values_ahead(rest, dotted="." in name)
            values, rest = tuple(rest[:count]), rest[count:]
            flag = LEVEL if name == "-O" else dashed(name)
            option = Option(flag, values, (token, *values))
        found.append(option)
    return found


def is_value(token: str) -> bool:
    """Whether vLLM's parser takes a token that follows a flag as its value.

    A negative number with a point is no value: vLLM reads `-0.5` as a flag with a part.
    """
    return not token.startswith("-") or token == "-" or re.fullmatch(r"-\d+", token) is not None


def dashed(flag: str) -> str:
    """`--a_b.c_d` -> `--a-b.c_d`."""
    name, dot, part = flag.partition(".")
    return name.replace("_", "-") + dot + part


def served_engine_args(r: Recommendation) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The user's arguments for the final command, and what must be said about them.

    Where nothing is drafted, flags that vLLM then refuses are left out (a --config file of the
    user's is not looked into: it may be gone).
    """
    if r.method != BASELINE:
        return r.engine_args, ()
    try:
        options = split_options(r.engine_args)
    except ConfigurationError:  # vLLM says itself what is wrong with them
        return r.engine_args, ()
    kept = [token for option in options if not drafts_only(option.flag) for token in option.tokens]
    dropped = dict.fromkeys(option.flag for option in options if drafts_only(option.flag))
    warnings = [f"{flag} is left out: vLLM refuses it without speculation" for flag in dropped]
    return tuple(kept), tuple(warnings)


def drafts_only(flag: str) -> bool:
    """Whether vLLM refuses this flag, maybe abbreviated, where nothing is drafted."""
    return len(flag) > len("--per-r") and any(own.startswith(flag) for own in ONLY_WITH_DRAFTS)


def _values_ahead(rest: Sequence[str], *, dotted: bool) -> int:
    if dotted:  # its value is whatever comes next
        return min(1, len(rest))
    return next((i for i, token in enumerate(rest) if not is_value(token)), len(rest))
