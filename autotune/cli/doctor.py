"""`spectune doctor`: the machine, what to mend first, known faults of this combination."""

from __future__ import annotations

import logging
import textwrap
from typing import TYPE_CHECKING

import click

from autotune.cli.options import as_json as as_json_option
from autotune.cli.options import option, storage
from autotune.cli.run import PassesThrough
from autotune.cli.terminal import Part, Row, show

if TYPE_CHECKING:
    from autotune.machine.doctor import Diagnosis
    from autotune.machine.environment import EngineInfo
    from autotune.machine.faults import Fault
    from autotune.machine.gpu import GpuDevice, Gpus

GIB = 2**30
WIDTH = 98
COLORS = {"wrong": "red", "fails": "red", "slow": "yellow", "note": "dim"}
LEVELS = {"error": "red", "warning": "yellow", "note": "dim"}


@click.command("doctor", cls=PassesThrough, options_metavar="[OPTIONS] [-- VLLM_SERVE_ARGS...]")
@option("--vllm-python", metavar="PATH", help="Interpreter that has vLLM [this one].")
@storage()
@option("--model", metavar="NAME", help="Leave out faults of other models.")
@as_json_option()
def command(
    vllm_python: str | None,
    storage: str | None,
    model: str | None,
    as_json: bool,
    vllm_args: tuple[str, ...],
) -> None:
    """Look at the machine: what is there, what to mend, known faults.

    Nothing is started or changed. What follows -- is what `vllm serve` would get: faults that it
    avoids are left out. The exit code is 0 when it could look, whatever it found.
    """
    from autotune.cli.render import print_json
    from autotune.machine.doctor import diagnose

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    diagnosis = diagnose(vllm_python, storage, model, vllm_args)
    if as_json:
        print_json(diagnosis)
    else:
        show(parts(diagnosis))


def parts(d: Diagnosis) -> list[Part]:
    """The answer first."""
    said: list[Part] = [("bold" if d.ready else "bold red", d.answer)]
    if d.first:
        said += [("bold", line) for line in _wrapped(f"First: {d.first}.", "       ")]
    said += [("", ""), ("", [("WHAT", "FOUND"), *_rows(d)])]
    for finding in d.findings:
        text = f"{finding.level}: {finding.says}: {finding.advice}"
        said += [("", "")] if finding is d.findings[0] else []
        said += [(LEVELS[finding.level], line) for line in _wrapped(text, "  ")]
    return [*said, *_faults(d)]


def _rows(d: Diagnosis) -> list[Row]:
    engine, gpus = d.engine, d.gpus
    given = {**d.visible, **(d.environment.variables or {})}
    variables = " ".join(f"{name}={value}" for name, value in given.items())
    rows: list[tuple[str, str | None]] = [
        *(_gpu_rows(gpus) if gpus else [("GPU", "none")]),
        ("driver", gpus.driver[:40] if gpus and gpus.driver else None),
        ("CPU", _cpu(d)),
        ("runtime", _runtime(d)),
        ("vLLM", f"{engine.vllm} ({engine.distribution})" if engine.vllm else "not installed"),
        ("model runner", (d.runner or "decided when it starts") if engine.vllm else None),
        ("torch", engine.torch),
        ("Python", f"{engine.python_version} ({engine.python})"),
        ("packages", _packages(engine)),
        ("settings", variables or "none: vLLM's defaults for runner, attention and AITER"),
        ("studies", _storage(d)),
        ("Hub", "offline" if d.hub_offline else "asked for models that are not cached"),
    ]
    return [(name, found) for name, found in rows if found]


def _runtime(d: Diagnosis) -> str | None:
    host = d.gpus.runtime if d.gpus else None
    both = (d.engine.runtime, f"{host} on the host" if host else None)
    return ", ".join(filter(None, both)) or None


def _packages(engine: EngineInfo) -> str:
    from autotune.machine.environment import DISTRIBUTIONS

    told = [f"{name} {version}" for name, version in sorted(engine.versions.items())]
    others = engine.packages - {DISTRIBUTIONS.get(name) for name in engine.versions}
    return ", ".join((*told, *sorted(others))) or "none of the optional ones"


