"""A recommendation in the forms that vLLM takes."""

from __future__ import annotations

import json
from typing import Any

from autotune.errors import ConfigurationError
from autotune.storage.stored import StoredStudy

FORMS = ("json", "speculative-config", "command")


def serve_args(speculative_config: dict[str, Any] | None) -> tuple[str, ...]:
    """Arguments to append to `vllm serve MODEL`; none when speculation is not recommended."""
    if speculative_config is None:
        return ()
    return ("--speculative-config", json.dumps(speculative_config, separators=(",", ":")))


def export(study: StoredStudy, form: str) -> str:
    """One of FORMS. Raises ConfigurationError where the study has no such result."""
    recommendation = study.recommendation
    if recommendation is None:
        raise ConfigurationError(
            f"study {study.info.id} has no recommendation yet",
            hint="run the same `spectune run` command again: it resumes",
        )
    if form == "command":
        if recommendation.serve_command is None:
            raise ConfigurationError(
                f"study {study.info.id} names no drafter for {recommendation.method}",
                hint="a recording or a simulation cannot be served: run it on an engine",
            )
        return recommendation.serve_command
    if form == "speculative-config":
        if recommendation.speculative_config is None:
            why = (
                f"engine {recommendation.engine} knows no drafters"
                if recommendation.decision == "speculate"
                else f"it says {recommendation.decision}"
            )
            raise ConfigurationError(f"study {study.info.id} has no speculative config: {why}")
        return json.dumps(recommendation.speculative_config, separators=(",", ":"))
    return json.dumps(recommendation.model_dump(mode="json", by_alias=True), indent=2)
