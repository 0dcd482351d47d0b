"""Which GPUs this machine has, asked from the vendors' own tools; nothing is loaded or changed.

Tools that are missing, hang or print something unexpected yield None and a log line.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, Literal

from autotune.records import Record

log = logging.getLogger(__name__)

Platform = Literal["cpu", "rocm", "cuda"]
TIMEOUT_SECONDS = 20.0
VISIBLE = {
    "rocm": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "cuda": ("CUDA_VISIBLE_DEVICES",),
}


class Gpus(Record):
    """The GPUs an engine can see, in the tool's order."""

    names: tuple[str, ...]
    driver: str | None = None

    @property
    def name(self) -> str | None:
        """One name if they are alike, else all of them."""
        return " + ".join(dict.fromkeys(self.names)) or None


def probe_gpus(platform: Platform | None) -> Gpus | None:
    """The visible GPUs. `platform` is the engine's; None asks the tools of every vendor.

    None: no GPU for this engine, or no tool could tell.
    """
    for owner, command, parse in TOOLS:
        if platform not in (None, owner) or not (tool := shutil.which(command[0])):
            continue
        output = _run([tool, *command[1:]])
        found = parse(output) if output else None
        if found:
            return _visible(found, VISIBLE[owner])
        if output:
            log.warning("%s printed nothing usable: %.200s", command[0], output)
    return None


def _run(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=TIMEOUT_SECONDS, check=False, text=True,
            errors="replace", stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s: %s", command[0], error)
        return None
    if done.returncode:
        log.warning("%s ended with %d: %.200s", command[0], done.returncode, done.stderr)
    return done.stdout


def _visible(gpus: Gpus, variables: tuple[str, ...]) -> Gpus:
    """Apply the first *_VISIBLE_DEVICES that is set; entries may be numbers or UUIDs."""
    value = next((os.environ[name] for name in variables if name in os.environ), None)
    if value is None:
        return gpus
    entries = [entry.strip() for entry in value.split(",") if entry.strip()]
    if all(entry.isdigit() and int(entry) < len(gpus.names) for entry in entries):
        names = tuple(gpus.names[int(entry)] for entry in entries)
    else:
        names = gpus.names[: len(entries)]
    return gpus.model_copy(update={"names": names})


def _json(text: str) -> Any:
    """The JSON value in a tool's output; tools print banners and warnings around it."""
    for start in re.finditer(r"[\[{]", text):
        try:
            return json.JSONDecoder().raw_decode(text, start.start())[0]
        except ValueError:
            continue
    return None


def _said(value: Any) -> str | None:
    text = value.strip() if isinstance(value, str) else ""
    return None if text.upper() in {"", "N/A", "NA", "NONE", "UNKNOWN"} else text


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def parse_amd_smi(text: str) -> Gpus | None:
    """`amd-smi static --asic --driver --json`: a list of GPUs, since ROCm 7 under "gpu_data"."""
    data = _json(text)
    if isinstance(data, dict):
        data = data.get("gpu_data", [data])
    cards = [_object(card) for card in data] if isinstance(data, list) else []
    names = [
        _said(asic.get("market_name")) or _said(asic.get("target_graphics_version"))
        for asic in (_object(card.get("asic")) for card in cards)
    ]
    drivers = (_said(_object(card.get("driver")).get("version")) for card in cards)
    return _gpus(names, next(filter(None, drivers), None))


def parse_rocm_smi(text: str) -> Gpus | None:
    """`rocm-smi --showproductname --showdriverversion --json`: {"card0": {...}, "system": ...}."""
    cards = {key: _object(value) for key, value in _object(_json(text)).items()}
    lowered = [
        {key.lower(): value for key, value in card.items()}
        for name, card in cards.items()
        if re.fullmatch(r"card\d+", name)
    ]
    keys = ("card series", "market name", "product name", "card model", "gfx version")
    names = [next(filter(None, (_said(card.get(key)) for key in keys)), None) for card in lowered]
    return _gpus(names, _said(cards.get("system", {}).get("Driver version")))


def parse_nvidia_smi(text: str) -> Gpus | None:
    """`nvidia-smi --query-gpu=name,driver_version --format=csv,noheader`: one line a GPU."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    rows = [row for row in rows if len(row) == 2 and re.match(r"\d+(\.\d+)+$", row[1])]
    return _gpus([row[0] or None for row in rows], rows[0][1] if rows else None)


def _gpus(names: list[str | None], driver: str | None) -> Gpus | None:
    found = tuple(name for name in names if name)
    return Gpus(names=found, driver=driver) if found else None


TOOLS: tuple[tuple[Platform, tuple[str, ...], Callable[[str], Gpus | None]], ...] = (
    ("rocm", ("amd-smi", "static", "--asic", "--driver", "--json"), parse_amd_smi),
    ("rocm", ("rocm-smi", "--showproductname", "--showdriverversion", "--json"), parse_rocm_smi),
    ("cuda", ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
     parse_nvidia_smi),
)  # fmt: skip
