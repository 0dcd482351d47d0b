"""Reading the JSON documents that people keep and exchange: recordings and recommendations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autotune.errors import ConfigurationError
from autotune.records import Recommendation

RECOMMENDATION = "spectune.recommendation/1"
MOST = 3  # of what is wrong is told


def read_document(path: str | Path, what: str, schema: str) -> tuple[str, dict[str, Any]]:
    """The text of a file and the JSON object in it.

    Raises ConfigurationError, naming the file, when it is missing, is not JSON, or has another
    schema version.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        document = json.loads(text)
    except OSError as error:
        raise ConfigurationError(f"cannot read {what} {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # bad JSON, bad UTF-8, nested without end
        raise ConfigurationError(f"{what} {path} is not JSON: {error}") from error
    found = document.get("schema") if isinstance(document, dict) else None
    if found != schema:
        raise ConfigurationError(
            f"{what} {path} has schema {found!r}, but {schema!r} is what can be read",
            hint=f'a {what} is a JSON object with "schema": "{schema}"',
        )
    return text, document


def load_recommendation(path: str | Path) -> Recommendation:
    """A recommendation that `run -o`, `run --json` or `export` wrote.

    Raises ConfigurationError, naming the file and the place in it, for a file that `read_document`
    refuses, an unknown or missing key, and a decision that its own method or N contradicts.
    """
    _, document = read_document(path, "recommendation", RECOMMENDATION)
    computed = set(Recommendation.model_computed_fields)
    content = {key: value for key, value in document.items() if key not in computed}
    try:
        found = Recommendation.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise ConfigurationError(f"recommendation {path}: {complaints(error)}") from error
    if trouble := _contradiction(found):
        raise ConfigurationError(
            f"recommendation {path} contradicts itself: {trouble}",
            hint="export the study again; a file changed by hand is not evidence",
        )
    return found


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
    if (r.method == "none") != (n == 0):
        return f"method {r.method} with N={n}"
    if r.decision == "do_not_speculate" and (n or config):
        return f"{r.decision}, but N={n}"
    if r.decision == "speculate" and not n:
        return "speculate, but no method"
    if config is not None and config.get("num_speculative_tokens") != n:
        said = config.get("num_speculative_tokens")
        return f"N={n}, but speculative_config has {said}"
    return None
