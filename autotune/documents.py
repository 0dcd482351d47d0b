"""The documents that people keep and exchange: read, checked, and written."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autotune.errors import ConfigurationError
from autotune.records import BASELINE, Recommendation

logger = logging.getLogger(__name__)

RECOMMENDATION = "spectune.recommendation/1"
MOST = 3  # of what is wrong is told
LARGEST = 256 << 20  # bytes; a study of thousands of windows has some MiB

# Keys beyond those that the format promises; what to put where another program left them out, from
# the path and the object in which they belong.
NOT_PROMISED: dict[str, Callable[[str | Path, dict[str, Any]], Any]] = {
    "study": lambda path, _: Path(path).stem,
    "engine": lambda *_: "unknown",
    "created_at": lambda *_: "",
    "stopped_because": lambda *_: "not said",
    "exhausted": lambda *_: False,
    "workload.max_tokens": lambda *_: None,
    "per_concurrency.*.decision": lambda _, row: (
        "do_not_speculate" if row.get("method") == BASELINE else "speculate"
    ),
    "per_concurrency.*.status": lambda *_: None,
}


def read_document(path: str | Path, what: str, schema: str) -> tuple[str, dict[str, Any]]:
    """The text of a file and the JSON object in it.

    Raises ConfigurationError, naming the file, when it is missing, is not JSON, or has another
    schema version.
    """
    text, document = parsed(path, what)
    found = document.get("schema") if isinstance(document, dict) else None
    if found != schema:
        raise ConfigurationError(
            f"{what} {path} has schema {found!r}, but {schema!r} is what can be read",
            hint=f'a {what} is a JSON object with "schema": "{schema}"',
        )
    return text, document


def parsed(path: str | Path, what: str = "") -> tuple[str, Any]:
    """The text of a file and the JSON in it.

    A key twice in one object, as a merge leaves it, is refused: which of the two holds is not said.
    So is half of a surrogate pair, which can be neither printed nor stored. Raises
    ConfigurationError, naming the file.
    """
    named = f"{what} {path}" if what else str(path)
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ConfigurationError(f"{named} is larger than {LARGEST >> 20} MiB")
        text = content.decode("utf-8-sig")
        document = json.loads(
            text, object_pairs_hook=_each_key_once, parse_constant=_finite, parse_float=_finite
        )
        if "\\u" in text:
            json.dumps(document, ensure_ascii=False).encode()
    except OSError as error:
        raise ConfigurationError(f"cannot read {named}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # bad JSON, bad UTF-8, nested without end
        raise ConfigurationError(f"{named} is not JSON: {error}") from error
    return text, document


def _finite(text: str) -> float:
    """NaN and Infinity are no JSON, and 1e999 becomes one of them: no answer could be written."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return value


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!a} stands twice in one object")
    return content


def save(text: str, path: Path, hint: str | None = None) -> None:
    """Write a file; raises ConfigurationError where that is not possible.

    What UTF-8 cannot hold (a lone surrogate, of a file name that is not UTF-8) is written escaped.
    """
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}", hint) from error


def load_recommendation(path: str | Path) -> Recommendation:
    """A recommendation that `run -o`, `run --json` or `export` wrote, or another program.

    Keys that spectune does not know are left out with a warning; those that the format does not
    promise may be missing. Raises ConfigurationError, naming the file and the place in it, for a
    file that `read_document` refuses, a missing or wrong value, and a decision that its own method
    or N contradicts.
    """
    _, document = read_document(path, "recommendation", RECOMMENDATION)
    content = {k: v for k, v in document.items() if k not in Recommendation.model_computed_fields}
    try:
        found = Recommendation.model_validate_json(json.dumps(content))
    except ValidationError as error:
        found = _tolerated(path, content, error)
    if trouble := _contradiction(found):
        raise ConfigurationError(
            f"recommendation {path} contradicts itself: {trouble}",
            hint="export the study again; a file changed by hand is not evidence",
        )
    return found


def _tolerated(path: str | Path, content: dict[str, Any], error: ValidationError) -> Recommendation:
    """The document without unknown keys and with what may be missing, if that was all."""
    unknown = []
    for problem in error.errors():
        place = problem["loc"]
        pattern = ".".join("*" if isinstance(step, int) else step for step in place)
        if problem["type"] == "extra_forbidden":
            unknown.append(ascii(".".join(map(str, place))))
            del _row_at(content, place)[str(place[-1])]
        elif problem["type"] == "missing" and pattern in NOT_PROMISED:
            row = _row_at(content, place)
            row[str(place[-1])] = NOT_PROMISED[pattern](path, row)
    try:
        found = Recommendation.model_validate_json(json.dumps(content))
    except ValidationError as left:
        raise ConfigurationError(f"recommendation {path}: {complaints(left)}") from left
    if unknown:
        logger.warning("%s: left out what is not known here: %s", path, ", ".join(unknown))
    return found


def _row_at(content: dict[str, Any], place: tuple[int | str, ...]) -> dict[str, Any]:
    """The object in which the last step of a place stands."""
    row: Any = content
    for step in place[:-1]:
        row = row[step]
    return row if isinstance(row, dict) else {}


def complaints(
    error: ValidationError, row: Callable[[tuple[int | str, ...]], str] = lambda place: ""
) -> str:
    """The first few things that are wrong, each with its place; `row` says what is there."""
    problems = error.errors()
    lines = []
    for problem in problems[:MOST]:
        place = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{place}{row(problem['loc'])}: {message}" if place else message)
    if len(problems) > MOST:
        lines.append(f"and {len(problems) - MOST} more")
    return "; ".join(lines)


def _contradiction(r: Recommendation) -> str | None:
    config, n = r.speculative_config, r.num_speculative_tokens
    if (r.method == BASELINE) != (n == 0):
        return f"method {r.method} with N={n}"
    if r.decision == "do_not_speculate" and (n or config):
        return f"{r.decision}, but N={n}"
    if r.decision == "speculate" and not n:
        return "speculate, but no method"
    if config is not None and config.get("num_speculative_tokens") != n:
        said = config.get("num_speculative_tokens")
        return f"N={n}, but speculative_config has {said}"
    return None