def _gpu_rows(gpus: Gpus) -> list[tuple[str, str]]:
    """Devices that are alike share a row."""
    from autotune.wording import lengths_text

    alike: dict[str, list[int]] = {}
    for index, device in enumerate(gpus.devices):
        alike.setdefault(_device(device), []).append(index)
    return [
        (
            "GPU" if len(alike) == 1 else f"GPU {lengths_text(at)}",
            f"{len(at)} x {text}{_heat([gpus.devices[i] for i in at])}",
        )
        for text, at in alike.items()
    ] or [("GPU", "none visible")]


def _heat(devices: list[GpuDevice]) -> str:
    heats = [d.temperature_celsius for d in devices if d.temperature_celsius is not None]
    if not heats:
        return ""
    low, high = min(heats), max(heats)
    return f", {low:g} C" if low == high else f", {low:g} to {high:g} C"


def _device(d: GpuDevice) -> str:
    facts = (
        d.name,
        d.target if d.target != d.name else None,
        d.partition,
        f"{d.memory_bytes / GIB:.0f} GiB" if d.memory_bytes else "memory unknown",
        f"cap {d.power_cap_watts:g} W" if d.power_cap_watts else None,
        f"up to {d.max_clock_mhz:g} MHz" if d.max_clock_mhz else None,
    )
    return ", ".join(fact for fact in facts if fact)


def _cpu(d: Diagnosis) -> str:
    cpu = d.cpu
    cores = f"{cpu.logical_cores} cores" if cpu.logical_cores else None
    if cores and cpu.usable_cores not in (None, cpu.logical_cores):
        cores = f"{cpu.usable_cores} of {cores} usable"
    facts = (
        cpu.name or "unknown",
        cores,
        f"{cpu.memory_bytes / GIB:.0f} GiB" if cpu.memory_bytes else None,
        f"{cpu.numa_nodes} NUMA nodes" if (cpu.numa_nodes or 0) > 1 else None,
    )
    return ", ".join(fact for fact in facts if fact)


def _storage(d: Diagnosis) -> str:
    state = {True: "can be written", False: "cannot be written", None: "not asked"}
    return f"{d.storage.place} ({state[d.storage.writable]})"


def _faults(d: Diagnosis) -> list[Part]:
    if not d.engine.vllm:
        return []
    if not d.faults:
        return [("", ""), ("", "No known fault of this combination.")]
    said: list[Part] = [("", ""), ("bold", "Known faults of this combination (nothing is applied)")]
    for fault in d.faults:
        said += [(COLORS[fault.severity], f"{fault.severity:5}  {fault.id}, {_touches(fault)}")]
        for text in (fault.happens, f"-> {fault.advice}", fault.source):
            said += [("", line) for line in _wrapped(f"       {text}", "       ")]
    return said


def conditions(fault: Fault) -> str:
    """When a fault applies, in a few words."""
    models = fault.models.replace("\\", "").replace("|", ", ")
    backends = (b or "vLLM's choice of backend" for b in fault.backends)
    facts = (
        ", ".join(fault.platforms),
        ", ".join(fault.targets),
        f"vLLM {fault.vllm}" if fault.vllm else "",
        _touches(fault) if fault.methods or fault.above_n else "",
        f"models like {models}" if models else "",
        " or ".join(backends),
        {True: "AITER on", False: "AITER off", None: ""}[fault.aiter],
        {True: "V2 runner", False: "V1 runner", None: ""}[fault.runner_v2],
        "temperature above 0" if fault.sampled else "",
        " or ".join(fault.flags),
        "data parallel" if fault.data_parallel else "",
        "pipeline parallel" if fault.pipeline_parallel else "",
        f"{fault.unset} not set" if fault.unset else "",
    )
    return "; ".join(fact for fact in facts if fact) or "always"


def _touches(fault: Fault) -> str:
    who = ", ".join(fault.methods) or "any method"
    return f"{who} with N > {fault.above_n}" if fault.above_n else who


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
