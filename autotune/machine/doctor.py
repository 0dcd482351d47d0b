"""What `spectune doctor` says of a machine: what is there, what to mend first, known faults."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from autotune.engines.live import expects_v2
from autotune.machine.cpu import Cpu, probe_cpu
from autotune.machine.doctor_findings import Finding, Storage, findings_of
from autotune.machine.environment import EngineInfo, environment_of, probe_engine
from autotune.machine.faults import Fault, faults_for, setup_of
from autotune.machine.gpu import VISIBLE, Gpus, probe_gpus
from autotune.models.config_json import offline
from autotune.records import Environment, Record
from autotune.storage.url import resolve_storage, shown, sqlite_path


class Diagnosis(Record):
    """The document `spectune.doctor/1`."""

    schema_: Literal["spectune.doctor/1"] = Field(default="spectune.doctor/1", alias="schema")
    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), populate_by_name=True
    )
    ready: bool  # nothing stands against `spectune run`
    answer: str
    first: str | None  # what to do first; None: nothing
    environment: Environment  # as a study would store it
    engine: EngineInfo
    runner: Literal["V1", "V2"] | None  # vLLM's model runner; None: decided when it starts
    gpus: Gpus | None
    cpu: Cpu
    storage: Storage
    hub_offline: bool
    visible: dict[str, str]  # variables that hide GPUs
    findings: tuple[Finding, ...]
    faults: tuple[Fault, ...]  # of any method; shown, never applied


def diagnose(
    vllm_python: str | None = None,
    storage: str | None = None,
    model: str | None = None,
    engine_args: Sequence[str] = (),
) -> Diagnosis:
    """Look, and change nothing: no engine is started, no file is written.

    `model` and `engine_args` leave out the faults that do not touch them. Raises
    ConfigurationError for an interpreter that does not run or arguments that cannot be read,
    StorageError for a URL that is none.
    """
    engine = probe_engine(vllm_python)
    gpus = _gpus(engine)
    environment = environment_of(engine, None if engine.platform == "cpu" else gpus)
    cpu, place, hub_offline = probe_cpu(), look_at_storage(storage), offline()
    findings = findings_of(engine, gpus, place, hub_offline=hub_offline)
    setup = setup_of(engine, environment, engine_args, model)
    faults = faults_for(setup) if engine.vllm else ()
    v2 = expects_v2(engine, engine_args) if engine.vllm else None
    return Diagnosis(
        ready=not any(finding.level == "error" for finding in findings),
        answer=_answer(engine, gpus, cpu, findings),
        first=_first(findings, faults),
        environment=environment,
        engine=engine,
        runner=None if v2 is None else "V2" if v2 else "V1",
        gpus=gpus,
        cpu=cpu,
        storage=place,
        hub_offline=hub_offline,
        visible=visible_devices(),
        findings=findings,
        faults=faults,
    )


def _gpus(engine: EngineInfo) -> Gpus | None:
    """What the engine sees, else what the machine has: that no engine can use it is a finding."""
    own = None if engine.platform == "cpu" else engine.platform
    found = probe_gpus(own, now=True)
    return probe_gpus(None, now=True) if found is None and own else found


def visible_devices() -> dict[str, str]:
    names = {name for groups in VISIBLE.values() for group in groups for name in group}
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}


def look_at_storage(url: str | None) -> Storage:
    """Whether studies can be kept there; nothing is made."""
    resolved = resolve_storage(url, create=False)
    path = sqlite_path(resolved)
    if path is None:
        return Storage(place=shown(resolved), writable=None)
    there = next((p for p in (path, *path.parents) if p.exists()), Path("/"))
    free = shutil.disk_usage(there).free
    folder = there.parent if there == path else there  # SQLite keeps its journal beside the file
    writable = folder.is_dir() and all(os.access(p, os.W_OK) for p in {there, folder})
    return Storage(place=str(path), writable=writable, free_bytes=free)


def _answer(engine: EngineInfo, gpus: Gpus | None, cpu: Cpu, findings: tuple[Finding, ...]) -> str:
    if findings and findings[0].level == "error":
        return "This machine is not ready to tune."
    where = cpu.name or "this processor"
    if gpus and engine.platform != "cpu":
        where = f"{len(gpus.devices)} x {gpus.name}"
    build = f" ({engine.runtime})" if engine.runtime else ""
    return f"This machine is ready to tune: vLLM {engine.vllm}{build} on {where}."


def _first(findings: tuple[Finding, ...], faults: tuple[Fault, ...]) -> str | None:
    """The first error, else the first warning, else a fault that touches every method."""
    if findings and findings[0].level != "note":
        return f"{findings[0].says}: {findings[0].advice}"
    general = (f for f in faults if f.severity != "note" and not f.methods and not f.models)
    return next((f"{fault.advice} ({fault.id})" for fault in general), None)
