"""The vLLM engine without a vLLM: commands, failed starts, and sessions on a stand-in server."""

from __future__ import annotations

import json
import logging
import shlex
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from fake_server import FakeServer, Script

from autotune.dryrun import preview
from autotune.engines import EngineOptions, server
from autotune.engines import vllm as vllm_module
from autotune.engines.process import state_dir
from autotune.engines.quality import judge_quality
from autotune.engines.server import Server
from autotune.engines.vllm import VllmEngine
from autotune.engines.vllm_session import VllmSession
from autotune.errors import (
    ConfigurationError,
    EngineDiedError,
    EngineStartError,
    LiveSwitchError,
    UnusableMeasurementError,
)
from autotune.machine.environment import EngineInfo
from autotune.records import (
    Arm,
    Block,
    BlockRole,
    Message,
    MethodSpace,
    Plan,
    Prompt,
    RequestDrafts,
    Sampling,
    Target,
    Workload,
)
from autotune.vllm_plugin.worker import COLUMNS

NGRAM = MethodSpace(method="ngram", lengths=(1, 2, 4), config={"method": "ngram"})
EAGLE = MethodSpace(method="eagle3", lengths=(1, 3), config={"method": "eagle3", "model": "d"})
TARGET = Target(model="org/model", engine_args=("--dtype", "float32"))
BASELINE = Arm(instrumented=True)
PROMPT = Prompt(id="p", messages=(Message(role="user", content="Hi"),))

# Answers as a vLLM server whose only worker has the V2 runner, until it is ended.
STAND_IN = """\
import http.server, json, sys
ABOUT = {"name": "GPUModelRunner", "v2": True, "drafter": "NgramGPUSpeculator"}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({"data": [{"id": "m"}]})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply({"results": [ABOUT]})
    def reply(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
REFUSAL = """\
import sys
sys.exit("ValueError: no such model")
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """A state folder, a folder for temporary files and an environment of our own."""
    monkeypatch.setenv("SPECTUNE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    for name in ("VLLM_API_KEY", "VLLM_USE_V2_MODEL_RUNNER", "PYTHONPATH", "VLLM_NO_USAGE_STATS",
                 "NUMBA_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def make(tmp_path):
    """An engine whose interpreter has what is said, and no vLLM is asked."""

    def build(program: str | None = None, **facts) -> VllmEngine:
        engine = VllmEngine(EngineOptions(log_dir=str(tmp_path / "logs")))
        command = None
        if program is not None:
            command = tmp_path / "vllm"
            command.write_text(f"#!{sys.executable}\n{program}")
            command.chmod(command.stat().st_mode | stat.S_IXUSR)
        known = {"vllm": "0.32.0", "platform": "cpu"} | facts
        engine.info = EngineInfo(
            python="/opt/python", vllm_command=str(command) if command else None, **known
        )
        return engine

    return build


# ------------------------------------------------------------------------------------ commands


def test_our_arguments_come_last(make):
    argv = make().argv(TARGET, NGRAM.arm(4, live=True), 8123)
    assert argv[:5] == [
        "/opt/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "org/model",
    ]  # fmt: skip
    assert argv[5:11] == ["--dtype", "float32", "--host", "127.0.0.1", "--port", "8123"]
    assert [word for word in argv[11:] if word.startswith("--")] == [
        "--speculative-config", "--per-request-spec-decode-metrics", "--scheduler-cls",
        "--worker-extension-cls",
    ]  # fmt: skip


def test_each_request_is_asked_for_its_drafts(make):
    flag = "--per-request-spec-decode-metrics"
    for arm in (NGRAM.arm(4, live=True), NGRAM.arm(2, live=False)):
        argv = make().argv(TARGET, arm, 1)
        assert argv[argv.index(flag) + 1] == "detailed"
        assert flag not in make(vllm="0.28.1").argv(TARGET, arm, 1)
    assert flag not in make().argv(TARGET, BASELINE, 1)  # vLLM would refuse to start
    own = Target(model="m", engine_args=(flag, "summary"))
    assert make().argv(own, NGRAM.arm(2, live=False), 1).count(flag) == 1
    baseline = make().argv(own, BASELINE, 1)
    assert baseline[-4:-2] == [flag, "none"]  # what comes last counts


@pytest.mark.parametrize(
    ("lengths", "schedule"),
    [
        ((1, 2, 4), [[1, 1, 4], [2, 2, 1], [3, 3, 2], [4, 4, 4]]),
        ((5, 15), [[1, 1, 15], [2, 2, 5], [3, 3, 15]]),
        ((6,), [[1, 1, 6]]),
    ],
)
def test_a_live_start_names_its_own_lengths(make, lengths, schedule):
    space = NGRAM.model_copy(update={"lengths": lengths})
    argv = make().argv(TARGET, space.arm(max(lengths), live=True), 1)
    config = json.loads(argv[argv.index("--speculative-config") + 1])
    assert config["num_speculative_tokens"] == max(lengths)
    assert config["num_speculative_tokens_per_batch_size"] == schedule


def test_a_schedule_is_started_as_the_user_will_start_it(make):
    """vLLM's own scheduler reads the tiers: nothing of ours decides on N."""
    argv = make().argv(TARGET, NGRAM.schedule_arm(((1, 8, 4), (9, 64, 2))), 1)
    config = json.loads(argv[argv.index("--speculative-config") + 1])
    assert config["num_speculative_tokens"] == 4
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 8, 4], [9, 64, 2]]
    assert "--scheduler-cls" not in argv


