"""What is refused, skipped or doubted before an engine is started, and by whom."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import textwrap
import time
from contextlib import closing

import psutil
import pytest
from checkpoint_samples import checkpoint
from tiny_models import tiny_models
from vllm_samples import ENGINE_ARGS, NEEDS_VLLM, engine_environment

from autotune.cli.render import dry_run_text
from autotune.dryrun import preview
from autotune.engines import EngineOptions
from autotune.engines.vllm import VllmEngine
from autotune.errors import ConfigurationError
from autotune.machine.environment import EngineInfo
from autotune.machine.gpu_tools import GpuDevice, Gpus
from autotune.plan import Request, make_plan
from autotune.preflight import preflight
from autotune.preflight.capture import capture_size
from autotune.preflight.client import WORKER as WORKER_FILE
from autotune.preflight.client import EngineFacts, Validator, ValidatorError
from autotune.preflight.weights import Weights
from autotune.records import Message, MethodSpace, Plan, Prompt, Settings, Target, Workload

NGRAM = MethodSpace(method="ngram", lengths=(2, 3, 4), config={"method": "ngram"})
MTP = MethodSpace(method="mtp", lengths=(1, 2, 3), config={"method": "mtp"})

# A stand-in for the side process: `verdict(arguments, config)` is the test's own.
WORKER = """
    import json, os, sys, time
    def tell(**answer):
        print(json.dumps(answer), flush=True)
    def accept(**facts):
        tell(ok=True, facts=facts)
    def refuse(error):
        tell(ok=False, error=error)
    {before}
    tell(ready="0.32.0")
    for line in sys.stdin:
        asked = json.loads(line)
        given = asked["arguments"]
        at = given.index("--speculative-config") + 1 if "--speculative-config" in given else None
        config = json.loads(given[at]) if at else {{}}
        n = config.get("num_speculative_tokens")
        live = "num_speculative_tokens_per_batch_size" in config
        {verdict}
