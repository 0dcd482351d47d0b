"""Which GPUs this machine has, asked from the vendors' own tools; nothing is loaded or changed.

Tools that are missing, hang or print something unexpected yield None and a log line.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable

from autotune.machine import gpu_amd, gpu_kfd, gpu_nvidia
from autotune.machine.gpu_tools import GpuDevice, Gpus, Platform, run_tool

__all__ = ["VISIBLE", "GpuDevice", "Gpus", "Platform", "probe_gpus"]

log = logging.getLogger(__name__)

# Of each group the first that is set applies, to what the group before it leaves: ROCr hides GPUs
# from HIP (https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html).
VISIBLE: dict[Platform, tuple[tuple[str, ...], ...]] = {
    "rocm": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
    "cuda": (("CUDA_VISIBLE_DEVICES",),),
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
    """Apply *_VISIBLE_DEVICES. Without one, a process that uses MIG sees a single instance."""
    devices = gpus.devices
    groups = [
        [os.environ[name] for name in names if name in os.environ] for names in VISIBLE[owner]
    ]
    for values in filter(None, groups):
        devices = _chosen(devices, values[0])
    if not any(groups):
        instances = tuple(d for d in devices if (d.partition or "").startswith("MIG "))
        devices = instances[:1] or devices
    return gpus.model_copy(update={"devices": devices})


def _chosen(devices: tuple[GpuDevice, ...], value: str) -> tuple[GpuDevice, ...]:
    """Numbers, or UUIDs by their beginnings; the first that is none ends the list, as -1 does.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/ (CUDA_VISIBLE_DEVICES); HIP does alike.
    Where the tool tells no UUIDs, only how many are named is known.
    """
    chosen: list[GpuDevice] = []
    for entry in filter(None, map(str.strip, value.split(","))):
        if re.fullmatch(r"[+-]?\d{1,9}", entry):
            found = devices[int(entry) :][:1] if int(entry) >= 0 else ()
        elif all(device.uuid for device in devices):
            found = tuple(d for d in devices if (d.uuid or "").startswith(entry))[:1]
        else:
            found = devices[len(chosen) :][:1]
        if not found:
            break
        chosen += found
    return tuple(chosen)


TOOLS: tuple[tuple[Platform, tuple[str, ...], Callable[[str], Gpus | None]], ...] = (
    ("rocm", gpu_amd.STATIC, gpu_amd.parse_static),
    ("rocm", gpu_amd.ROCM_SMI, gpu_amd.parse_rocm_smi),
    ("rocm", gpu_amd.ROCM_SMI_OLD, gpu_amd.parse_rocm_smi),
    ("cuda", gpu_nvidia.query(gpu_nvidia.FIELDS), gpu_nvidia.parse_query),
    ("cuda", gpu_nvidia.query(gpu_nvidia.OLD_FIELDS), gpu_nvidia.parse_query),
)  # fmt: skip
