"""`spectune export`: every form parsed back with another program, and what is refused."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from store_samples import make_plan, make_recommendation
from tuner_samples import Scripted, plan_of

from autotune.cli import cli
from autotune.cli import export as cli_export
from autotune.documents import load_recommendation
from autotune.engines import EngineOptions
from autotune.engines.vllm import VllmEngine
from autotune.errors import ConfigurationError
from autotune.export import FORMS, export, remarks
from autotune.export.serve_args import serve_args, split_options
from autotune.machine.environment import EngineInfo
from autotune.machine.variables import engine_variables
from autotune.plan import Request
from autotune.plan import make_plan as make_plan_of
from autotune.records import Environment, Recommendation, Target
from autotune.store import open_study

MODEL = "google/gemma-4-26B-A4B-it"
CONFIG = {"method": "eagle3", "model": "acme/draft", "num_speculative_tokens": 3}
MI300X = Environment(gpu="AMD Instinct MI300X", runtime="ROCm 7.2.0", vllm="0.32.0")
SCHEDULE = [(1, 4, 3), (5, 64, 1)]


def recommendation(*engine_args: str, config=CONFIG, **changes) -> Recommendation:
    plan = make_plan(changes.pop("model", MODEL))
    method, n = ("eagle3", 3) if config else ("none", 0)
    fields = {
        "engine": "vllm", "environment": MI300X, "engine_args": engine_args, "method": method,
        "num_speculative_tokens": n, "speculative_config": config,
        "vllm_serve_args": serve_args(config), "variables": {},
        "decision": "speculate" if config else "do_not_speculate",
    }  # fmt: skip
    return make_recommendation(plan, "abc", **{**fields, **changes})


def refused(r, form) -> str:
    with pytest.raises(ConfigurationError) as caught:
        export(r, form)
    assert caught.value.exit_code == 2
    return caught.value.message


# -------------------------------------------------------------------------- reading them back


def words_of(command: str) -> list[str]:
    """What a real shell makes of a command's words."""
    script = f"printf '%s\\0' {command}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True, timeout=20)
    return done.stdout.decode().split("\0")[:-1]


def variables_of(script: str, names) -> dict[str, str]:
    """What a real shell has after `.`: NUL-separated."""
    ask = "".join(f"; printf '%s\\0' \"${name}\"" for name in names)
    done = subprocess.run(
        ["sh", "-c", f"eval \"$1\"{ask}", "sh", script], capture_output=True, check=True, env={},
        timeout=20,
    )  # fmt: skip
    return dict(zip(names, done.stdout.decode().split("\0")[:-1], strict=True))


def as_vllm_loads(text: str) -> list[str]:
    """The words that vLLM 0.32 makes of a config file (`load_config_file` of its parser)."""
    words = []
    for key, value in yaml.safe_load(text).items():
        if value is True:
            words.append(f"--{key}")
        elif isinstance(value, list):
            words += [f"--{key}", *map(str, value)]
        elif isinstance(value, dict):
            words += [f"--{key}", json.dumps(value)]
        else:
            assert value is not False  # `vllm serve` drops it
            words += [f"--{key}", str(value)]
    return words


def expanded(text: str) -> str:
    """What Kubernetes makes of an argument: `$$` is a dollar, $(NAME) a variable's value."""
    return re.sub(r"\$\$|\$\([^)]*\)", lambda m: "$" if m[0] == "$$" else "<value>", text)


def parsed(words):
    """(flag, values), JSON read, the last of each flag: what a parser is left with."""
    found = {}
    for option in split_options(words):
        values = [as_json(value) for value in option.values]
        found.pop(option.flag, None)
        found[option.flag] = values
    return found


def as_json(text):
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


# ------------------------------------------------------------------------------- hypothesis