"""


@pytest.fixture
def fake(tmp_path):
    """An engine whose interpreter answers as the test says."""

    def build(verdict: str = "accept()", before: str = "") -> VllmEngine:
        python = tmp_path / "python"
        program = textwrap.dedent(WORKER).format(before=before, verdict=verdict)
        python.write_text(f"#!{sys.executable}\n{program}")
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
        engine = VllmEngine(EngineOptions())
        engine.info = EngineInfo(python=str(python), vllm="0.32.0", platform="cpu")
        return engine

    return build


def plan_of(*spaces: MethodSpace, engine_args: tuple[str, ...] = (), **settings) -> Plan:
    prompt = Prompt(id="a", messages=(Message(role="user", content="one two"),))
    return Plan(
        engine="vllm", target=Target(model="org/model", engine_args=engine_args),
        workload=Workload(name="w", prompts=(prompt,)), spaces=spaces, concurrencies=(1,),
        settings=Settings(**settings),
    )  # fmt: skip


def check(
    plan: Plan, engine: VllmEngine, *named: str, said: list[str] | None = None, **more
) -> Plan:
    progress = (said if said is not None else []).append
    return preflight(plan, engine, named=frozenset(named), progress=progress, **more)


def skips(plan: Plan) -> list[tuple[str, int | None, str]]:
    return [(s.method, s.num_speculative_tokens, s.reason) for s in plan.skipped]


# ------------------------------------------------------------------- what vLLM says is believed


def test_what_vllm_accepts_is_left_as_it_is(fake):
    plan, said = plan_of(NGRAM, MTP), []
    assert check(plan, fake(), said=said) == plan
    assert said[-1] == "preflight: 6 of 6 candidates stay"


def test_vllm_gets_the_very_arguments_of_its_server(fake, tmp_path):
    engine = fake(f"open({str(tmp_path / 'asked')!r}, 'a').write(line); accept()")
    plan = plan_of(NGRAM, engine_args=("--dtype", "float32"))
    check(plan, engine)
    asked = [json.loads(line)["arguments"] for line in (tmp_path / "asked").open()]
    assert len(asked) == 5  # the baseline, three N, all N in one start
    for arguments in asked:
        assert arguments[:4] == ["--model", "org/model", "--dtype", "float32"]
    for n, arguments in zip(NGRAM.lengths, asked[1:4], strict=True):
        assert arguments[2:] == engine.argv(plan.target, NGRAM.arm(n, live=False), 0)[5:]
    assert "--scheduler-cls" in asked[4]


def test_a_refused_n_is_skipped_with_vllms_reason(fake):
    plan = check(plan_of(MTP, NGRAM), fake("refuse('N is\\n  odd') if n == 3 else accept()"), "mtp")
    assert [s.lengths for s in plan.spaces] == [(1, 2), (2, 4)]
    reason = "vLLM refuses it: N is odd"
    assert skips(plan) == [("mtp", 3, reason), ("ngram", 3, reason)]


def test_a_method_refused_altogether_is_skipped_unless_it_was_named(fake):
    engine = fake("refuse('no such layers') if config.get('method') == 'mtp' else accept()")
    plan = check(plan_of(MTP, NGRAM), engine, "ngram")
    assert [s.method for s in plan.spaces] == ["ngram"]
    assert skips(plan) == [("mtp", None, "vLLM refuses it: no such layers")]
    with pytest.raises(ConfigurationError, match=r"mtp cannot .* no such layers") as caught:
        check(plan_of(MTP, NGRAM), engine, "mtp")
    assert caught.value.exit_code == 2


def test_arguments_refused_without_speculation_are_the_users_to_mend(fake):
    with pytest.raises(ConfigurationError, match="unrecognized arguments: --no-such") as caught:
        check(plan_of(NGRAM), fake("refuse('unrecognized arguments: --no-such')"))
    assert caught.value.exit_code == 2
    assert "--no-preflight" in caught.value.hint


def test_a_refused_switch_costs_one_start_per_n(fake):
    plan = check(plan_of(NGRAM), fake("refuse('no schedule') if live else accept()"))
    (space,) = plan.spaces
    assert (space.live_n, space.lengths) == (False, NGRAM.lengths)
    assert plan.warnings == ("ngram: one start per N, vLLM refuses more: no schedule",)
    assert (
        check(plan_of(NGRAM, live_n=False), fake("refuse('x') if live else accept()")).warnings
        == ()
    )


def test_owned_flags_are_refused_before_anything_is_asked(fake):
    with pytest.raises(ConfigurationError, match="--port"):
        check(plan_of(NGRAM, engine_args=("--port", "1")), fake("os._exit(1)"))


def test_a_dry_run_names_what_is_skipped_once_a_reason(fake):
    """N with one reason share a line; a method of which nothing is left has no N."""
    engine = fake("refuse('odd') if config.get('method') == 'mtp' and n > 1 else accept()")
    text = dry_run_text(preview(check(plan_of(MTP, NGRAM), engine), engine))
    assert text.count("skipped mtp N=2-3: vLLM refuses it: odd\n") == 1
    engine = fake("refuse('odd') if config.get('method') == 'mtp' else accept()")
    text = dry_run_text(preview(check(plan_of(MTP, NGRAM), engine), engine))
    assert text.count("skipped mtp: vLLM refuses it: odd\n") == 1


# ------------------------------------------------------- a side process that cannot be relied on


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verdict", "before", "words"),
    [
        ("os.abort()", "", "SIGABRT"),
        ("os._exit(3)", "", "exit status 3"),
        ("", "sys.exit('No module named vllm')", "No module named vllm"),
        ("print('hello', flush=True)", "", "makes no sense"),
        ("tell(ok='perhaps')", "", "makes no sense"),
        ("tell(ok=True, facts={'colour': 1})", "", "makes no sense"),
        ("os.close(1); time.sleep(60)", "", "closed its output"),
    ],
    ids=["abort", "exit", "no vllm", "garbage", "no verdict", "unknown fact", "closed"],
)  # fmt: skip
def test_a_side_process_that_fails_blocks_nothing_and_is_told(fake, verdict, before, words):
    plan = plan_of(NGRAM, MTP)
    checked = check(plan, fake(verdict, before))
    assert (checked.spaces, checked.skipped) == (plan.spaces, plan.skipped)
    (warning,) = checked.warnings
    assert warning.startswith("not checked with vLLM's own validators") and words in warning


def test_verdicts_before_a_failure_count(fake):
    engine = fake("os.abort() if n == 3 else refuse('even') if n in (2, 4) else accept()")
    checked = check(plan_of(MTP, NGRAM), engine)
    assert [s.lengths for s in checked.spaces] == [(1, 3), NGRAM.lengths]
    assert skips(checked) == [("mtp", 2, "vLLM refuses it: even")]
    assert len(checked.warnings) == 1


def test_no_vllm_is_told(tmp_path):
    engine = VllmEngine(EngineOptions(vllm_python=str(tmp_path / "python")))
    (tmp_path / "python").write_text(
        f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n'
    )  # no site-packages there
    (tmp_path / "python").chmod(0o755)
    (warning,) = check(plan_of(NGRAM), engine).warnings
    assert "vLLM is not installed" in warning


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verdict", "before", "words"),
    [("accept()", "time.sleep(60)", "loading vLLM"), ("time.sleep(60)", "", "checking")],
    ids=["import", "check"],
)
def test_a_hang_ends(fake, verdict, before, words):
    python, said = fake(verdict, before).info.python, []
    with pytest.raises(ValidatorError, match=words):
        limits = {"load_seconds": 1.5, "check_seconds": 1.5}
        with closing(Validator(python, os.environ, said.append, **limits)) as one:
            one.check([])
    assert any(line.endswith("(1 s)") for line in said)


@pytest.mark.slow
def test_nothing_is_left_behind(fake, tmp_path):
    """Not even what the side process started itself."""
    child = "import subprocess; subprocess.Popen(['sleep', '600'])"
    file = tmp_path / "pid"
    note = f"open({str(file)!r}, 'w').write(str(os.getpid()))"
    check(plan_of(NGRAM), fake(before=f"{child}; {note}"))
    group = int(file.read_text())
    for _ in range(100):  # a killed orphan is there until init has taken note
        left = [p.pid for p in psutil.process_iter() if _group(p) == group and _alive(p)]
        if not left:
            return
        time.sleep(0.05)
    pytest.fail(f"left: {left}")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_the_side_process_ends_with_a_killed_parent(tmp_path, seconds):
    """Even while vLLM is being imported, when it does not read what it is told; and where the
    parent is gone before its interpreter is up."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("import time; time.sleep(600)")
    program = (
        "import subprocess, sys, time\n"
        f"started = subprocess.Popen([sys.executable, {str(WORKER_FILE)!r}],"
        " start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)\n"
        "print(started.pid, flush=True)\n"
        "time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    worker = psutil.Process(int(parent.stdout.readline()))
    time.sleep(seconds)  # after a second it is up, and sleeps in the import
    assert _alive(worker)
    parent.kill()
    parent.wait()
    gone, _ = psutil.wait_procs([worker], timeout=30)
    assert gone or not _alive(worker)


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# --------------------------------------------------------------- what vLLM does not say beforehand


def told(fake, plan: Plan, /, *named: str, device_bytes: int | None = None, **facts) -> Plan:
    """The plan after a preflight in which vLLM accepts all and says `facts` of the baseline."""
    return check(plan, fake(f"accept(**{facts!r})"), *named, device_bytes=device_bytes)


def test_min_p_by_default_leaves_nothing_to_try(fake):
    """vLLM answers such requests with an error wherever it speculates."""
    plan = told(fake, plan_of(NGRAM, MTP), sampling={"min_p": 0.05, "top_p": 0.9})
    assert plan.spaces == ()
    assert [(m, n) for m, n, _ in skips(plan)] == [("ngram", None), ("mtp", None)]
    assert all("min_p=0.05" in s.reason and "--generation-config" in s.reason for s in plan.skipped)
    with pytest.raises(ConfigurationError, match="min_p"):
        told(fake, plan_of(NGRAM), "ngram", sampling={"min_p": 0.05})
    for harmless in ({"min_p": 0.0}, {"top_p": 0.5}, {}, None):
        assert told(fake, plan_of(NGRAM), sampling=harmless).spaces == (NGRAM,)


def test_logits_processors_and_the_v1_runner(fake):
    plan = told(fake, plan_of(NGRAM), logits_processors=["a.b:C"], v2_runner=False)
    assert plan.spaces == () and "a.b:C" in plan.skipped[0].reason
    for facts in ({"v2_runner": True}, {}):
        assert told(fake, plan_of(NGRAM), logits_processors=["a.b:C"], **facts).spaces == (NGRAM,)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--enable-lora",), "adapter"),
        (("--enable_auto_tool_choice",), "JSON schemas"),
        (("--structured-outputs-config.backend", "auto"), "JSON schemas"),
    ],
)
def test_features_that_are_not_measured_are_said_once(fake, flags, words):
    (warning,) = told(fake, plan_of(NGRAM, MTP, engine_args=flags)).warnings
    assert words in warning


