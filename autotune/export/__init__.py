"""A recommendation in the forms that vLLM and its surroundings take.

What a form cannot say is refused with the reason: nothing is left out without a word.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from autotune.engines.arguments import data_parallel_size
from autotune.errors import ConfigurationError
from autotune.export.cluster import helm_values, kubernetes_manifests
from autotune.export.config import config_yaml, env_sh
from autotune.export.recipe import recipe
from autotune.export.serve_args import serve_args, served_engine_args
from autotune.records import BASELINE, Recommendation
from autotune.storage.stored import StoredStudy

IN_A_CONTAINER = ("helm", "kubernetes")


def recommendation_of(study: StoredStudy) -> Recommendation:
    """Raises ConfigurationError where the study has no result yet."""
    if study.recommendation is None:
        raise ConfigurationError(
            f"study {study.info.id} has no recommendation: it is {study.info.state}",
            hint="the same `spectune run` command continues it;"
            " `spectune studies show --recording` gives what is there",
        )
    return study.recommendation


def export(r: Recommendation, form: str) -> str:
    """The text of one of FORMS, without a line end. Raises ConfigurationError for a refusal."""
    if form != "json":
        _require_servable(r)
    return WRITERS[form](r).removesuffix("\n")


def remarks(r: Recommendation, form: str) -> tuple[str, ...]:
    """What whoever uses this form should know."""
    if form in ("json", "env"):
        return ()
    _, found = served_engine_args(r)
    if form in ("command", "config") and r.variables:
        found += (f"measured with {', '.join(r.variables)}: --format env writes them",)
    if form in IN_A_CONTAINER and r.model.startswith((".", "/", "~")):
        found += (f"the container needs a volume with {r.model}",)
    return found


def _require_servable(r: Recommendation) -> None:
    """Refuse what would serve something else than what was measured."""
    if r.decision == "inconclusive":
        raise ConfigurationError(
            f"study {r.study} is inconclusive: there is nothing to recommend",
            hint="run it again with more --budget or --rigorous; --format json gives what is known",
        )
    config = r.speculative_config
    if config is None and r.method != BASELINE:
        raise ConfigurationError(
            f"study {r.study} names no drafter for {r.method}: engine {r.engine} knows none",
            hint="a recording or a simulation cannot be served: run it on an engine",
        )
    if config is not None and config.get("rejection_sample_method") == "synthetic":
        raise ConfigurationError(
            f"study {r.study} used synthetic acceptance: its speed-up is not that of a real drafter"
        )
    if r.schedule and data_parallel_size(r.engine_args) > 1:
        raise ConfigurationError(
            "vLLM drops N by batch size (the schedule) under data parallelism: what was measured"
            " cannot be served with --data-parallel-size above 1",
            hint="run it again with --no-schedule",
        )
    if not _agree(r):
        raise ConfigurationError(
            f"study {r.study} contradicts itself: vllm_serve_args is not its speculative_config"
        )


def _agree(r: Recommendation) -> bool:
    """Whether the arguments say what the speculative config says."""
    arguments = r.vllm_serve_args
    if r.speculative_config is None or len(arguments) != 2:
        return serve_args(r.speculative_config) == arguments
    try:
        said = json.loads(arguments[1])
    except ValueError:
        return False
    return arguments[0] == "--speculative-config" and bool(said == r.speculative_config)


def _json(r: Recommendation) -> str:
    return json.dumps(r.model_dump(mode="json", by_alias=True), indent=2)


def _command(r: Recommendation) -> str:
    command = r.serve_command
    if command is None:
        raise ConfigurationError(f"study {r.study} has no command")
    return command


def _speculative_config(r: Recommendation) -> str:
    if r.speculative_config is None:
        raise ConfigurationError(
            f"study {r.study} has no speculative config: it says {r.decision}",
            hint="--format command or config serve the model without speculation",
        )
    return r.vllm_serve_args[-1]


WRITERS: dict[str, Callable[[Recommendation], str]] = {
    "json": _json,
    "command": _command,
    "speculative-config": _speculative_config,
    "config": config_yaml,
    "env": env_sh,
    "helm": helm_values,
    "kubernetes": kubernetes_manifests,
    "recipe": recipe,
}
FORMS = tuple(WRITERS)
