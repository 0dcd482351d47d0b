"""The processor and memory of this machine, from the kernel's text files (Linux)."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from autotune.machine import environment
from autotune.records import Record

log = logging.getLogger(__name__)

MEMINFO = Path("/proc/meminfo")
NODES = Path("/sys/devices/system/node")


class Cpu(Record):
    """None: the system does not tell."""

    name: str | None = None
    logical_cores: int | None = None
    usable_cores: int | None = None  # that this process may run on
    memory_bytes: int | None = None
    numa_nodes: int | None = None


def probe_cpu() -> Cpu:
    """Never raises: what cannot be read is None."""
    memory = re.search(r"^MemTotal:\s*(\d{1,15}) kB", _text(MEMINFO), re.MULTILINE)
    cores = re.findall(r"^processor\s*:", _text(environment.CPUINFO), re.MULTILINE)
    try:
        nodes = [node for node in NODES.iterdir() if re.fullmatch(r"node\d+", node.name)]
    except OSError as error:
        log.debug("%s: %s", NODES, error)
        nodes = []
    return Cpu(
        name=environment.cpu_name(),
        logical_cores=len(cores) or None,
        usable_cores=usable_cores(),
        memory_bytes=int(memory[1]) * 1024 if memory else None,
        numa_nodes=len(nodes) or None,
    )


def usable_cores() -> int | None:
    """What the scheduler allows this process; None where the system cannot say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        log.debug("%s: %s", path, error)
        return ""
