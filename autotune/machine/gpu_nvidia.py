"""NVIDIA GPUs from nvidia-smi, MIG instances included."""

from __future__ import annotations

import re

from autotune.machine.gpu_tools import (
    GpuDevice,
    Gpus,
    above_zero,
    memory,
    memory_size,
    number,
    said,
)

FIELDS = (
    "name", "driver_version", "uuid", "memory.total", "memory.used", "compute_cap", "power.limit",
    "clocks.sm", "clocks.max.sm", "temperature.gpu", "mig.mode.current",
)  # fmt: skip
OLD_FIELDS = FIELDS[:2]  # a driver that does not know one field answers none
LIST = ("nvidia-smi", "-L")


def query(fields: tuple[str, ...]) -> tuple[str, ...]:
    return ("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")


def parse_query(text: str) -> Gpus | None:
    """What `query` prints: one line a GPU, as many cells as fields were asked for."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    whole = [
        dict(zip(FIELDS, row, strict=False))
        for row in rows
        if len(row) in (len(FIELDS), len(OLD_FIELDS)) and re.fullmatch(r"\d+(\.\d+)+", row[1])
    ]
    devices = [_device(row) for row in whole if said(row["name"])]
    return Gpus(devices=tuple(devices), driver=whole[0]["driver_version"]) if devices else None


def mig_enabled(gpus: Gpus) -> bool:
    return any(device.partition for device in gpus.devices)


def with_instances(gpus: Gpus, text: str | None) -> Gpus:
    """MIG instances, as `nvidia-smi -L` lists them, in place of the GPUs that hold them.

    The size in a profile's name is rounded, so that an instance's memory is not known; the whole
    GPU's power cap is not the instance's.
    """
    found: dict[int, list[GpuDevice]] = {}
    index = -1
    for line in (text or "").splitlines():
        if gpu := re.match(r"GPU (\d{1,3}): ", line):
            index = int(gpu[1])
        elif mig := re.match(r"\s+(MIG \S+)\s+Device\s+\d+: \(UUID: (\S+)\)", line):
            if not 0 <= index < len(gpus.devices):
                continue
            whole = gpus.devices[index]
            found.setdefault(index, []).append(
                GpuDevice(name=whole.name, target=whole.target, partition=mig[1], uuid=mig[2])
            )
    devices = [
        device
        for index, whole in enumerate(gpus.devices)
        for device in (found.get(index) or [whole])
    ]
    return gpus.model_copy(update={"devices": tuple(devices)})


def _device(row: dict[str, str]) -> GpuDevice:
    capability = re.fullmatch(r"(\d+)\.(\d+)", row.get("compute_cap", ""))
    mig = row.get("mig.mode.current", "").lower() == "enabled"
    return GpuDevice(
        name=row["name"],
        target=f"sm_{capability[1]}{capability[2]}" if capability else None,
        uuid=said(row.get("uuid")),
        memory_bytes=None if mig else memory_size(row.get("memory.total")),
        memory_used_bytes=None if mig else memory(row.get("memory.used")),
        partition="MIG" if mig else None,
        power_cap_watts=above_zero(row.get("power.limit"), "W"),
        clock_mhz=above_zero(row.get("clocks.sm"), "MHZ"),
        max_clock_mhz=above_zero(row.get("clocks.max.sm"), "MHZ"),
        temperature_celsius=number(row.get("temperature.gpu"), "C"),
    )
