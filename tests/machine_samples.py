"""Plays a recorded machine: its tools on PATH, its variables, its /proc, its engine's Python."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from autotune.machine import cpu, environment, gpu_kfd

MACHINES = Path(__file__).parent / "machines"
NAMES = sorted(path.stem for path in MACHINES.glob("*.json"))


def load(name: str) -> dict[str, Any]:
    return json.loads((MACHINES / f"{name}.json").read_text(encoding="utf-8"))


def text_of(output: Any) -> str:
    """What a tool prints: a recording keeps JSON as JSON."""
    return output if isinstance(output, str) else json.dumps(output, indent=4)


@contextlib.contextmanager
def playing(machine: dict[str, Any], folder: Path) -> Iterator[str]:
    """The path of the engine's interpreter while this process believes to be on that machine."""
    tools = folder / "tools"
    tools.mkdir(parents=True)
    for tool in {key.split()[0] for key in machine["tools"]}:
        _tool(tools / tool, machine["tools"])
    answer = json.dumps(machine["engine"])
    python = _script(folder / "python", f"echo {shlex.quote(f'spectune-probe {answer}')}")
    variables = {"PATH": str(tools), "HOME": str(folder), **machine["variables"]}
    with (
        mock.patch.dict(os.environ, variables, clear=True),
        mock.patch.object(environment, "CPUINFO", _cpuinfo(folder, machine["cpu"])),
        mock.patch.object(cpu, "MEMINFO", _meminfo(folder, machine["cpu"])),
        mock.patch.object(cpu, "NODES", _nodes(folder, machine["cpu"])),
        mock.patch.object(gpu_kfd, "NODES", _kfd(folder, machine.get("kfd", []))),
        mock.patch.object(cpu, "usable_cores", lambda: machine["cpu"]["cores"]),
    ):
        yield python


def _tool(path: Path, outputs: dict[str, Any]) -> None:
    """Answers by its first argument; a recording without one answers to all."""
    cases = []
    for key, output in outputs.items():
        tool, _, argument = key.partition(" ")
        if tool == path.name:
            file = path.parent.parent / f"{key.replace(' ', '_')}.out"
            file.write_text(text_of(output), encoding="utf-8")
            cases.append(f"{argument}*) exec /bin/cat {shlex.quote(str(file))};;")
    _script(path, f'case "$1" in {" ".join(cases)} esac; echo unknown argument >&2; exit 2')


def _script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def _cpuinfo(folder: Path, recorded: dict[str, Any]) -> Path:
    cores = (
        f"processor\t: {i}\nmodel name\t: {recorded['name']}\n" for i in range(recorded["cores"])
    )
    path = folder / "cpuinfo"
    path.write_text("\n".join(cores), encoding="utf-8")
    return path


def _meminfo(folder: Path, recorded: dict[str, Any]) -> Path:
    path = folder / "meminfo"
    path.write_text(f"MemTotal:       {recorded['memory_kb']} kB\nMemFree: 1 kB\n")
    return path


def _nodes(folder: Path, recorded: dict[str, Any]) -> Path:
    path = folder / "node"
    for node in range(recorded["numa_nodes"]):
        (path / f"node{node}").mkdir(parents=True)
    (path / "online").write_text("0\n")
    return path


def _kfd(folder: Path, recorded: list[dict[str, str]]) -> Path:
    path = folder / "kfd"
    for index, node in enumerate(recorded):
        (path / str(index) / "mem_banks" / "0").mkdir(parents=True)
        (path / str(index) / "properties").write_text(node["properties"])
        if "bank" in node:
            (path / str(index) / "mem_banks" / "0" / "properties").write_text(node["bank"])
    return path
