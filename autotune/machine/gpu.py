"""Which GPUs this machine has, asked from the vendors' own tools; nothing is loaded or changed.

Tools that are missing, hang or print something unexpected yield None and a log line.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable

from autotune.machine import gpu_amd, gpu_kfd, gpu_nvidia
from autotune.machine.gpu_tools import GpuDevice, Gpus, Platform, run_tool

__all__ = ["VISIBLE", "GpuDevice", "Gpus", "Platform", "probe_gpus"]

log = logging.getLogger(__name__)

VISIBLE = {
    "rocm": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "cuda": ("CUDA_VISIBLE_DEVICES",),
}


def probe_gpus(platform: Platform | None, *, now: bool = False) -> Gpus | None:
    """The visible GPUs. `platform` is the engine's; None asks the tools of every vendor.

    Without a tool, AMD's are known from the kernel. None: no GPU for this engine, or nothing could
    tell. With `now`, also what changes from moment to moment: memory used, clocks, temperature (two
    more calls of amd-smi).
    """
    for owner, command, parse in TOOLS:
        if platform not in (None, owner) or not (output := _ask(command)):
            continue
        if found := parse(output):
            named = _targeted(found.model_copy(update={"platform": owner}))
            return _visible(_completed(named, command, now), owner)
        log.warning("%s printed nothing usable: %.200s", command[0], output)
    kernels = gpu_kfd.probe_kfd() if platform in (None, "rocm") else None
    return kernels and _visible(kernels, "rocm")


def _ask(command: tuple[str, ...]) -> str | None:
    tool = shutil.which(command[0])
    return run_tool([tool, *command[1:]]) if tool else None


def _targeted(gpus: Gpus) -> Gpus:
    """rocm-smi before 6.0 names no target; the kernel's driver does."""
    if gpus.platform != "rocm" or gpus.target:
        return gpus
    kernels = gpu_kfd.probe_kfd()
    if kernels is None or len(kernels.devices) != len(gpus.devices):
        return gpus
    pairs = zip(gpus.devices, kernels.devices, strict=True)
    devices = (own.model_copy(update={"target": other.target}) for own, other in pairs)
    return gpus.model_copy(update={"devices": tuple(devices)})


def _completed(gpus: Gpus, command: tuple[str, ...], now: bool) -> Gpus:
    """What a second question adds: a MIG GPU's instances, an AMD GPU's present state."""
    if command[0] == "nvidia-smi" and gpu_nvidia.mig_enabled(gpus):
        return gpu_nvidia.with_instances(gpus, _ask(gpu_nvidia.LIST))
    if command != gpu_amd.STATIC or not now:
        return gpus
    runtime = gpu_amd.parse_version(_ask(gpu_amd.VERSION) or "")
    gpus = gpus.model_copy(update={"runtime": runtime})
    states = gpu_amd.parse_metric(_ask(gpu_amd.METRIC) or "")
    if len(states) != len(gpus.devices):
        log.warning("amd-smi metric tells of %d of %d GPUs", len(states), len(gpus.devices))
        return gpus
    devices = (d.model_copy(update=s) for d, s in zip(gpus.devices, states, strict=True))
    return gpus.model_copy(update={"devices": tuple(devices)})


def _visible(gpus: Gpus, owner: Platform) -> Gpus:
    """Apply the first *_VISIBLE_DEVICES that is set; entries may be numbers or UUIDs.

    Without one, a process that uses MIG sees a single instance (CUDA's rule).
    """
    devices = gpus.devices
    value = next((os.environ[name] for name in VISIBLE[owner] if name in os.environ), None)
    if value is None:
        instances = [d for d in devices if (d.partition or "").startswith("MIG ")]
        return gpus.model_copy(update={"devices": tuple(instances[:1])}) if instances else gpus
    entries = [entry.strip() for entry in value.split(",") if entry.strip()]
    named = [next((d for d in devices if (d.uuid or "").startswith(e)), None) for e in entries]
    if all(entry.isdecimal() and int(entry) < len(devices) for entry in entries):
        chosen = tuple(devices[int(entry)] for entry in entries)
    elif all(named):
        chosen = tuple(device for device in named if device)
    else:
        chosen = devices[: len(entries)]
    return gpus.model_copy(update={"devices": chosen})


TOOLS: tuple[tuple[Platform, tuple[str, ...], Callable[[str], Gpus | None]], ...] = (
    ("rocm", gpu_amd.STATIC, gpu_amd.parse_static),
    ("rocm", gpu_amd.ROCM_SMI, gpu_amd.parse_rocm_smi),
    ("rocm", gpu_amd.ROCM_SMI_OLD, gpu_amd.parse_rocm_smi),
    ("cuda", gpu_nvidia.query(gpu_nvidia.FIELDS), gpu_nvidia.parse_query),
    ("cuda", gpu_nvidia.query(gpu_nvidia.OLD_FIELDS), gpu_nvidia.parse_query),
)  # fmt: skip