def test_requests_longer_than_the_drafter_was_trained_for(fake, tmp_path):
    """An EAGLE head for 2048 positions, a prompt of 2600 tokens."""
    head = checkpoint(tmp_path / "head", max_position_embeddings=2048)
    plan = plan_of(NGRAM, NGRAM.model_copy(update={"method": "eagle3", "drafter": head}))
    answer = "tell(ok=True, tokens=[{}]) if n is None else accept()"
    (warning,) = check(plan, fake(answer.format(2600))).warnings
    assert "trained to 2048 positions; 1 of 1 requests" in warning
    assert "up to 2856 tokens" in warning  # with 256 of the answer
    assert check(plan, fake(answer.format(2048 - 256))).warnings == ()
    assert check(plan, fake()).warnings == ()  # lengths not known


def test_requests_that_the_engine_will_not_take(fake):
    answer = "tell(ok=True, tokens=[1000], facts=dict(max_model_len=1024))"
    (warning,) = check(plan_of(NGRAM), fake(answer)).warnings
    assert "1 of 1 requests need up to 1256 tokens" in warning and "1024" in warning


# ------------------------------------------------------------------------- memory, graph captures


def test_a_drafter_that_cannot_fit_is_skipped_with_the_figures(fake, tmp_path, monkeypatch):
    """40 + 8 GiB on a device of 50 GiB, of which 0.9 are usable."""
    sizes = {"org/model": 40 * 2**30, "org/drafter": 8 * 2**30}
    monkeypatch.setattr(
        "autotune.preflight.memory_estimate.model_weights",
        lambda name: Weights(by_type={"BF16": sizes[name]}),
    )
    facts = {"gpu_memory_utilization": 0.9, "tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    drafted = MTP.model_copy(update={"drafter": "org/drafter"})
    plan = told(fake, plan_of(NGRAM, drafted), device_bytes=50 * 2**30, **facts)
    assert plan.spaces == (NGRAM,)
    reason = "target and drafter do not fit: weights 40.0 GiB + drafter 8.0 GiB a device, 45.0 GiB"
    assert skips(plan) == [("mtp", None, f"{reason} usable")]
    two = {**facts, "tensor_parallel_size": 2}
    assert len(told(fake, plan_of(NGRAM, drafted), device_bytes=50 * 2**30, **two).spaces) == 2
    for unknown in ({}, {**facts, "pipeline_parallel_size": 2}):
        assert len(told(fake, plan_of(drafted), device_bytes=50 * 2**30, **unknown).spaces) == 1
    assert len(told(fake, plan_of(drafted), device_bytes=None, **facts).spaces) == 1
    # not what is stored, not all of it on each device, or another limit than the share
    for flags in (("--quantization", "fp8"), ("--enable-expert-parallel", "-dp", "8"), ("-ep",),
                  ("--kv-cache-memory-bytes", "1G"), ("--language-model-only",),
                  ("--offload-group-size", "8")):  # fmt: skip
        flagged = plan_of(drafted, engine_args=flags)
        assert len(told(fake, flagged, device_bytes=50 * 2**30, **facts).spaces) == 1
    small = told(fake, plan_of(NGRAM), device_bytes=40 * 2**30, **facts)
    assert small.spaces == (NGRAM,) and "leaves no room" in small.warnings[0]


def test_a_cache_that_holds_fewer_requests_than_the_load(fake, tmp_path, monkeypatch):
    """1 MiB usable, weights of 24 KiB, 2 x 2 layers x 1 head x 32 numbers of 2 bytes a token."""
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
              "num_key_value_heads": 1, "head_dim": 32, "torch_dtype": "bfloat16"}  # fmt: skip
    model = checkpoint(tmp_path / "m", **config)
    weights = Weights(by_type={"BF16": 24 * 1024})
    monkeypatch.setattr("autotune.preflight.memory_estimate.model_weights", lambda name: weights)
    facts = {"gpu_memory_utilization": 0.5, "tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    answer = f"tell(ok=True, tokens=[44], facts={facts}) if n is None else accept()"
    plan = plan_of(NGRAM).model_copy(update={"target": Target(model=model)})
    fits = (1024 - 24) * 1024 // (2 * 2 * 32 * 2) // (44 + 256)
    for load in (fits, fits + 1):
        busy = plan.model_copy(update={"concurrencies": (1, load)})
        checked = check(busy, fake(answer), device_bytes=2 * 2**20)
        assert len(checked.warnings) == (load > fits), checked.warnings
        assert all(f"at most {fits} of these requests" in w for w in checked.warnings)
    for load in (2 * fits, 2 * fits + 1):  # two replicas, two caches
        target = Target(model=model, engine_args=("--data-parallel-size", "2"))
        busy = plan.model_copy(update={"concurrencies": (load,), "target": target})
        warnings = check(busy, fake(answer), device_bytes=2 * 2**20).warnings
        assert any(f"at most {2 * fits} of these" in w for w in warnings) == (load > 2 * fits)


def cards(*sizes):
    return Gpus(devices=tuple(GpuDevice(name="GPU", memory_bytes=size) for size in sizes))


@pytest.mark.parametrize(
    ("gpus", "warns"),
    [(cards(8192, 1000), True), (cards(8192, 4000), False), (cards(None, 1000), False),
     (None, False)],
    ids=["small", "large", "one unknown", "no gpu"],
)  # fmt: skip
def test_the_smallest_gpu_decides(fake, tmp_path, monkeypatch, gpus, warns):
    """Weights of 1500 bytes, half of each card's memory usable."""
    info = EngineInfo(python="p", vllm="0.32.0", platform="rocm")
    monkeypatch.setattr("autotune.plan.probe_engine", lambda _: info)
    monkeypatch.setattr("autotune.machine.environment.probe_gpus", lambda _: gpus)
    weights = Weights(by_type={"BF16": 1500})
    monkeypatch.setattr("autotune.preflight.memory_estimate.model_weights", lambda name: weights)
    facts = {"gpu_memory_utilization": 0.5, "tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    model = checkpoint(tmp_path / "m", model_type="llama")
    request = Request(model=model, workload="math", methods="ngram")
    plan = make_plan(request, fake(f"accept(**{facts})"))
    assert any("leaves no room" in warning for warning in plan.warnings) == warns
    off = request.model_copy(update={"preflight": False})
    assert not any("leaves no room" in w for w in make_plan(off, fake("os.abort()")).warnings)


def test_a_plan_that_is_left_empty_is_an_error(fake, tmp_path, monkeypatch):
    info = EngineInfo(python="p", vllm="0.32.0", platform="cpu")
    monkeypatch.setattr("autotune.plan.probe_engine", lambda _: info)
    request = Request(model=checkpoint(tmp_path / "m", model_type="llama"), workload="math")
    engine = fake("refuse('not this one') if n else accept()")
    with pytest.raises(ConfigurationError, match=r"nothing is left .*ngram: vLLM refuses it: not"):
        make_plan(request, engine)


def test_graphs_that_are_too_small_for_a_load(fake):
    """Six requests with N=6 are 42 tokens; a largest size of 40 does not hold them."""
    plan = plan_of(MTP.model_copy(update={"lengths": (5, 6)}))
    plan = plan.model_copy(update={"concurrencies": (1, 6)})
    sizes = [1, 2, 4, 8, 16, 24, 32, 40]
    (warning,) = told(fake, plan, capture_sizes=sizes, max_num_seqs=6).warnings
    assert "from N=6 on, at concurrency 6" in warning
    assert "is 42 tokens, captured are up to 40" in warning
    assert "--max-cudagraph-capture-size 48" in warning
    assert told(fake, plan, capture_sizes=[*sizes, 42]).warnings == ()
    assert told(fake, plan, capture_sizes=[]).warnings == ()  # no graphs at all
    assert told(fake, plan, capture_sizes=sizes, cudagraph_mode="NONE").warnings == ()
    assert told(fake, plan).warnings == ()  # not known
    assert told(fake, plan, capture_sizes=sizes, max_num_seqs=5).warnings == ()  # never six
    for replicas, warns in (("1", 1), ("2", 0)):  # three requests each
        target = Target(model="org/model", engine_args=("-dp", replicas))
        shared = plan.model_copy(update={"target": target})
        assert len(told(fake, shared, capture_sizes=sizes).warnings) == warns


@pytest.mark.parametrize(
    ("tokens", "size"), [(1, 8), (42, 48), (248, 248), (249, 256), (256, 256), (513, 528)]
)
def test_sizes_on_vllms_grid(tokens, size):
    assert capture_size(tokens) == size


# ------------------------------------------------------- the side process, on a vLLM of few lines

OLDER_VLLM = {  # where it had its parser before 0.30, without most of what is told
    "vllm/__init__.py": "print('hello from vLLM')\n__version__ = '0.19.0'",
    "vllm/utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser",
    "vllm/usage/usage_lib.py": "class UsageContext:\n    OPENAI_API_SERVER = 'api'",
    "vllm/entrypoints/openai/cli_args.py": """
        def make_arg_parser(parser):
            parser.add_argument("--model")
            parser.add_argument("--size", type=int, default=1)
            return parser
        def validate_parsed_serve_args(args):
            if args.size == 3:
                raise TypeError("Error: not three")
    """,
    "vllm/engine/arg_utils.py": """
        from types import SimpleNamespace
        import pydantic
        class Config(pydantic.BaseModel):
            size: int = pydantic.Field(lt=10)
            @pydantic.model_validator(mode="after")
            def even(self):
                if self.size == 5:
                    raise ValueError("five is too many")
                return self
        class AsyncEngineArgs:
            @staticmethod
            def from_cli_args(args):
                print("noise on stdout")
                def create_engine_config(context):
                    if args.size == 7:
                        raise OSError("No such thing: '7'.\\nPlease verify:\\n1. this\\n")
                    model = SimpleNamespace(max_model_len=Config(size=args.size).size)
                    if args.size == 9:
                        model.get_diff_sampling_param = lambda: {"min_p": 0.1, "top_k": 20}
                    if args.size != 8:
                        return SimpleNamespace(model_config=model)
                    def broken():
                        raise RuntimeError("no generation_config.json")
                    model.get_diff_sampling_param = broken
                    return Raising(model_config=model)
                class Raising(SimpleNamespace):
                    @property
                    def use_v2_model_runner(self):
                        raise ValueError("this needs the V2 runner")
                return SimpleNamespace(create_engine_config=create_engine_config)
    """,
}


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    root = tmp_path_factory.mktemp("older")
    for name, text in OLDER_VLLM.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(textwrap.dedent(text))
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with closing(Validator(sys.executable, environment, lambda _: None)) as validator:
        yield validator


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--size", "3"), "TypeError: Error: not three"),
        (("--size", "5"), "five is too many"),
        (("--size", "12"), "size: Input should be less than 10"),
        (("--size", "7"), "OSError: No such thing: '7'."),
        (("--size", "x"), "argument --size: invalid int value: 'x'"),
        (("--sise", "1"), "unrecognized arguments: --sise 1"),
        (("--help",), "vllm serve would end at once (exit status 0)"),
    ],
)
def test_vllms_words_without_their_frame(older, arguments, error):
    verdict = older.check(["--model", "m", *arguments])
    assert (verdict.ok, verdict.error) == (False, error)


