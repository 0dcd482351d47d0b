"""Known faults: which apply to a machine, a method and an N, and what a plan says of them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuner_samples import plan_of

from autotune.machine.environment import EngineInfo
from autotune.machine.fault_table import FAULTS
from autotune.machine.faults import faults_for, plan_warnings, setup_of, with_fault_warnings
from autotune.machine.versions import release, within
from autotune.methods import all_methods
from autotune.records import Environment, Sampling, Target

AITER = {"VLLM_ROCM_USE_AITER": "1"}


def setup(platform="rocm", vllm="0.32.0", target=None, args=(), variables=(), **facts):
    info = EngineInfo(python="p", vllm=vllm, platform=platform, packages={"triton"})
    environment = Environment(gpu_target=target, variables=dict(variables))
    return setup_of(info, environment, args, **facts)


def ids(*args, method=None, n=None, **facts):
    return {fault.id for fault in faults_for(setup(*args, **facts), method, n)}


# ------------------------------------------------------------------------------------ each fault

BACKEND = ("--attention-backend", "ROCM_AITER_FA")
WHEN = [  # a fault; what it needs; then changes, each of which takes it away
    ("rocm-aiter-off", {"target": "gfx942"},
     [{"target": "gfx90a"}, {"platform": "cuda"}, {"variables": AITER}, {"args": BACKEND}]),
    ("rocm-attn-despite-aiter", {"target": "gfx950", "variables": AITER},
     [{"variables": {}}, {"args": BACKEND}]),
    ("eagle3-rocm-attn", {"method": "eagle3", "n": 3}, [{"method": "mtp"}, {"args": BACKEND}]),
    ("aiter-fa-several-queries", {"vllm": "0.13.0", "args": BACKEND},
     [{"vllm": "0.32.0"}, {"args": ()}]),
    ("aiter-fa-several-queries",
     {"vllm": "0.13.0", "variables": {"VLLM_ATTENTION_BACKEND": "ROCM_AITER_FA"}},
     [{"variables": {"VLLM_ATTENTION_BACKEND": "TRITON_ATTN"}}]),
    ("aiter-fa-minimax-m3",
     {"method": "eagle3", "model": "amd/MiniMax-M3-MXFP8", "args": BACKEND},
     [{"model": "Qwen/Qwen3-8B"}, {"args": ("--attention-backend", "TRITON_ATTN")}]),
    ("aiter-mla-four-queries",
     {"target": "gfx950", "variables": AITER, "model": "moonshotai/Kimi-K2.5", "n": 4},
     [{"n": 3}, {"n": 1}, {"model": "Qwen/Qwen3-8B"}, {"variables": {}}]),
    ("aiter-mla-dspark",
     {"target": "gfx950", "variables": AITER, "model": "k/Kimi-K3", "method": "dspark", "n": 2},
     [{"n": 1}, {"method": "eagle3"}]),
    ("aiter-mla-mtp-logits",
     {"vllm": "0.24.1", "variables": AITER, "model": "deepseek-ai/DeepSeek-R1", "method": "mtp"},
     [{"vllm": "0.25.0"}]),
    ("mtp-start-gfx950", {"target": "gfx950", "method": "mtp", "model": "zai-org/GLM-5.3-Flash"},
     [{"target": "gfx942"}, {"method": "eagle3"}]),
    ("mtp-zero-gfx950", {"target": "gfx950", "method": "mtp", "model": "amd/GLM-5.2-MXFP4"},
     [{"target": "gfx942"}]),
    ("mtp-hang-rccl", {"method": "mtp", "model": "zai-org/GLM-5.2-FP8", "args": ("-tp", "8")},
     [{"args": ()}]),
    ("mtp-sparse-mla-gfx942",
     {"vllm": "0.23.0", "target": "gfx942", "method": "mtp", "model": "zai-org/GLM-5.1-FP8"},
     [{"vllm": "0.27.0"}]),
    ("gpt-oss-triton", {"vllm": "0.19.0", "model": "openai/gpt-oss-20b",
                        "args": ("--attention-backend=TRITON_ATTN",)}, [{"vllm": "0.20.0"}]),
    ("sleep-mode", {"args": ("--enable-sleep-mode",)}, [{"args": ()}]),
    ("rocm-greedy-equality", {}, [{"platform": "cuda"}]),
    ("gemma4-dflash-backend",
     {"vllm": "0.20.2rc1.dev95+g8a4888be2", "method": "dflash", "model": "google/gemma-4-31B-it"},
     [{"vllm": "0.25.0"}, {"vllm": "0.19.9"}, {"method": "mtp"}]),
    ("mtp-illegal-memory",
     {"platform": "cuda", "vllm": "0.20.1", "method": "mtp", "model": "Qwen/Qwen3.6-27B-FP8"},
     [{"platform": "rocm"}, {"vllm": "0.18.0"}]),
    ("mtp-pipeline-parallel",
     {"vllm": "0.26.0", "method": "mtp", "args": ("--pipeline-parallel-size", "4")},
     [{"args": ("-pp", "1")}, {"method": "eagle3"}]),
    ("dspark-below-block", {"vllm": "0.26.0", "method": "dspark"}, [{"vllm": "0.27.0"}]),
    ("lora", {"vllm": "0.28.0", "args": ("--enable-lora",)}, [{"args": ()}]),
    ("suffix-learns", {"method": "suffix"}, [{"method": "ngram"}]),
    ("structured-output", {"vllm": "0.28.0", "method": "mtp"}, [{"vllm": "0.29.0"}]),
    ("logprobs-bypass", {"vllm": "0.12.0"}, [{"vllm": "0.14.0"}]),
    ("metrics-old", {"vllm": "0.10.2"}, [{"vllm": "0.19.0"}]),
    ("no-schedule", {"vllm": "0.23.0"}, [{"vllm": "0.24.0"}]),
    ("data-parallel-schedule", {"args": ("-dp", "2")}, [{"args": ("-dp", "1")}]),
    ("v2-drafts-largest", {"method": "dflash"}, [{"vllm": "0.31.0"}, {"method": "eagle3"}]),
    ("cpu-temperature", {"platform": "cpu", "temperature": 0.7},
     [{"temperature": 0.0}, {"platform": "rocm"}, {"vllm": "0.33.0"}]),
    ("cpu-ngram-threads", {"platform": "cpu", "method": "ngram"},
     [{"variables": {"NUMBA_NUM_THREADS": "1"}}, {"method": "suffix"}]),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "facts", "changes"), WHEN)
def test_when_a_fault_applies(fault, facts, changes):
    assert fault in ids(**facts)
    for change in changes:
        assert fault not in ids(**{**facts, **change}), change


def test_every_fault_of_the_table_is_tested():
    tested = {fault for fault, *_ in WHEN}
    assert {fault.id for fault in FAULTS} - tested == {"schedule-piecewise"}  # see below


def test_the_v1_runner_has_a_fault_of_its_own(monkeypatch):
    assert "schedule-piecewise" not in ids()
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    assert "schedule-piecewise" in ids()
    assert "v2-drafts-largest" not in ids()


@pytest.mark.parametrize(
    ("args", "backend"),
    [
        (("--attention-backend", "rocm_aiter_fa"), "ROCM_AITER_FA"),
        (("--attention-backend=auto",), None),
        (("-ac", '{"flash_attn_version": 3, "backend": "FLASH_ATTN"}'), "FLASH_ATTN"),
        (("--attention-config", '{"use_prefill_decode_attention": true}'), None),
        (("-ac", '{"backend_per_kind": {"mla_attention": "FLASHINFER_MLA"}}'), None),
        (("--attention-config.backend", "TRITON_ATTN"), "TRITON_ATTN"),
        (("--attention-config.use_prefill_decode_attention", "true"), None),
        (("--attention-config.flash_attn_version=3",), None),
    ],
)
def test_the_backend_that_was_asked_for(args, backend):
    assert setup(args=args).backend == backend


def test_what_is_not_known():
    """The doctor has no model and no temperature; advice for a GPU without a target is seen."""
    assert {"aiter-mla-four-queries", "mtp-start-gfx950"} <= ids(variables=AITER)
    assert "cpu-temperature" in ids(platform="cpu")
    assert "no-schedule" not in ids(vllm="0.1.dev3912+gc7f3a20")  # a build without a version
    assert ids(platform=None) <= {f.id for f in FAULTS if not f.platforms}


def test_one_of_several_gpus_is_enough():
    assert "rocm-aiter-off" in ids(target="gfx90a + gfx942")


def test_the_worst_come_first():
    order = ["wrong", "fails", "slow", "note"]
    kinds = [fault.severity for fault in faults_for(setup(target="gfx950", variables=AITER))]
    assert len(set(kinds)) > 2
    assert kinds == sorted(kinds, key=order.index)


# ------------------------------------------------------------------------------------- the table


def test_the_table_is_sound():
    methods = {method.name for method in all_methods()}
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert set(fault.methods) <= methods, fault.id
        assert within((0, 32, 0), fault.vllm) in (True, False), fault.id
        re.compile(fault.models)
        assert fault.source, fault.id
        assert not fault.happens.endswith((".", ":")), fault.id


# -------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.32.0", (0, 32, 0)), ("0.32.0+rocm722", (0, 32, 0)), ("0.27.2rc1.dev256+ge", (0, 27, 2)),
     ("0.9", (0, 9, 0)), ("1.0.0.1", (1, 0, 0)), ("0.1.dev3912+gc7f3a20", None), ("dev", None),
     ("", None), (None, None)],
)  # fmt: skip
def test_releases(text, version):
    assert release(text) == version


@pytest.mark.parametrize(
    ("ranges", "inside", "outside"),
    [(">=0.24,<0.32", ["0.24.0", "0.31.9"], ["0.23.9", "0.32.0", "1.0.0"]),
     ("<0.19", ["0.18.2"], ["0.19.0", "0.100.0"]), (">=0.9", ["0.10.0"], ["0.8.5"])],
)  # fmt: skip
def test_ranges(ranges, inside, outside):
    assert all(within(release(v), ranges) for v in inside)
    assert not any(within(release(v), ranges) for v in outside)
    assert not within(None, ranges)


@pytest.mark.parametrize("text", ["==0.24", ">0.24", "<=0.24", "0.24", ">=", "<0.1,"])
def test_a_range_that_is_none(text):
    with pytest.raises(ValueError, match="no range"):
        within((0, 0, 5), text)


@given(st.text(max_size=20))
def test_any_text_is_a_version_or_none(text):
    assert release(text) is None or len(release(text)) == 3


# ----------------------------------------------------------------------------------------- plans

INFO = EngineInfo(python="p", vllm="0.32.0", platform="rocm", packages={"triton"})
MI355X = Environment(gpu_target="gfx950", variables=AITER)


def planned(model="moonshotai/Kimi-K2.5", environment=MI355X, args=(), **spaces):
    plan = plan_of(**spaces)
    target = Target(model=model, engine_args=args)
    return plan.model_copy(update={"target": target, "environment": environment})


def test_a_plan_names_the_candidates_that_a_fault_touches():
    plan = planned(eagle3=[1, 3, 4, 6], ngram=[2, 5])
    (said,) = [w for w in plan_warnings(plan, INFO) if "at most 4 query tokens" in w]
    assert said.startswith("eagle3 N=4,6; ngram N=5: AITER's MLA decode kernels")
    assert "(https://github.com/ROCm/aiter/issues/2760, " in said


def test_a_fault_of_the_machine_is_told_once_and_names_nobody():
    plan = planned(eagle3=[1, 2], ngram=[1, 2])
    said = [w for w in plan_warnings(plan, INFO) if "ROCM_ATTN" in w and "EAGLE-3 drafter" not in w]
    assert len(said) == 1
    assert said[0].startswith("with VLLM_ROCM_USE_AITER=1")


def test_notes_stay_with_the_doctor():
    plan = planned(suffix=[4], environment=Environment())
    info = INFO.model_copy(update={"platform": "cuda"})
    assert faults_for(setup_of(info, plan.environment), "suffix", 4)
    assert plan_warnings(plan, info) == ()


def test_the_temperature_of_the_workload_counts():
    cpu = INFO.model_copy(update={"platform": "cpu"})
    greedy = planned(draft_model=[2], environment=Environment())
    assert plan_warnings(greedy, cpu) == ()
    sampled = greedy.workload.model_copy(update={"sampling": Sampling(temperature=0.5)})
    (said,) = plan_warnings(greedy.model_copy(update={"workload": sampled}), cpu)
    assert "text is garbage: tune at --temperature 0" in said


def test_warnings_are_added_to_those_of_the_plan():
    plan = planned(eagle3=[4]).model_copy(update={"warnings": ("first",)})
    warned = with_fault_warnings(plan, INFO)
    assert warned.warnings == ("first", *plan_warnings(plan, INFO))
    assert warned.sha256 == plan.sha256
