"""What a GPU is to us, and how the vendors' own tools are asked: nothing is loaded or changed.

Tools print banners around their JSON, units in three spellings, and "N/A" for whatever they do
not know. Whatever cannot be read is None.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from autotune.machine.ask import ask
from autotune.records import Record

log = logging.getLogger(__name__)

Platform = Literal["cpu", "rocm", "cuda"]
TIMEOUT_SECONDS = 20.0
UNKNOWN = {"", "N/A", "NA", "NONE", "UNKNOWN", "[N/A]", "[NOT SUPPORTED]", "NOT SUPPORTED"}
# The tools write MB and mean MiB: an MI300X has 196592 "MB", rocm-smi says 196592 * 2**20 bytes.
UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "MIB": 2**20, "GB": 2**30, "GIB": 2**30}
MOST_BANNERS = 100  # lines before the JSON that look like JSON
LARGEST = 2**53  # bytes, watts, MHz: more is a damaged number


class GpuDevice(Record):
    """One device as an engine sees it: a GPU, or a partition of one."""

    name: str
    target: str | None = None  # "gfx942"; NVIDIA: compute capability as "sm_90"
    uuid: str | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None  # when asked; the same is true of what follows the cap
    partition: str | None = None  # "SPX/NPS1", "MIG 3g.20gb"; None: there is none, or not known
    power_cap_watts: float | None = None
    clock_mhz: float | None = None  # of the compute units
    max_clock_mhz: float | None = None
    temperature_celsius: float | None = None  # the hottest spot that the tool knows


class Gpus(Record):
    """The GPUs an engine can see, in the tool's order."""

    devices: tuple[GpuDevice, ...]
    driver: str | None = None
    platform: Platform | None = None  # of the tool that knew them
    runtime: str | None = None  # what the tool belongs to: "ROCm 7.2.0"; not the engine's

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.devices)

    @property
    def smallest_memory(self) -> int | None:
        """Bytes of the GPU with the least; None where one of them does not say."""
        sizes = [size for size in self.memory_bytes if size is not None]
        return min(sizes) if sizes and len(sizes) == len(self.devices) else None

    @property
    def name(self) -> str | None:
        """One name if they are alike, else all of them."""
        return alike(self.names)

    @property
    def memory_bytes(self) -> tuple[int | None, ...]:
        """Total memory of each device, in the order of `names`."""
        return tuple(device.memory_bytes for device in self.devices)

    @property
    def target(self) -> str | None:
        return alike(device.target for device in self.devices)

    @property
    def partition(self) -> str | None:
        return alike(device.partition for device in self.devices)

    @property
    def power_cap_watts(self) -> float | None:
        """The lowest: the slowest device sets the pace of all that share a model."""
        caps = [d.power_cap_watts for d in self.devices if d.power_cap_watts is not None]
        return min(caps, default=None)


def alike(values: Iterable[str | None]) -> str | None:
    """The one value all have, else each distinct one; None where nothing is known."""
    return " + ".join(dict.fromkeys(value for value in values if value)) or None


def run_tool(command: list[str]) -> str | None:
    """What the tool printed, whatever its exit status; None if there is no such answer."""
    try:
        done = ask(command, TIMEOUT_SECONDS)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        log.warning("%s: %s", command[0], error)
        return None
    if done.returncode:
        log.warning("%s ended with %d: %.200s", command[0], done.returncode, done.stderr)
    return done.stdout


def first_json(text: str) -> Any:
    """The JSON value in a tool's output, banners around it or not; None if it is not whole.

    Only what begins a line is tried: an inner object of a truncated list is not the list.
    """
    starts = re.finditer(r"^\ufeff?(?=[\[{])", text, re.MULTILINE)
    for start in itertools.islice(starts, MOST_BANNERS):
        try:
            return json.JSONDecoder().raw_decode(text, start.end())[0]
        except (ValueError, RecursionError):
            continue
    return None


def record_of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def said(value: Any) -> str | None:
    """A text that says something."""
    text = value.strip() if isinstance(value, str) else ""
    return None if text.upper() in UNKNOWN else text


def first_said(values: Iterable[Any]) -> str | None:
    return next(filter(None, map(said, values)), None)


def quantity(value: Any) -> tuple[float, str] | None:
    """(number, unit in capitals) of 750, "750 W", "(2100Mhz)" or {"value": 750, "unit": "W"}."""
    if isinstance(value, dict):
        found = quantity(value.get("value"))
        unit = said(value.get("unit"))
        return found and (found[0], (unit or found[1]).upper())
    if isinstance(value, str):
        parts = re.fullmatch(r"\s*\(?(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z/%]*)\)?\s*", value)
        return (float(parts[1]), parts[2].upper()) if parts else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return (number, "") if math.isfinite(number) and 0 <= number < LARGEST else None


def number(value: Any, *units: str) -> float | None:
    """A finite number >= 0, without a unit or in one of these; None for anything else."""
    found = quantity(value)
    return found[0] if found and found[1] in ("", *units) else None


def above_zero(value: Any, *units: str) -> float | None:
    """Likewise, where 0 is how a tool says that it does not know (power caps, clocks)."""
    return number(value, *units) or None


def memory(value: Any, unit: str = "MB") -> int | None:
    """Bytes; `unit` is meant where none is said."""
    found = quantity(value)
    factor = UNITS.get(found[1] or unit) if found else None
    if found is None or factor is None or found[0] * factor >= LARGEST:
        return None
    return int(found[0] * factor)


def memory_size(value: Any, unit: str = "MB") -> int | None:
    """Likewise of what cannot be 0: a device's memory."""
    return memory(value, unit) or None
