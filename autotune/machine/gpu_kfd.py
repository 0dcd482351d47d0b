"""AMD GPUs as the kernel's driver describes them: for containers without amd-smi and rocm-smi.

/sys/class/kfd/kfd/topology/nodes/N/properties: `gfx_target_version` is major * 10000 + minor * 100
+ stepping (0 for a processor); the name of the product is not there.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from autotune.machine.gpu_tools import GpuDevice, Gpus

log = logging.getLogger(__name__)

NODES = Path("/sys/class/kfd/kfd/topology/nodes")
DRIVER = Path("/sys/module/amdgpu/version")
AMD = "4098"  # 0x1002
LOCAL_HEAPS = ("1", "2")  # memory of the device's own: visible to the host, or not


def probe_kfd() -> Gpus | None:
    """None: no driver, or no GPU. What cannot be read is left out with a log line."""
    try:
        nodes = [node for node in NODES.iterdir() if node.name.isdecimal()]
    except OSError as error:
        log.debug("%s: %s", NODES, error)
        return None
    found = [_device(node) for node in sorted(nodes, key=lambda node: int(node.name))]
    devices = tuple(device for device in found if device)
    driver = _text(DRIVER).strip() or None
    return Gpus(devices=devices, driver=driver, platform="rocm") if devices else None


def target_name(version: int) -> str | None:
    """90402 -> "gfx942", 90010 -> "gfx90a"; None for 0, a processor."""
    major, rest = divmod(version, 10000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}" if major else None


def _device(node: Path) -> GpuDevice | None:
    properties = _properties(node / "properties")
    version = properties.get("gfx_target_version", "0")
    target = target_name(int(version)) if version.isdecimal() and len(version) < 8 else None
    if target is None or properties.get("vendor_id", AMD) != AMD:
        return None
    banks = [_properties(bank) for bank in sorted(node.glob("mem_banks/*/properties"))]
    sizes = [b.get("size_in_bytes", "") for b in banks if b.get("heap_type") in LOCAL_HEAPS]
    total = sum(int(size) for size in sizes if size.isdecimal() and len(size) < 16)
    return GpuDevice(name=target, target=target, memory_bytes=total or None)


def _properties(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+) (\S+)$", _text(path), re.MULTILINE))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        log.warning("%s: %s", path, error)
        return ""
