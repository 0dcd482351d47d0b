"""`spectune doctor` on recorded machines, and what it finds on ones that cannot tune."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import jsonschema
import pytest
from machine_samples import NAMES, load, playing

from autotune.cli import invoke
from autotune.machine import cpu, environment
from autotune.machine.doctor import diagnose, look_at_storage


@pytest.fixture
def doctor(tmp_path, capsys):
    """Runs the verb on a machine; what it printed. `change` may alter the recording first."""

    def run(name, *options, change=lambda machine: None, code=0, **variables):
        machine = load(name)
        change(machine)
        machine["variables"] |= variables
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        with playing(machine, folder / "m") as python, contextlib.chdir(folder):
            assert invoke(["doctor", "--vllm-python", python, *options]) == code
        assert not (folder / "studies").exists(), "looking makes nothing"
        return capsys.readouterr().out

    return run


@pytest.fixture
def document(doctor):
    return lambda name, **how: json.loads(doctor(name, "--json", **how))


def squeezed(text):
    return " ".join(text.split())


def levels(document):
    return [(finding["level"], finding["says"]) for finding in document["findings"]]


# ------------------------------------------------------------------------------ machines that can


def test_the_answer_comes_first(doctor):
    lines = doctor("mi300x").splitlines()
    assert lines[0] == (
        "This machine is ready to tune: "
        "vLLM 0.32.0+rocm722 (ROCm 7.2.0) on 8 x AMD Instinct MI300X."
    )
    assert lines[1].startswith("First: settle it before tuning N: VLLM_ROCM_USE_AITER=1")
    table = lines.index("WHAT          FOUND")
    assert lines[table + 1] == (
        "GPU           8 x AMD Instinct MI300X, gfx942, SPX/NPS1, 192 GiB, cap 750 W, "
        "up to 2100 MHz, 38 to 40 C"
    )
    known = lines.index("Known faults of this combination (nothing is applied)")
    assert max(map(len, lines[known:])) <= 98


def test_the_document(document):
    found = document("mi355x")
    assert (found["schema"], found["ready"], found["runner"]) == ("spectune.doctor/1", True, None)
    assert found["environment"]["variables"] == {
        "VLLM_ROCM_USE_AITER": "1",
        "VLLM_ROCM_USE_AITER_MOE": "1",
    }
    assert found["environment"]["gpu_target"] == "gfx950"
    assert found["gpus"]["devices"][7]["memory_bytes"] == 294896 * 2**20
    assert found["cpu"]["logical_cores"] == 384
    assert found["gpus"]["runtime"] == "ROCm 7.2.3"
    assert "mtp-zero-gfx950" in [fault["id"] for fault in found["faults"]]
    assert found["findings"] == []


@pytest.mark.parametrize("name", NAMES)
def test_documents_fit_their_schema(document, name):
    schema = json.loads((Path(__file__).parents[1] / "docs/doctor.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document(name))


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("mi300x-cpx", "GPU 1-7       7 x AMD Instinct MI300X, gfx942, CPX/NPS4, 24 GiB"),
        (
            "mi250x",
            "GPU 0,2,4,6   4 x AMD INSTINCT MI250 (MCM) OAM AC MBA, gfx90a, 64 GiB, cap 560",
        ),
        ("h100", "GPU           4 x NVIDIA H100 80GB HBM3, sm_90, 80 GiB, cap 700 W"),
        ("a100-mig", "GPU           1 x NVIDIA A100-SXM4-40GB, sm_80, MIG 3g.20gb, memory unknown"),
        ("cpu", "CPU           AMD EPYC 9354 32-Core Processor, 8 cores, 31 GiB"),
    ],
)
def test_every_recorded_machine(doctor, name, row):
    out = doctor(name)
    assert squeezed(row) in squeezed(out)
    assert out.startswith("This machine is ready to tune: vLLM 0.")


def test_settings_are_told(doctor):
    assert "VLLM_ATTENTION_BACKEND=FLASHINFER" in doctor("h100")
    assert "none: vLLM's defaults for runner, attention and AITER" in doctor("mi300x")


def test_the_runner(document):
    assert document("mi300x")["runner"] == "V2"
    assert document("mi300x", VLLM_USE_V2_MODEL_RUNNER="0")["runner"] == "V1"


def test_faults_of_other_models_and_settings_are_left_out(doctor):
    out = doctor("mi300x")
    assert "rocm-aiter-off" in out
    out = doctor("mi300x", "--", "--attention-backend", "ROCM_AITER_FA")
    assert "rocm-aiter-off" not in out
    assert "First:" not in out
    assert "mtp-zero-gfx950" in doctor("mi355x", "--model", "amd/GLM-5.2-MXFP4")
    out = doctor("mi355x", "--model", "Qwen/Qwen3-8B")
    assert "mtp-zero-gfx950" not in out
    assert "aiter-mla-four-queries" not in out


def test_variables_that_hide_gpus_are_told(doctor):
    out = doctor("mi300x", HIP_VISIBLE_DEVICES="0,1")
    assert "HIP_VISIBLE_DEVICES=0,1" in out
    assert "GPU 2 x AMD Instinct MI300X" in squeezed(out)


def test_the_tools_are_there_and_do_not_answer(document):
    """A user outside the group render: the kernel still tells what the GPUs are."""

    def refused(machine):
        machine["tools"] = {"amd-smi": "ERROR: not in the required groups", "rocm-smi": "ERROR"}

    found = document("mi250x", change=refused)
    assert found["environment"]["gpu"] == "gfx90a"
    assert levels(found)[0][1].startswith("neither amd-smi nor rocm-smi answered")


# ----------------------------------------------------------------------- machines that cannot


def without_vllm(machine):
    machine["engine"] |= {"vllm": None, "distribution": None}


@pytest.mark.parametrize(
    ("name", "install"),
    [("mi300x", "rocm/vllm, vllm/vllm-openai-rocm"), ("h100", "pip install vllm"),
     ("cpu", "make install-vllm")],
)  # fmt: skip
def test_vllm_missing(doctor, name, install):
    """Plainly, with what to install for this platform; and it could look: exit code 0."""
    out = doctor(name, change=without_vllm)
    assert out.startswith("This machine is not ready to tune.\nFirst: ")
    assert install in squeezed(out)
    assert "vLLM not installed" in squeezed(out)
    assert "Known faults" not in out


def no_tools(machine):
    machine["tools"].clear()
    machine.pop("kfd", None)


def test_no_gpu_can_be_seen(document):
    found = document("mi300x", change=no_tools)
    assert not found["ready"]
    assert ("error", "no GPU can be seen") in levels(found)
    assert "/dev/kfd" in found["first"]
    assert found["environment"]["gpu"] is None


def test_a_build_for_another_vendor(document):
    def moved(machine):
        machine["tools"] = load("h100")["tools"]

    found = document("mi300x", change=moved)
    assert not found["ready"]
    (error,) = [says for level, says in levels(found) if level == "error"]
    assert error == "this vLLM is built for ROCm and the GPU is NVIDIA H100 80GB HBM3"


def test_a_cpu_build_beside_a_gpu(document):
    def moved(machine):
        machine["tools"] = load("mi300x")["tools"]

    found = document("cpu", change=moved)
    assert found["ready"]
    assert levels(found)[0][0] == "warning"
    assert found["environment"]["gpu"] is None
    assert len(found["gpus"]["devices"]) == 8


def test_vllm_too_old(document):
    found = document("mi300x", change=lambda machine: machine["engine"].update(vllm="0.18.2"))
    assert levels(found)[0] == ("error", "vLLM 0.18.2 is too old")


def test_mig_without_an_instance(document):
    def none(machine):
        machine["tools"].pop("nvidia-smi -L")

    found = document("a100-mig", change=none)
    assert ("error", "MIG is on and there is no instance") in levels(found)


# ------------------------------------------------------------------------------------- findings


def test_a_gpu_in_use(document):
    """A killed vLLM leaves its workers: 17153 of 24574 MiB, and 71830 of 81559."""
    assert ("warning", "GPU 3: 17 of 24 GiB are in use") in levels(document("mi300x-cpx"))
    assert levels(document("h100")) == [("warning", "GPU 0: 70 of 80 GiB are in use")]


def test_gpus_that_differ(document):
    def mixed(machine):
        first = machine["tools"]["amd-smi static"]["gpu_data"][0]
        first["asic"]["market_name"] = "AMD Instinct MI325X"
        first["limit"]["ppt0"]["socket_power_limit"]["value"] = 1000

    said = levels(document("mi300x", change=mixed))
    assert ("warning", "the GPUs differ: AMD Instinct MI325X + AMD Instinct MI300X") in said
    assert ("warning", "the GPUs' power caps differ: 750, 1000 W") in said


def test_aiter_missing_matters_where_it_runs(document):
    def bare(machine):
        machine["engine"]["packages"] = ["triton"]

    assert ("warning", "AITER is not installed beside vLLM") in levels(
        document("mi355x", change=bare)
    )
    assert not [says for _, says in levels(document("mi250x")) if "AITER" in says]


def test_the_hub_is_off(document):
    found = document("h100", HF_HUB_OFFLINE="1")
    assert found["hub_offline"]
    assert levels(found)[-1] == ("note", "the Hub is switched off (HF_HUB_OFFLINE)")


# -------------------------------------------------------------------------------------- storage


def test_storage_that_cannot_be_written(tmp_path, document, monkeypatch):
    monkeypatch.setattr("autotune.machine.doctor.os.access", lambda *_: False)
    found = document("cpu")
    assert not found["ready"]
    assert found["storage"]["writable"] is False
    assert "--storage sqlite:///FILE" in found["first"]


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "file").touch()
    assert look_at_storage(f"sqlite:///{tmp_path}/file/study.db").writable is False
    assert look_at_storage(f"sqlite:///{tmp_path}/file").writable is True


def test_a_file_in_a_folder_that_takes_no_journal(tmp_path, monkeypatch):
    (tmp_path / "study.db").touch()
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    assert look_at_storage(f"sqlite:///{tmp_path}/study.db").writable is False


def test_little_room(tmp_path, document, monkeypatch):
    usage = type("Usage", (), {"free": 2**29})
    monkeypatch.setattr("autotune.machine.doctor.shutil.disk_usage", lambda _: usage)
    assert levels(document("cpu"))[0][1].startswith("0.5 GiB are left for ")


# ------------------------------------------------------------------------------------ bad usage


def test_bad_usage_is_2(capsys, tmp_path):
    assert invoke(["doctor", "--vllm-python", str(tmp_path / "none")]) == 2
    assert invoke(["doctor", "--storage", "mysql://x/y"]) == 2
    assert invoke(["doctor", "--nonsense"]) == 2
    assert invoke(["doctor", "model"]) == 2
    assert capsys.readouterr().out == ""


def test_a_system_that_tells_nothing(tmp_path, monkeypatch):
    for module, name in ((cpu, "MEMINFO"), (cpu, "NODES"), (environment, "CPUINFO")):
        monkeypatch.setattr(module, name, tmp_path / "none")
    found = cpu.probe_cpu()
    assert (found.name, found.logical_cores, found.memory_bytes, found.numa_nodes) == (None,) * 4


def test_this_machine():
    """Whatever runs the tests can be looked at."""
    found = diagnose()
    assert found.engine.python_version
    assert Path(found.storage.place).is_absolute()


# ------------------------------------------------------------------------------- plans of a run


def dry_run(tmp_path, capsys, name, *options):
    """The preview of a run on a recorded machine, whose engine's validators are not asked."""
    model = tmp_path / "Kimi-K2.5"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with playing(load(name), tmp_path / name) as python:
        arguments = ["run", "--model", str(model), "--workload", "math", "--methods", "ngram"]
        arguments += ["--vllm-python", python, "--no-preflight", "--dry-run", "--json"]
        assert invoke([*arguments, *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run_is_warned_of_the_faults_it_will_meet(tmp_path, capsys):
    lengths = ("--num-speculative-tokens", "2,4,5")
    preview = dry_run(tmp_path, capsys, "mi355x", *lengths)
    said = preview["warnings"]
    assert any(w.startswith("ngram N=4-5: AITER's MLA decode kernels take at most 4") for w in said)
    assert any(w.startswith("with VLLM_ROCM_USE_AITER=1 vLLM still decodes") for w in said)
    assert not any(w.startswith("eagle3") for w in said)
    mended = dry_run(
        tmp_path, capsys, "mi300x", *lengths, "--", "--attention-backend", "ROCM_AITER_FA"
    )
    assert not any("ROCM_ATTN" in w for w in mended["warnings"])


def test_sampling_on_a_cpu_is_warned_of(tmp_path, capsys):
    hot = dry_run(tmp_path, capsys, "cpu", "--temperature", "0.5")
    assert any("the text is garbage" in w for w in hot["warnings"])