def test_lengths_belong_to_live_arms_only():
    live, static = NGRAM.arm(4, live=True), NGRAM.arm(4, live=False)
    assert (live.lengths, static.lengths) == ((1, 2, 4), ())
    assert live.key == live.model_copy(update={"lengths": ()}).key
    bare = live.model_copy(update={"lengths": ()})
    schedule = vllm_module._config(bare)["num_speculative_tokens_per_batch_size"]
    assert [n for _, _, n in schedule] == [4, 1, 2, 3, 4]


def test_the_dry_run_prints_the_whole_environment(make, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/my libs")
    words = shlex.split(make().command(TARGET, NGRAM.arm(4, live=True)))
    start = words.index("/opt/python")
    variables = dict(word.split("=", 1) for word in words[:start])
    assert variables == {
        "VLLM_NO_USAGE_STATS": "1",
        "NUMBA_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "PYTHONPATH": "RUN_DIR/plugin:/my libs",
        "VLLM_SERVER_DEV_MODE": "1",
        "SPECTUNE_CONTROL": "RUN_DIR/control",
    }
    assert "PORT" in words
    plain = make(platform="rocm").command(TARGET, Arm())
    assert plain.startswith("VLLM_NO_USAGE_STATS=1 /opt/python")


def test_an_api_key_is_kept_from_the_engine(make, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    command = make().command(TARGET, BASELINE)
    assert command.startswith("env -u VLLM_API_KEY ") and "secret" not in command


def test_owned_flags_are_refused_before_anything_happens(make):
    target = Target(model="m", engine_args=("--hos", "0.0.0.0"))
    for act in (make().command, lambda *a: make().open(*a, print)):
        with pytest.raises(ConfigurationError, match="--host"):
            act(target, BASELINE)


# ------------------------------------------------------------------------------------- live N


def test_why_not_live(make):
    gpu = {"platform": "rocm", "packages": frozenset(["triton"])}
    assert make().why_not_live(TARGET, NGRAM) is None
    assert "V2" in make(**gpu).why_not_live(TARGET, NGRAM)
    assert make(**gpu).why_not_live(TARGET, EAGLE) is None
    parallel = Target(model="m", engine_args=("-dp", "2"))
    assert "data parallel" in make().why_not_live(parallel, NGRAM)


def test_a_dry_run_shows_no_live_start_that_would_be_refused(make):
    engine = make(platform="rocm", packages=frozenset(["triton"]))
    plan = Plan(
        engine="vllm", target=TARGET, workload=Workload(name="w", prompts=(PROMPT,)),
        spaces=(NGRAM, EAGLE), concurrencies=(1,),
    )  # fmt: skip
    shown = preview(plan, engine)
    live = [command for command in shown.commands if "LiveScheduler" in command]
    assert len(live) == 1 and "eagle3" in live[0]
    assert len(shown.commands) == 1 + len(NGRAM.lengths) + 1
    assert shown.engine_starts == len(shown.commands) + 1


# ------------------------------------------------------------------------------- failed starts


def left(tmp_path: Path) -> list[str]:
    state = tmp_path / "state"
    files = [*(tmp_path / "temporary").iterdir(), *(state.iterdir() if state.exists() else ())]
    return [path.name for path in files]


def test_a_refused_start_names_the_log_and_leaves_nothing(make, tmp_path):
    with pytest.raises(EngineStartError, match="no such model") as caught:
        make(REFUSAL).open(TARGET, BASELINE, lambda line: None)
    *words, log = caught.value.last_words.splitlines()
    assert words == ["ValueError: no such model"]
    assert "no such model" in Path(log.removeprefix("engine log: ")).read_text()
    assert left(tmp_path) == []


def test_a_start_that_takes_too_long(make, tmp_path):
    engine = make("import time\ntime.sleep(600)\n")
    engine.options = EngineOptions(start_timeout_seconds=0.1)
    with pytest.raises(EngineStartError, match="not ready after") as caught:
        engine.open(TARGET, BASELINE, lambda line: None)
    assert "engine log: " in caught.value.last_words
    assert left(tmp_path) == []


def test_a_start_that_breaks_half_way_leaves_nothing(make, tmp_path, monkeypatch):
    def fail(run_dir):
        raise OSError("disk full")

    monkeypatch.setattr(vllm_module, "_copy_plugin", fail)
    with pytest.raises(EngineStartError, match="disk full"):
        make(STAND_IN).open(TARGET, BASELINE, lambda line: None)
    assert left(tmp_path) == []


def test_a_live_start_on_a_runner_that_does_not_heed_n(make, tmp_path):
    """Here it could not be known before: the interpreter has no Triton, says its answer."""
    said: list[str] = []
    with pytest.raises(LiveSwitchError, match="V2 model runner drafts the largest N"):
        make(STAND_IN).open(TARGET, NGRAM.arm(4, live=True), said.append)
    assert "starting vLLM for ngram" in said[0]
    assert left(tmp_path) == []


def test_a_static_start_there_is_fine(make, tmp_path):
    session = make(STAND_IN).open(TARGET, NGRAM.arm(4, live=False), lambda line: None)
    assert session.runner.v2 and session.start_seconds > 0
    assert len(left(tmp_path)) == 2  # its run folder and its state file
    session.close()
    assert left(tmp_path) == []


def test_state_files_belong_to_the_user_not_to_the_folder(monkeypatch, tmp_path):
    assert state_dir() == tmp_path / "state"
    monkeypatch.delenv("SPECTUNE_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_dir() == tmp_path / "xdg" / "spectune" / "engines"
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("relative", ""):
        monkeypatch.setenv("XDG_STATE_HOME", ignored)
        assert state_dir() == tmp_path / ".local" / "state" / "spectune" / "engines"


# ------------------------------------------------------------------------------------ sessions


class StillRunning:
    """In place of the process: it runs, and its log says nothing."""

    log_path = Path("/logs/engine.log")

    def poll(self) -> None:
        return None

    def last_words(self, lines: int = 20) -> str:
        return ""

    def stop(self) -> None:
        return None


def rows(*drafts: float) -> list[list[float]]:
    columns = {"step": 0.9, "requests": 1, "tokens": 3, "drafted": 2, "decode": 1.0, "context": 9}
    return [
        [(columns | {"start": float(i), "draft": draft})[name] for name in COLUMNS]
        for i, draft in enumerate(drafts)
    ]


ABOUT = {"name": "GPUModelRunner", "v2": False, "drafter": "EagleProposer"}
WORKERS = {
    "spectune_about": [ABOUT | {"drafter": None}, ABOUT],
    "spectune_start": [{"drafter": False}, {"drafter": True}],
    "spectune_stop": [{"stopped": True}] * 2,
    "spectune_drain": [
        {"steps": rows(0.0, 0.0, 0.0), "drafter": False},
        {"steps": rows(0.2, 0.2, 0.2), "drafter": True},
    ],
}


def spec_metrics(answered: int) -> str:
    """Each answer of 9 tokens: 4 drafts of 2 tokens, 4 accepted."""
    kinds = {"drafts": 4, "draft_tokens": 8, "accepted_tokens": 4}
    lines = [f"vllm:spec_decode_num_{k}_total {v * answered}" for k, v in kinds.items()]
    lines.append(
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {4 * answered}'
    )
    return "\n".join([*lines, f"vllm:generation_tokens_total {9 * answered}"]) + "\n"


@pytest.fixture
def serve(tmp_path):
    """A session on a FakeServer; it is prepared unless told otherwise."""
    opened = []

    def open_session(arm: Arm, *, one_engine: bool = True, rpc=WORKERS.get, **how):
        fake = FakeServer(metrics=how.pop("metrics", spec_metrics), rpc=rpc, **how)
        opened.append(fake.__enter__())
        session = VllmSession(
            StillRunning(), Server(fake.url, 30.0), arm, None, tmp_path / "run", one_engine
        )
        session.prepare()
        return session, fake

    yield open_session
    for fake in opened:
        fake.__exit__(None, None, None)


def block(role: BlockRole = BlockRole.SEARCH, prompts: int = 2) -> Block:
    return Block(
        role=role, index=0, concurrency=1, prompts=(PROMPT,) * prompts, sampling=Sampling()
    )


STATIC = EAGLE.arm(3, live=False)


def test_steps_are_those_of_the_worker_that_drafts(serve):
    session, fake = serve(STATIC)
    assert session.runner.drafter == "EagleProposer"
    window = session.run(block())
    assert session.capabilities.step_timing
    assert window.steps.draft_seconds_per_step == pytest.approx(0.2)
    assert window.steps.tokens_per_step == pytest.approx(2)  # 4 accepted in 4 steps
    untimed = session.run(block(BlockRole.CONFIRM))
    assert untimed.steps is None
    assert fake.calls[-2:] == ["spectune_drain", "spectune_stop"]


def test_data_parallel_engines_are_not_timed(serve):
    session, fake = serve(STATIC, one_engine=False)
    assert not session.capabilities.step_timing
    assert session.run(block()).steps is None
    assert session.run(block(BlockRole.CONFIRM)).steps is None
    assert fake.calls == []


@pytest.mark.parametrize("refused", ["spectune_about", "spectune_start", "spectune_drain"])
def test_a_timer_that_cannot_be_had_costs_the_step_times_only(serve, caplog, refused):
    rpc = {name: answers for name, answers in WORKERS.items() if name != refused}.get
    with caplog.at_level(logging.WARNING):
        session, fake = serve(STATIC, rpc=rpc)
        window = session.run(block())
    assert window.steps is None and window.counters.num_drafts == 8
    assert "no step times" in caplog.text
    assert not session.capabilities.step_timing
    asked = len(fake.calls)
    assert session.run(block(BlockRole.CONFIRM)).steps is None
    assert len(fake.calls) == asked  # it is not asked again
    assert (session.runner is None) == (refused == "spectune_about")


def test_an_arm_that_is_not_instrumented_is_left_alone(serve):
    session, fake = serve(STATIC.model_copy(update={"instrumented": False}))
    assert session.run(block()).steps is None
    assert fake.calls == []


def telling(index: int, body: dict) -> Script:
    """4 drafts of 2 tokens, of which one was accepted each time: as `spec_metrics` counts."""
    steps = {"per_step_accepted": [1] * 4, "per_step_drafted": [2] * 4}
    said = {"num_spec_steps": 4, "num_draft_tokens": 8, "acceptance_histogram": [0, 4, 0, 0]}
    return Script(metrics={"speculative_decoding": {**said, **steps}})


def test_requests_tell_of_their_drafts(serve):
    window = serve(STATIC, script=telling)[0].run(block())
    each = RequestDrafts(
        num_drafts=4, num_draft_tokens=8, accepted_per_pos=(4,), drafted_per_pos=(4, 4)
    )
    assert [request.drafts for request in window.requests] == [each, each]
    assert "request_drafts_disagree" not in window.flags


def test_requests_and_counters_that_differ_are_flagged_not_refused(serve):
    def half(index: int, body: dict) -> Script:
        return telling(index, body) if index % 2 else Script()

    window = serve(STATIC, script=half)[0].run(block())
    assert "request_drafts_disagree" in window.flags
    assert window.counters.num_drafts == 8  # the counters stay the truth


def test_a_warm_up_is_not_judged(serve):
    """A few tokens without a draft say nothing, and are thrown away."""

    def no_drafts(answered: int) -> str:
        tokens = "generation_tokens_total "
        return spec_metrics(0).replace(f"{tokens}0", f"{tokens}{9 * answered}")

    silent = serve(STATIC, metrics=no_drafts)[0]
    assert silent.run(block(BlockRole.WARMUP)).flags == ()
    with pytest.raises(UnusableMeasurementError, match="zero drafts") as caught:
        silent.run(block())
    assert caught.value.last_words == "engine log: /logs/engine.log"


def test_the_end_of_an_engine_names_its_log(serve, monkeypatch):
    monkeypatch.setattr("autotune.engines.vllm_session.DYING_SECONDS", 0.0)
    session, _ = serve(STATIC, script=lambda index, body: Script(fault="http" if index else None))
    with pytest.raises(EngineDiedError, match="vLLM answers no more") as caught:
        session.run(block())
    assert caught.value.last_words == "engine log: /logs/engine.log"


def test_control_calls_are_not_waited_for_as_long_as_requests(monkeypatch):
    waited = []

    class Direct:
        def open(self, request, timeout):
            waited.append(timeout)
            raise OSError("slow")

    monkeypatch.setattr(server, "_DIRECT", Direct())
    client = Server("http://127.0.0.1:1", 600.0)
    calls = [client.model_name, client.quiet_snapshot, lambda: client.rpc("spectune_stop"),
             lambda: client.has_chat_template("m")]  # fmt: skip
    for call in calls:
        with pytest.raises(EngineDiedError, match="does not answer"):
            call()
    assert waited == [60.0, 60.0, 60.0, 600.0]  # the last one generates


def test_an_answer_that_is_no_json(serve):
    _, fake = serve(Arm())
    with pytest.raises(EngineDiedError, match="no JSON"):
        Server(fake.url, 30.0)._json("/metrics")


# ------------------------------------------------------------------------------------- quality


@pytest.mark.parametrize("flag", ["degenerate_output", "empty_output"])
def test_broken_answers_are_judged_against_the_baseline(flag):
    with pytest.raises(UnusableMeasurementError, match="without speculation none does"):
        judge_quality((flag, "all_length_capped"), ("all_length_capped",))
    judge_quality((flag,), (flag,))  # the model does it by itself
    judge_quality((flag,), (f"some_{flag}",))
    judge_quality((f"some_{flag}",), ())


def test_a_baseline_may_degenerate(serve):
    echo = Script(chunks=("ha ha ha ha " * 10, "ha ha ha ha"))
    session, _ = serve(Arm(), script=lambda index, body: echo, metrics=lambda answered: "")
    assert "degenerate_output" in session.run(block()).flags
