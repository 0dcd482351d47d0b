"""Documents -> CheckSide: recommendations, recordings, earlier checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autotune import stats
from autotune.check.recommendation import recommended_side
from autotune.check.recording import recorded_side
from autotune.check.records import CheckReport, CheckSide
from autotune.documents import parsed
from autotune.errors import ConfigurationError

KINDS = ("spectune.recommendation", "spectune.recording", "spectune.check")
VERSION = 1


def load_side(path: str | Path, noise: float = stats.ASSUMED_NOISE) -> CheckSide:
    """Read any document that can be checked. Raises ConfigurationError, naming the file."""
    _, document = parsed(path)
    kind = require_schema(document, path)
    if kind == "spectune.recording":
        return recorded_side(path, noise)
    try:
        if kind == "spectune.check":
            return _checked_side(document, str(path))
        return recommended_side(document, str(path), noise)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) + ": " if first["loc"] else ""
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"{path}: {place}{message}") from error


def require_schema(document: Any, path: str | Path) -> str:
    """The kind of a document; raises ConfigurationError for another kind or version."""
    found = document.get("schema") if isinstance(document, dict) else None
    kind, _, version = str(found).partition("/")
    known = ", ".join(f"{each}/{VERSION}" for each in KINDS)
    if kind not in KINDS:
        raise ConfigurationError(
            f"{path} has schema {found!r}: it cannot be checked", hint=f"what can: {known}"
        )
    if version != str(VERSION):
        raise ConfigurationError(
            f"{path} has schema {found!r}, but version {VERSION} is what this spectune reads",
            hint="use the version of spectune that wrote it, or measure it again",
        )
    return kind


def _checked_side(document: Any, source: str) -> CheckSide:
    """What an earlier check measured: the tightest reference there is."""
    report = CheckReport.model_validate_json(json.dumps(document))
    if report.measured is None:
        raise ConfigurationError(
            f"{source} holds no measurement: that check ended as {report.outcome}"
        )
    update: dict[str, Any] = {"source": source, "kind": "check"}
    if report.outcome == "regression":
        found = f"it is the measurement of a check that found a regression: {report.summary}"
        update["faults"] = (*report.measured.faults, found)
    return report.measured.model_copy(update=update)
