"""AMD GPUs from amd-smi and rocm-smi.

Keys differ between releases; the spellings of ROCm 5.7 to 7.x are read. Partition: first
`compute_partition`, then `accelerator_partition`; power cap: `current_power`, `socket_power`, then
`ppt0.socket_power_limit`; the list of GPUs: bare, then under "gpu_data". Sources:
tests/machines/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.machine.gpu_tools import (
    GpuDevice,
    Gpus,
    above_zero,
    first_json,
    first_said,
    memory,
    memory_size,
    number,
    record_of,
    said,
)

STATIC = ("amd-smi", "static", "--json")
METRIC = ("amd-smi", "metric", "--json")
VERSION = ("amd-smi", "version", "--json")
ROCM_SMI = (
    "rocm-smi", "--showproductname", "--showdriverversion", "--showmeminfo", "vram",
    "--showmaxpower", "--showcomputepartition", "--showmemorypartition", "--showtemp",
    "--showclocks", "--json",
)  # fmt: skip
ROCM_SMI_OLD = ("rocm-smi", "--showproductname", "--showdriverversion", "--json")
MISSPELT = {"gfx9010": "gfx90a"}  # rocm-smi 6 writes an MI250's stepping in decimal
TEMPERATURES = ("hotspot", "junction", "edge")


def parse_static(text: str) -> Gpus | None:
    """`amd-smi static --json`."""
    cards = _cards(first_json(text))
    devices = [device for device in map(_static_device, cards) if device]
    drivers = [record_of(card.get("driver")) for card in cards]
    versions = [d.get(key) for d in drivers for key in ("version", "driver_version")]
    return Gpus(devices=tuple(devices), driver=first_said(versions)) if devices else None


def parse_metric(text: str) -> list[dict[str, Any]]:
    """`amd-smi metric --json`: what changes from moment to moment, fields of GpuDevice by card."""
    return [_now(card) for card in _cards(first_json(text))]


def parse_version(text: str) -> str | None:
    """ "ROCm 7.2.0" from `amd-smi version --json`: the host's, which a container may share."""
    found = first_said(card.get("rocm_version") for card in _cards(first_json(text)))
    return found and f"ROCm {found}"


def parse_rocm_smi(text: str) -> Gpus | None:
    """`rocm-smi ... --json`: {"card0": {...}, "card1": ..., "system": ...}."""
    cards = record_of(first_json(text))
    lowered = [
        {str(key).lower().rstrip(":"): value for key, value in record_of(card).items()}
        for name, card in cards.items()
        if re.fullmatch(r"card\d+", name)
    ]
    devices = [device for device in map(_rocm_smi_device, lowered) if device]
    driver = said(record_of(cards.get("system")).get("Driver version"))
    return Gpus(devices=tuple(devices), driver=driver) if devices else None


def _cards(data: Any) -> list[Mapping[str, Any]]:
    if isinstance(data, dict):
        data = data.get("gpu_data", [data])
    return [record_of(card) for card in data] if isinstance(data, list) else []


def _static_device(card: Mapping[str, Any]) -> GpuDevice | None:
    asic, partition = record_of(card.get("asic")), record_of(card.get("partition"))
    target = gfx(asic.get("target_graphics_version"))
    name = said(asic.get("market_name")) or target
    if name is None:
        return None
    vram = record_of(card.get("vram"))
    modes = (partition.get("accelerator_partition"), partition.get("compute_partition"))
    return GpuDevice(
        name=name,
        target=target,
        memory_bytes=memory_size(vram.get("size", vram.get("vram_size_mb"))),
        partition=_partition(first_said(modes), said(partition.get("memory_partition"))),
        power_cap_watts=_power_cap(record_of(card.get("limit"))),
    )


def _power_cap(limit: Mapping[str, Any]) -> float | None:
    """The cap in force, not the highest one that may be set."""
    places = (
        record_of(limit.get("ppt0")).get("socket_power_limit"),
        *(limit.get(key) for key in ("socket_power", "current_power", "power")),
    )
    return next(filter(None, (above_zero(place, "W") for place in places)), None)


def _now(card: Mapping[str, Any]) -> dict[str, Any]:
    used = record_of(card.get("mem_usage"))
    clocks, temperature = record_of(card.get("clock")), record_of(card.get("temperature"))
    # an MI300X has a clock for each of its dies, gfx_0 to gfx_7: the first stands for all
    graphics = record_of(clocks.get("gfx_0") or clocks.get("gfx"))
    heats = (number(temperature.get(place), "C") for place in TEMPERATURES)
    return {
        "memory_used_bytes": memory(used.get("used_vram")),
        "clock_mhz": above_zero(graphics.get("clk"), "MHZ"),
        "max_clock_mhz": above_zero(graphics.get("max_clk"), "MHZ"),
        "temperature_celsius": next(filter(None, heats), None),
    }


def _rocm_smi_device(card: Mapping[str, Any]) -> GpuDevice | None:
    keys = ("card series", "market name", "product name", "card model", "gfx version")
    name = first_said(card.get(key) for key in keys)
    if name is None:
        return None
    caps = ("current power cap (w)", "max graphics package power (w)")
    heats = (number(card.get(f"temperature (sensor {place}) (c)")) for place in TEMPERATURES)
    return GpuDevice(
        name=name,
        target=gfx(card.get("gfx version")),
        memory_bytes=memory_size(card.get("vram total memory (b)"), "B"),
        memory_used_bytes=memory(card.get("vram total used memory (b)"), "B"),
        partition=_partition(
            said(card.get("compute partition")), said(card.get("memory partition"))
        ),
        power_cap_watts=next(filter(None, (above_zero(card.get(key), "W") for key in caps)), None),
        clock_mhz=above_zero(card.get("sclk clock speed"), "MHZ"),
        temperature_celsius=next(filter(None, heats), None),
    )


def _partition(compute: str | None, memory_mode: str | None) -> str | None:
    """ "SPX/NPS1"; of an unpartitioned card that has no modes, such as an MI210, None."""
    return "/".join(filter(None, (compute, memory_mode))) or None


def gfx(value: Any) -> str | None:
    """ "gfx942" from that, or from "gfx942:sramecc+:xnack-" as torch and rocminfo write it."""
    text = said(value)
    found = re.match(r"gfx[0-9a-f]+", text.lower()) if text else None
    return MISSPELT.get(found[0], found[0]) if found else None