def test_what_an_older_version_does_not_say_is_none(older):
    verdict = older.check(["--model", "m", "--size", "2"], [[{"role": "user", "content": "a"}]])
    assert verdict.ok and verdict.tokens is None  # it has no tokenizer either
    assert verdict.facts == EngineFacts(max_model_len=2)


def test_sampling_is_told_as_it_is(older):
    verdict = older.check(["--model", "m", "--size", "9"])
    assert verdict.facts.sampling == {"min_p": 0.1, "top_k": 20}


def test_a_fact_that_raises_is_none_and_ends_nothing(older):
    """vLLM 0.32 does so: VllmConfig.use_v2_model_runner of HiSparse on the V1 runner."""
    verdict = older.check(["--model", "m", "--size", "8"])
    assert (verdict.ok, verdict.facts) == (True, EngineFacts(max_model_len=8))
    assert older.check(["--model", "m", "--size", "2"]).facts == EngineFacts(max_model_len=2)


# ------------------------------------------------------------------------- vLLM's own validators


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """One side process with the real vLLM for all tests."""
    with engine_environment(tmp_path_factory):
        engine = VllmEngine(EngineOptions())
        with closing(engine.validator(lambda _: None)) as validator:
            yield validator


@pytest.fixture(scope="module")
def models():
    return tiny_models()


