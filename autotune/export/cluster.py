"""A recommendation for Kubernetes: values of vLLM's production-stack chart, or a Deployment.

The shapes are those of github.com/vllm-project/production-stack (helm/values.yaml and
helm/templates/deployment-vllm-multi.yaml) and of vLLM's docs/deployment/k8s.md.
"""

from __future__ import annotations

import math
import re
from typing import Any

from autotune.errors import ConfigurationError
from autotune.export.config import about, as_yaml, config_mapping, flat_arguments
from autotune.export.serve_args import served_engine_args
from autotune.machine.variables import portable
from autotune.records import Recommendation

PORT = 8000
# by the first word of `environment.runtime`: image, device of the cluster
IMAGES = {
    "ROCm": ("vllm/vllm-openai-rocm", "amd.com/gpu"),
    "CUDA": ("vllm/vllm-openai", "nvidia.com/gpu"),
    "CPU": ("vllm/vllm-openai-cpu", None),
}
PARALLEL = ("tensor", "pipeline", "prefill-context", "data")
NO_PREFIX_CACHING = "no-enable-prefix-caching"


def helm_values(r: Recommendation) -> str:
    """Values for `helm install NAME vllm/vllm-stack -f FILE`.

    The chart always sets one of --enable-prefix-caching and --no-enable-prefix-caching, so the
    values say which: on, as vLLM's own default, unless the user switched it off.
    """
    image, tag, device = _image(r)
    off = NO_PREFIX_CACHING in config_mapping(served_engine_args(r)[0])
    spec: dict[str, Any] = {
        "name": _name(r),
        "repository": image,
        "tag": tag,
        "modelURL": _literal(r.model),
        "replicaCount": 1,
        "requestCPU": 4,
        "requestMemory": "16Gi",
        "requestGPU": _devices(r) if device else 0,
        **({"requestGPUType": device} if device else {}),
        "vllmConfig": {"enablePrefixCaching": not off, "extraArgs": _arguments(r)},
        "env": _environment(r),
    }
    document = {"servingEngineSpec": {"modelSpec": [spec]}}
    usage = "helm upgrade --install NAME vllm/vllm-stack -f THIS_FILE.yaml"
    return about(r, usage) + RESOURCES + as_yaml(document)


def kubernetes_manifests(r: Recommendation) -> str:
    """A Deployment and its Service for `kubectl apply -f FILE`."""
    image, tag, device = _image(r)
    name = _name(r)
    arguments = [_literal(r.model), "--host", "0.0.0.0", "--port", str(PORT), *_arguments(r)]
    resources = {"limits": {device: str(_devices(r))}} if device else {}
    container = {
        "name": "vllm",
        "image": f"{image}:{tag}",
        "command": ["vllm", "serve"],
        "args": arguments,
        "env": _environment(r),
        "ports": [{"containerPort": PORT}],
        "resources": resources,
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 5},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": _labels(r)},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": _labels(r)},
            "template": {"metadata": {"labels": _labels(r)}, "spec": pod},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": _labels(r), "ports": [{"port": PORT, "targetPort": PORT}]},
    }
    usage = "kubectl apply -f THIS_FILE.yaml (weights: add a volume or a token as you need)"
    return about(r, usage) + "---\n".join(map(as_yaml, (deployment, service)))


RESOURCES = "# the chart demands requestCPU and requestMemory: fit them to your nodes\n"


def _arguments(r: Recommendation) -> list[str]:
    return [_literal(text) for text in (*flat_arguments(r), *r.vllm_serve_args)]


def _literal(text: str) -> str:
    """Kubernetes expands $(NAME) in arguments and variables; `$$` is a dollar."""
    return text.replace("$", "$$")


def _environment(r: Recommendation) -> list[dict[str, str]]:
    variables = portable(r.variables or {})
    return [{"name": name, "value": _literal(value)} for name, value in variables.items()]


def _image(r: Recommendation) -> tuple[str, str, str | None]:
    """Image, tag and device resource of the platform that was measured."""
    runtime = (r.environment.runtime or "").partition(" ")[0]
    if runtime not in IMAGES:
        raise ConfigurationError(
            f"study {r.study} does not say what it ran on: no image can be named",
            hint="use --format command or config",
        )
    image, device = IMAGES[runtime]
    release = re.match(r"\d+\.\d+\.\d+(?=$|\+)", r.environment.vllm or "")  # no development build
    return image, f"v{release[0]}" if release else "latest", device


def _devices(r: Recommendation) -> int:
    """How many GPUs the engine takes: vLLM's world size times its data parallel size."""
    entries = config_mapping(served_engine_args(r)[0])
    sizes = [entries.get(f"{name}-parallel-size", 1) for name in PARALLEL]
    if not all(isinstance(size, int) for size in sizes):
        raise ConfigurationError(f"the parallel sizes {sizes} are not numbers")
    return math.prod(sizes)


def _labels(r: Recommendation) -> dict[str, str]:
    return {"app.kubernetes.io/name": _name(r)}


def _name(r: Recommendation) -> str:
    """An RFC 1123 label from the model's name, 40 characters at most: the chart adds to it."""
    last = r.model.rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9]+", "-", last)[:40].strip("-") or "model"