# no NUL: no argument of a process can hold one; no surrogates: JSON holds none
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
NASTY = st.sampled_from(
    ["", " ", "'", '"', "it's", "$HOME", "$(id)", "$$", "`id`", "a\nb", "a\\", "*", "~", "#no",
     "true", "no", "null", "0x1f", "1_000", "007", "1e3", "0.90", "12:30", "=", "a=b", "[1]",
     "- x", ": x", "&a", "é\x85\ufeff", "2020-01-01", "!!python/none", "{{ .x }}", "\t", "\x1b["]
)  # fmt: skip
VALUE = st.one_of(TEXT, NASTY, st.integers(-(10**20), 10**20).map(str), st.floats().map(repr))
PLAIN = VALUE.filter(lambda text: not text.startswith("-") or text == "-")
JSON = st.dictionaries(
    TEXT,
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
        max_leaves=4,
    ),
    max_size=3,
)
OPTIONS = {
    "--dtype": st.tuples(PLAIN),
    "--max-num-seqs": st.tuples(st.integers(-9, 10**6).map(str)),
    "--gpu-memory-utilization": st.tuples(st.sampled_from(["0.9", "0.90", ".5", "1"])),
    "--enforce-eager": st.just(()),
    "--no-enable-prefix-caching": st.just(()),
    "--served-model-name": st.lists(PLAIN, min_size=1, max_size=3).map(tuple),
    "--chat-template": st.tuples(PLAIN),
    "--hf-overrides": st.tuples(JSON.map(json.dumps)),
    "--compilation-config.mode": st.tuples(VALUE),
    "--trust-remote-code": st.just(()),
}


@st.composite
def engine_args(draw):
    """(as written, as understood); each flag once."""
    flags = draw(st.lists(st.sampled_from(sorted(OPTIONS)), unique=True, max_size=5))
    written = []
    for flag in flags:
        values = draw(OPTIONS[flag])
        name, dot, part = flag.partition(".")
        spelled = draw(st.sampled_from([name, "--" + name[2:].replace("-", "_")])) + dot + part
        glued = len(values) == 1 and draw(st.booleans())
        written += [f"{spelled}={values[0]}"] if glued else [spelled, *values]
    return written


CONFIGS = st.one_of(st.none(), JSON.map(lambda extra: {**extra, **CONFIG}))
ROUNDS = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@ROUNDS
@given(engine_args(), CONFIGS, VALUE)
def test_the_command_is_the_same_words_in_a_real_shell(arguments, config, model):
    r = recommendation(*arguments, config=config, model=model)
    expected = ["vllm", "serve", model, *arguments]
    words = words_of(export(r, "command"))
    assert words[: len(expected)] == expected
    rest = words[len(expected) :]
    if config is None:
        assert rest == []
    else:
        assert rest[0] == "--speculative-config"
        assert [json.loads(text) for text in rest[1:]] == [config]


@ROUNDS
@given(engine_args(), CONFIGS, PLAIN)
def test_the_config_file_is_the_same_options_to_vllm(arguments, config, model):
    r = recommendation(*arguments, config=config, model=model)
    expected = parsed(arguments)
    if config is not None:
        expected["--speculative-config"] = [config]
    assert parsed(as_vllm_loads(export(r, "config"))) == {"--model": [as_json(model)], **expected}