class TestRealValidators:
    pytestmark = NEEDS_VLLM

    def _verdict(self, real, models, *more: str, **config):
        given = ["--model", str(models.target), *ENGINE_ARGS, *more]
        if config:
            config = {"num_speculative_tokens": 3, **config}
            given += ["--speculative-config", json.dumps(config)]
        return real.check(given)

    def test_what_can_run_is_accepted_with_what_vllm_made_of_it(self, real, models):
        facts = self._verdict(real, models).facts
        assert (facts.max_model_len, facts.max_num_seqs) == (1024, 8)
        assert (facts.dtype, facts.tensor_parallel_size) == ("torch.float32", 1)
        assert (facts.capture_sizes, facts.cudagraph_mode) == ((), "NONE")
        assert facts.sampling == {}
        drafted = self._verdict(real, models, method="draft_model", model=str(models.draft))
        assert drafted.ok

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            (("--no-such-flag",), "unrecognized arguments: --no-such-flag"),
            (("--dtype", "float31"), "invalid choice: 'float31'"),
            (("--max-model-len", "99999"), "greater than the derived max_model_len"),
            (("-tp", "3"), "must be divisible by tensor parallel size"),
            (("--help",), "would end at once"),
        ],
    )
    def test_what_a_user_got_wrong(self, real, models, more, words):
        verdict = self._verdict(real, models, *more)
        assert not verdict.ok and words in verdict.error

    def test_a_drafter_of_another_vocabulary(self, real, models):
        verdict = self._verdict(real, models, method="draft_model", model=str(models.misfit))
        assert verdict.error.startswith("Target and draft model should have the same vocabulary")

    def test_a_drafter_that_is_not_there(self, real, models):
        verdict = self._verdict(real, models, method="draft_model", model="/no/where")
        assert verdict.error == "Invalid repository ID or local directory specified: '/no/where'."

    def test_n_that_is_no_multiple(self, real, tmp_path):
        """MiMo with three modules takes 3 and 6, not 4."""
        config = {
            "architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "hidden_size": 64,
            "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "vocab_size": 512, "num_nextn_predict_layers": 3,
            "max_position_embeddings": 512,
        }  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps(config))
        verdicts = {}
        for n in (2, 3, 4, 6):
            text = json.dumps({"method": "mtp", "num_speculative_tokens": n})
            verdicts[n] = real.check(["--model", str(tmp_path), "--speculative-config", text])
        assert [n for n, verdict in verdicts.items() if verdict.ok] == [2, 3, 6], verdicts
        assert verdicts[4].error == "num_speculative_tokens:4 must be divisible by n_predict=3"

    def test_prompts_are_counted_as_the_server_renders_them(self, real, models):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(models.target)
        texts = ["one two three", "buys"]
        chats = [[{"role": "user", "content": text}] for text in texts]
        given = ["--model", str(models.target), *ENGINE_ARGS]
        rendered = [f"<|user|>{text}<|assistant|>" for text in texts]  # the template, by hand
        expected = [len(tokenizer(text, add_special_tokens=False).input_ids) for text in rendered]
        assert list(real.check(given, chats).tokens) == expected

    def test_a_default_of_min_p_is_told(self, real, models):
        override = ("--override-generation-config", '{"min_p": 0.1}')
        assert self._verdict(real, models, *override).facts.sampling == {"min_p": 0.1}

    def test_a_plan_is_checked_from_end_to_end(self, models, tmp_path_factory):
        with engine_environment(tmp_path_factory):
            request = Request(
                model=str(models.target), workload="math", methods="draft_model",
                drafters=(f"draft_model={models.misfit}",), engine_args=ENGINE_ARGS,
            )  # fmt: skip
            with pytest.raises(ConfigurationError, match="same vocabulary size"):
                make_plan(request, VllmEngine(EngineOptions()))
