"""A recommendation as a snippet of a recipe for github.com/vllm-project/recipes.

The shape is that of its CONTRIBUTING.md: `features.spec_decoding.args`, opt-in, and what the
measured hardware needs besides under `hardware_overrides.FAMILY`.
"""

from __future__ import annotations

from typing import Any

from autotune.errors import ConfigurationError
from autotune.export.config import about, as_yaml, config_mapping, flat_arguments
from autotune.export.serve_args import split_options
from autotune.machine.variables import portable
from autotune.records import Recommendation
from autotune.wording import setting_text

TENSOR_PARALLEL = ("--tensor-parallel-size", "-tp")
# the recipes' hardware generations, by a part of the GPU's name (their taxonomy.yaml)
NVIDIA = {"H100": "hopper", "H200": "hopper", "GH200": "hopper", "H20": "hopper",
          "B200": "blackwell", "GB200": "blackwell", "B300": "blackwell", "GB300": "blackwell",
          "GB10": "blackwell"}  # fmt: skip


def recipe(r: Recommendation) -> str:
    """The parts of `models/ORG/NAME.yaml` that this study has evidence for."""
    if r.speculative_config is None:
        raise ConfigurationError(
            f"study {r.study} recommends no speculation: a recipe's spec_decoding would be empty",
            hint="use --format command or config",
        )
    if r.model.startswith((".", "/", "~")) or r.model.count("/") != 1:
        raise ConfigurationError(
            f"a recipe names a model of the Hugging Face Hub as ORG/NAME, not {r.model!r}",
            hint="use --format command or config",
        )
    entries = config_mapping(flat_arguments(r))
    others = [o for o in split_options(flat_arguments(r)) if o.flag not in TENSOR_PARALLEL]
    overrides = {
        "extra_args": [token for option in others for token in option.tokens],
        "extra_env": portable(r.variables or {}),
    }
    document: dict[str, Any] = {
        "model": {"model_id": r.model},
        "features": {
            "spec_decoding": {"description": _description(r), "args": list(r.vllm_serve_args)}
        },
        "opt_in_features": ["spec_decoding"],
    }
    if any(overrides.values()):
        document["hardware_overrides"] = {_family(r): overrides}
    if "tensor-parallel-size" in entries:
        tp = entries["tensor-parallel-size"]
        document["strategy_overrides"] = {"single_node_tp": {"tp": tp}}
    return about(r, "parts for models/ORG/NAME.yaml: merge them") + as_yaml(document)


def _description(r: Recommendation) -> str:
    """One sentence with the measured figure."""
    gain, where = "", r.environment.gpu or r.environment.runtime or r.engine
    if r.speedup is not None:
        gain = f": {r.speedup.value:.2f}x on {r.workload.name} against no speculation"
    loads = [str(c.concurrency) for c in r.per_concurrency if c.concurrency is not None]
    mean = ", geometric mean" if len(loads) > 1 else ""
    at = f"{mean} at {', '.join(loads)} concurrent requests" if loads and gain else ""
    return f"{setting_text(r)}{gain}{at} ({where})."


def _family(r: Recommendation) -> str:
    runtime, gpu = r.environment.runtime or "", r.environment.gpu or ""
    if runtime.startswith("ROCm"):
        return "amd"
    if runtime.startswith("CUDA"):
        names = gpu.replace("-", " ").split()
        return next((family for name, family in NVIDIA.items() if name in names), "nvidia")
    if runtime == "CPU":
        return "cpu"
    raise ConfigurationError(
        f"study {r.study} does not say what it ran on: no hardware can be named",
        hint="use --format command or config",
    )