@ROUNDS
@given(engine_args(), CONFIGS)
def test_what_kubernetes_passes_on_is_the_same_words(arguments, config):
    r = recommendation(*arguments, config=config)
    deployment, service = yaml.safe_load_all(export(r, "kubernetes"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    words = [expanded(text) for text in container["args"]]
    assert container["command"] == ["vllm", "serve"]
    assert words == [MODEL, "--host", "0.0.0.0", "--port", "8000", *arguments, *serve_args(config)]
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert service["spec"]["selector"] == selector
    assert deployment["spec"]["template"]["metadata"]["labels"] == selector
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["containerPort"]


@ROUNDS
@given(engine_args(), CONFIGS)
def test_what_helm_passes_on_is_the_same_words(arguments, config):
    r = recommendation(*arguments, config=config)
    (spec,) = yaml.safe_load(export(r, "helm"))["servingEngineSpec"]["modelSpec"]
    words = [expanded(text) for text in spec["vllmConfig"]["extraArgs"]]
    assert words == [*arguments, *serve_args(config)]
    off = "--no-enable-prefix-caching" in parsed(arguments)
    assert spec["vllmConfig"]["enablePrefixCaching"] is not off  # the chart sets it either way


@ROUNDS
@given(engine_args(), JSON.map(lambda extra: {**extra, **CONFIG}))
def test_what_a_recipe_passes_on_is_the_same_words(arguments, config):
    document = yaml.safe_load(export(recommendation(*arguments, config=config), "recipe"))
    assert document["model"]["model_id"] == MODEL
    flag, text = document["features"]["spec_decoding"]["args"]
    assert (flag, json.loads(text)) == ("--speculative-config", config)
    extra = document.get("hardware_overrides", {"amd": {"extra_args": []}})["amd"]["extra_args"]
    assert extra == arguments


NAMES = st.sampled_from(["VLLM_A", "HIP_B", "AITER_C", "OMP_NUM_THREADS"])


@ROUNDS
@given(st.dictionaries(NAMES, TEXT | NASTY))
def test_the_variables_are_the_same_in_a_real_shell(variables):
    script = export(recommendation(variables=variables), "env")
    assert variables_of(script, list(variables)) == variables


@ROUNDS
@given(engine_args(), CONFIGS)
def test_the_json_is_the_recommendation(tmp_path_factory, arguments, config):
    r = recommendation(*arguments, config=config)
    file = tmp_path_factory.mktemp("json") / "r.json"
    file.write_text(export(r, "json"))
    assert load_recommendation(file) == r
    if config is not None:
        assert json.loads(export(r, "speculative-config")) == config


@given(st.lists(st.text(alphabet="-=.ab_+ 1", max_size=5), max_size=5))
@example(["-O"])
@example(["--a."])
def test_arguments_are_split_without_loss_or_refused(arguments):
    try:
        options = split_options(arguments)
    except ConfigurationError:
        return
    tokens = [token for option in options for token in option.tokens]
    assert tokens == (arguments[:-1] if arguments[-1:] == ["--"] else arguments)


# --------------------------------------------------------------------------------- by example


def test_a_config_file_by_hand():
    r = recommendation(
        "-tp", "2", "--max_model_len", "8k", "--gpu-memory-utilization", "0.9",
        "--no-enable-prefix-caching", "--hf-overrides", '{"rope_theta": 1}', "-O3",
        "--served-model-name", "a", "b", "--max-num-seqs", "4", "--max-num-seqs", "8",
        "--limit-mm-per-prompt.image", "2", "--seed=-1",
    )  # fmt: skip
    assert yaml.safe_load(export(r, "config")) == {
        "model": MODEL, "tensor-parallel-size": 2, "max-model-len": "8k",
        "gpu-memory-utilization": 0.9, "no-enable-prefix-caching": True,
        "hf-overrides": {"rope_theta": 1}, "optimization-level": 3,
        "served-model-name": ["a", "b"], "max-num-seqs": 8, "limit-mm-per-prompt.image": 2,
        "seed": -1, "speculative-config": CONFIG,
    }  # fmt: skip


def test_the_last_of_a_switch_and_its_opposite_counts():
    r = recommendation("--no-enable-prefix-caching", "--enable-prefix-caching")
    document = yaml.safe_load(export(r, "config"))
    assert document["enable-prefix-caching"] is True
    assert "no-enable-prefix-caching" not in document


def test_the_users_own_config_file_is_taken_in(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("max_num_seqs: 4\ndtype: float32\nkv-transfer-config: {a: 1}\nuvicorn: [x]\n")
    r = recommendation("--config", str(file), "--max-num-seqs", "8")
    assert yaml.safe_load(export(r, "config")) == {
        "model": MODEL, "dtype": "float32", "kv-transfer-config": {"a": 1}, "uvicorn": ["x"],
        "max-num-seqs": 8, "speculative-config": CONFIG,
    }  # fmt: skip
    deployment, _ = yaml.safe_load_all(export(r, "kubernetes"))
    words = deployment["spec"]["template"]["spec"]["containers"][0]["args"][5:]
    assert words[:-2] == [
        "--max-num-seqs", "4", "--dtype", "float32", "--kv-transfer-config", '{"a": 1}',
        "--uvicorn", "x", "--max-num-seqs", "8",
    ]  # fmt: skip
    assert export(r, "command").split()[3:5] == ["--config", str(file)]
    file.write_text("enable-prefix-caching: false\n")
    assert "means --no-enable-prefix-caching to one start" in refused(r, "kubernetes")
    file.unlink()
    assert "own.yaml" in refused(r, "config")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--middleware", "a", "--middleware", "b"), "more than once"),
        (("--chat-template=-x",), "its value reads as a flag"),
        (("--seed=-0.5",), "its value reads as a flag"),
        (("-xyz", "1"), "long name is not known"),
        (("stray",), "belongs to no flag"),
        (("--config=a.yaml",), "this one is not read"),
        (("--config", "a.yaml", "--config", "b.yaml"), "one config file"),
    ],
)
def test_what_a_config_file_cannot_say(arguments, why):
    assert why in refused(recommendation(*arguments), "config")
    assert export(recommendation(*arguments), "command")


# ----------------------------------------------------------------------------------- refusals

SERVING = tuple(form for form in FORMS if form != "json")


@pytest.mark.parametrize("form", SERVING)
def test_inconclusive_is_not_served(form):
    assert "inconclusive" in refused(recommendation(decision="inconclusive"), form)
    assert json.loads(export(recommendation(decision="inconclusive"), "json"))


@pytest.mark.parametrize("form", SERVING)
def test_a_replay_has_no_drafter_to_serve(form):
    r = recommendation(config=None, method="dflash", num_speculative_tokens=7, decision="speculate")
    assert "names no drafter for dflash" in refused(r, form)


@pytest.mark.parametrize("form", SERVING)
def test_a_schedule_is_not_served_under_data_parallelism(form):
    config = {**CONFIG, "num_speculative_tokens_per_batch_size": [list(t) for t in SCHEDULE]}
    for size, allowed in (("1", True), ("2", False)):
        r = recommendation("-dp", size, config=config, schedule=SCHEDULE)
        if allowed:
            assert export(r, form)
        else:
            assert "data parallelism" in refused(r, form)
    assert export(recommendation("-dp", "2"), form)  # one N is


@pytest.mark.parametrize("form", SERVING)
def test_synthetic_acceptance_is_not_served(form):
    r = recommendation(config={**CONFIG, "rejection_sample_method": "synthetic"})
    assert "synthetic" in refused(r, form)


@pytest.mark.parametrize("form", SERVING)
def test_arguments_that_are_not_the_config(form):
    r = recommendation(vllm_serve_args=serve_args({**CONFIG, "num_speculative_tokens": 4}))
    assert "contradicts itself" in refused(r, form)


def test_no_speculation_is_served_without_it():
    r = recommendation("--max-num-seqs", "8", config=None)
    assert export(r, "command") == f"vllm serve {MODEL} --max-num-seqs 8"
    assert yaml.safe_load(export(r, "config")) == {"model": MODEL, "max-num-seqs": 8}
    assert "speculative" not in export(r, "kubernetes") + export(r, "helm")
    assert "do_not_speculate" in refused(r, "speculative-config")
    assert "recommends no speculation" in refused(r, "recipe")


@pytest.mark.parametrize(
    "spelled",
    [
        ("--per-request-spec-decode-metrics", "detailed"),
        ("--per_request_spec_decode_metrics=summary",),
        ("--per-request-spec", "detailed"),
    ],
)
def test_flags_that_need_drafts_go_with_them(spelled, tmp_path):
    """vLLM: "--per-request-spec-decode-metrics requires speculative decoding"."""
    r = recommendation("--max-num-seqs", "8", *spelled, config=None)
    for form in ("command", "config", "kubernetes", "helm"):
        text = export(r, form)
        assert "request" not in text.replace("requestCPU", "").replace("requestMemory", "").replace(
            "requestGPU", ""
        )
        assert "--per-request-spec" in remarks(r, form)[0]
        assert "max-num-seqs" in text
    drafting = recommendation("--max-num-seqs", "8", *spelled)
    assert spelled[0] in export(drafting, "command") and remarks(drafting, "command") == ()
    file = tmp_path / "own.yaml"
    file.write_text("per-request-spec-decode-metrics: detailed\nseed: 1\n")
    r = recommendation("--config", str(file), config=None)
    assert yaml.safe_load(export(r, "config")) == {"model": MODEL, "seed": 1}
    assert "per-request" not in export(r, "kubernetes")


@pytest.mark.parametrize("form", ["helm", "kubernetes"])
def test_an_unknown_platform_has_no_image(form):
    assert "no image" in refused(recommendation(environment=Environment(vllm="0.32.0")), form)


def test_images_and_devices_follow_what_was_measured():
    cases = [
        ("ROCm 7.2.0", "0.32.0", "vllm/vllm-openai-rocm:v0.32.0", {"amd.com/gpu": "4"}),
        ("CUDA 13.0", "0.32.0+cu130", "vllm/vllm-openai:v0.32.0", {"nvidia.com/gpu": "4"}),
        ("CUDA 13.0", "0.32.1.dev12+gabc", "vllm/vllm-openai:latest", {"nvidia.com/gpu": "4"}),
        ("CPU", None, "vllm/vllm-openai-cpu:latest", None),
    ]
    for runtime, vllm, image, limits in cases:
        environment = Environment(runtime=runtime, vllm=vllm)
        r = recommendation("-tp", "2", "--pipeline-parallel-size=2", environment=environment)
        deployment, _ = yaml.safe_load_all(export(r, "kubernetes"))
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"] == image
        assert container["resources"].get("limits") == limits
        (spec,) = yaml.safe_load(export(r, "helm"))["servingEngineSpec"]["modelSpec"]
        assert f"{spec['repository']}:{spec['tag']}" == image
        assert spec["requestGPU"] == (4 if limits else 0)
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", spec["name"])


def test_a_recipe_names_the_hardware_and_the_tensor_parallel_size():
    variables = {"VLLM_ROCM_USE_AITER": "1", "HIP_VISIBLE_DEVICES": "0"}
    r = recommendation("--max-num-seqs", "8", "-tp", "2", variables=variables)
    document = yaml.safe_load(export(r, "recipe"))
    amd = {"extra_args": ["--max-num-seqs", "8"], "extra_env": {"VLLM_ROCM_USE_AITER": "1"}}
    assert document["hardware_overrides"] == {"amd": amd}
    assert document["strategy_overrides"] == {"single_node_tp": {"tp": 2}}
    assert document["opt_in_features"] == ["spec_decoding"]
    assert "2.00x on sums" in document["features"]["spec_decoding"]["description"]
    for gpu, family in (("NVIDIA H200", "hopper"), ("NVIDIA B200", "blackwell"),
                        ("NVIDIA A100-SXM4-80GB", "nvidia")):  # fmt: skip
        environment = Environment(gpu=gpu, runtime="CUDA 13.0")
        r = recommendation("--seed", "1", environment=environment)
        assert list(yaml.safe_load(export(r, "recipe"))["hardware_overrides"]) == [family]
    assert "ORG/NAME" in refused(recommendation(model="/models/mine"), "recipe")


def test_prefill_context_parallelism_takes_gpus_too():
    """vLLM's world size is tensor x pipeline x prefill context (config/parallel.py): 2 x 3."""
    r = recommendation("-tp", "2", "-pcp", "3")
    (spec,) = yaml.safe_load(export(r, "helm"))["servingEngineSpec"]["modelSpec"]
    assert spec["requestGPU"] == 6


def description(r):
    document = yaml.safe_load(export(r, "recipe"))
    return document["features"]["spec_decoding"]["description"]


def test_a_schedule_is_not_told_as_one_n():
    r = recommendation(schedule=SCHEDULE)
    assert description(r).startswith("eagle3 with N by batch size (1-4: 3, from 5: 1): 2.00x")
    heading = export(r, "config").splitlines()[0]
    assert heading.endswith("eagle3 with N by batch size (1-4: 3, from 5: 1), 2.00x")


def test_one_figure_for_several_loads_is_called_a_mean():
    assert "mean" not in description(recommendation())
    loads = tuple(
        recommendation().per_concurrency[0].model_copy(update={"concurrency": load})
        for load in (1, 8)
    )
    assert "geometric mean at 1, 8 concurrent requests" in description(
        recommendation(per_concurrency=loads)
    )


def test_a_gpu_without_a_name_is_no_cpu():
    environment = Environment(runtime="ROCm 7.2.0")
    assert description(recommendation(environment=environment)).endswith("(ROCm 7.2.0).")


@pytest.mark.parametrize(
    "text",
    ["1e3", "0o17", "y", "N", "off", "1_0", "12:30", ".5", "~", "null", "2020-01-01", "=", "+1"],
)
def test_text_is_text_to_every_yaml(text):
    """YAML 1.2 (Kubernetes, Helm, JavaScript) has other numbers and booleans than YAML 1.1."""
    r = recommendation("--tokenizer", text, variables={"VLLM_A": text})
    for form in ("kubernetes", "helm", "recipe", "config"):
        assert re.search(rf"(- |: )'{re.escape(text)}'$", export(r, form), re.MULTILINE), form


def test_a_local_model_in_a_container_is_said():
    r = recommendation(model="/models/mine")
    assert remarks(r, "kubernetes") == ("the container needs a volume with /models/mine",)


def test_a_comment_holds_no_second_line():
    r = recommendation(model="a\nmodel: evil")
    assert yaml.safe_load(export(r, "config"))["model"] == "a\nmodel: evil"


# ----------------------------------------------------------------------------------- variables


def test_which_variables_are_recorded():
    given = {
        "VLLM_ROCM_USE_AITER": "1", "HIP_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "1",
        "VLLM_API_KEY": "secret", "HF_TOKEN": "secret", "VLLM_SOME_TOKEN": "secret",
        "VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_SERVER_DEV_MODE": "1", "PATH": "/bin", "HOME": "/x",
        "NUMBA_NUM_THREADS": "2",
    }  # fmt: skip
    gpu = EngineInfo(python="/p", platform="rocm")
    kept = ("HIP_VISIBLE_DEVICES", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "VLLM_ROCM_USE_AITER")
    assert engine_variables(gpu, given) == {name: given[name] for name in kept}
    cpu = engine_variables(EngineInfo(python="/p", platform="cpu"), given)
    assert cpu["NUMBA_NUM_THREADS"] == "2"  # the user's
    assert cpu["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"  # ours: engines on a CPU get it


def test_variables_that_were_not_recorded_are_not_invented():
    assert "does not say which" in refused(recommendation(variables=None), "env")
    assert "none of the variables" in export(recommendation(variables={}), "env")


# -------------------------------------------------------------------------------- command line


@pytest.fixture
def spectune(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return CliRunner().invoke(cli, ["export", *arguments])

    return run


@pytest.fixture
def file(tmp_path):
    r = recommendation("--max-num-seqs", "8", variables={"VLLM_ROCM_USE_AITER": "1"})
    path = tmp_path / "r.json"
    path.write_text(r.model_dump_json(by_alias=True))
    return path


def test_a_file_and_a_study_give_the_same(spectune, file):
    r = load_recommendation(file)
    with open_study(None, make_plan(MODEL)) as study:
        study.finish(r)
    for form in ("json", "config"):
        from_file = spectune(str(file), "--format", form)
        assert from_file.exit_code == 0
        assert from_file.stdout == spectune(study.id[:6], "--format", form).stdout
        assert from_file.stdout == export(r, form) + "\n"
    assert spectune("--format", "config").stdout == from_file.stdout  # the newest


def test_output_goes_to_a_file(spectune, file, tmp_path):
    result = spectune(str(file), "--format", "config", "-o", "serve.yaml")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "measured with VLLM_ROCM_USE_AITER: --format env" in result.stderr
    assert yaml.safe_load((tmp_path / "serve.yaml").read_text())["max-num-seqs"] == 8
    result = spectune(str(file), "--format", "config", "-o", "serve.json")
    assert isinstance(result.exception, ConfigurationError)  # vLLM would refuse that file


DAMAGED = {
    "missing": (None, "No such file"),
    "not JSON": ("{", "is not JSON"),
    "another schema": ('{"schema": "spectune.recording/1"}', "has schema 'spectune.recording/1'"),
    "a newer schema": ('{"schema": "spectune.recommendation/2"}', "recommendation/2"),
    "a list": ("[]", "has schema None"),
    "empty": ('{"schema": "spectune.recommendation/1"}', "Field required"),
}


@pytest.mark.parametrize(("text", "why"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused(tmp_path, text, why):
    path = tmp_path / "bad.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(why)) as caught:
        load_recommendation(path)
    assert "bad.json" in caught.value.message


CHANGES = {
    "wrong type": ({"num_speculative_tokens": "three"}, "num_speculative_tokens"),
    "N": ({"num_speculative_tokens": 4}, "speculative_config has 3"),
    "no method": ({"method": "none"}, "method none with N=3"),
    "decision": ({"decision": "do_not_speculate"}, "do_not_speculate, but N=3"),
    "decision unknown": ({"decision": "maybe"}, "decision"),
    "nothing chosen": (
        {"method": "none", "num_speculative_tokens": 0, "speculative_config": None},
        "speculate, but no method",
    ),
}


@pytest.mark.parametrize(("change", "why"), CHANGES.values(), ids=CHANGES)
def test_a_file_changed_by_hand_is_refused(file, change, why):
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ConfigurationError, match=why):
        load_recommendation(file)


PROMISED = {  # the keys that every document has, and nothing else
    "schema": "spectune.recommendation/1",
    "model": MODEL,
    "workload": {"name": "math", "sha256": "ab", "num_prompts": 64, "temperature": 0.0},
    "environment": {"gpu": "AMD Instinct MI300X", "runtime": "ROCm 7.2.0", "vllm": "0.32.0",
                    "torch": "2.13.0"},
    "decision": "speculate",
    "method": "dflash",
    "num_speculative_tokens": 7,
    "speculative_config": {"method": "dflash", "model": "acme/draft", "num_speculative_tokens": 7},
    "speedup": {"value": 2.71, "low": 2.66, "high": 2.76, "confidence": 0.95},
    "per_concurrency": [{"concurrency": 8, "method": "dflash", "num_speculative_tokens": 7,
                         "speedup": {"value": 2.7, "low": 2.6, "high": 2.8, "confidence": 0.95}}],
    "schedule": None,
    "candidates": [{"method": "dflash", "num_speculative_tokens": 7, "concurrency": 8,
                    "status": "confirmed", "predicted_output_tokens_per_second": 6260.0,
                    "output_tokens_per_second": 6249.0, "acceptance_length": 5.06,
                    "per_position_acceptance_rates": [0.88, 0.77],
                    "draft_seconds_per_step": 0.0021, "verify_seconds_per_step": 0.0148}],
    "baseline": [{"concurrency": 8, "output_tokens_per_second": 2310.0}],
    "cost": {"engine_starts": 4, "probes": 19, "probe_seconds": 511.0, "total_seconds": 702.0},
    "vllm_serve_args": [
        "--speculative-config",
        '{"method": "dflash", "model": "acme/draft", "num_speculative_tokens": 7}',
    ],
    "warnings": [],
}  # fmt: skip


def test_a_document_of_another_program_needs_only_what_is_promised(tmp_path, caplog):
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(PROMISED))
    r = load_recommendation(path)
    assert (r.study, r.per_concurrency[0].decision, r.engine_args) == ("theirs", "speculate", ())
    config = yaml.safe_load(export(r, "config"))
    assert config == {"model": MODEL, "speculative-config": PROMISED["speculative_config"]}
    assert words_of(export(r, "command"))[:3] == ["vllm", "serve", MODEL]
    assert "amd" not in yaml.safe_load(export(r, "recipe"))  # nothing is known beside the config
    assert not caplog.records
    more = {**PROMISED, "surprise": 1, "baseline": [{**PROMISED["baseline"][0], "watts": 700}]}
    path.write_text(json.dumps(more))
    assert load_recommendation(path) == r
    assert "surprise" in caplog.text and "baseline.0.watts" in caplog.text


@pytest.mark.parametrize("key", sorted(set(PROMISED) - {"schema", "schedule", "warnings"}))
def test_what_is_promised_must_be_there(tmp_path, key):
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps({name: PROMISED[name] for name in PROMISED if name != key}))
    with pytest.raises(ConfigurationError, match=rf"theirs.json: .*{key}: Field required"):
        load_recommendation(path)


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    below = value.items() if isinstance(value, dict) else ()
    for key, inner in enumerate(value) if isinstance(value, list) else below:
        yield from places(inner, (*path, key))


ANY_JSON = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | TEXT | JSON


@settings(max_examples=150)
@given(st.sampled_from(list(places(PROMISED))[1:]), ANY_JSON | st.lists(ANY_JSON))
def test_whatever_is_damaged_is_an_error_of_use(tmp_path_factory, place, value):
    document = json.loads(json.dumps(PROMISED))
    row = document
    for step in place[:-1]:
        row = row[step]
    row[place[-1]] = value
    path = tmp_path_factory.mktemp("damaged") / "r.json"
    path.write_text(json.dumps(document))
    try:
        r = load_recommendation(path)
        for form in FORMS:
            with contextlib.suppress(ConfigurationError):
                assert export(r, form)
    except ConfigurationError as error:
        assert "r.json" in error.message


# ------------------------------------------------------------------------- from plan to document


def test_a_plan_for_a_real_engine_records_its_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_ROCM_USE_AITER", "1")
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    request = Request(model=str(tmp_path), workload="math", methods="ngram", preflight=False)
    engine = VllmEngine(EngineOptions())
    engine.info = EngineInfo(python=sys.executable, vllm="0.32.0", platform="cpu")
    first = make_plan_of(request, engine)
    assert first.variables["VLLM_ROCM_USE_AITER"] == "1"
    assert first.variables["NUMBA_NUM_THREADS"] == "1"
    monkeypatch.setenv("VLLM_ROCM_USE_AITER", "0")
    second = make_plan_of(request, engine)
    assert second.variables["VLLM_ROCM_USE_AITER"] == "0"


@pytest.mark.slow
def test_a_recommendation_says_what_its_command_leaves_out(stage):
    flag = "--per-request-spec-decode-metrics"
    plan = plan_of(settings={"greedy_prompts": 0}, mtp=[1])
    arguments = ("--seed", "1", flag, "detailed")
    target = Target(model="acme/small", engine_args=arguments)
    plan = plan.model_copy(update={"target": target, "variables": {"VLLM_A": "1"}})
    slow = stage.tune(Scripted({("none", 0): 100.0, ("mtp", 1): 80.0}), plan=plan)
    assert slow.decision == "do_not_speculate"
    assert slow.serve_command == "vllm serve acme/small --seed 1"
    assert slow.warnings[-1] == f"{flag} is left out: vLLM refuses it without speculation"
    assert slow.engine_args == arguments  # what was measured
    assert slow.variables == {"VLLM_A": "1"}
    fast = stage.tune(Scripted({("none", 0): 100.0, ("mtp", 1): 180.0}), plan=plan, fresh=True)
    assert fast.decision == "speculate"
    assert not any("left out" in warning for warning in fast.warnings)


def test_forms_of_the_command_line_are_those_that_can_be_written():
    assert cli_export.FORMS == FORMS
