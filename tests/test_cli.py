"""The command line as users and scripts see it: exit codes, the two streams, options, files."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import click
import pytest
from tuner_samples import PUBLISHED, Scripted, plan_of

from autotune.cli import VERBS, cli, invoke
from autotune.cli import run as run_module
from autotune.engines.replay import ReplaySession
from autotune.errors import ConfigurationError
from autotune.records import MethodSpace
from autotune.store import list_studies, load_study, open_study, remove_study
from autotune.tuner import tune

RECORDING = PUBLISHED / "s01-minimax-m3-mxfp8-gsm8k.json"
REPLAY = ("run", "--engine", "replay", "--recording", str(RECORDING))
SIMULATE = ("run", "--engine", "simulate")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    file = tmp_path_factory.mktemp("empty") / "study.db"
    with open_study(f"sqlite:///{file}", plan_of(mtp=[1])) as study:
        pass
    remove_study(f"sqlite:///{file}", study.id)
    return file


@pytest.fixture
def spectune(tmp_path, monkeypatch, capsys, empty):
    """spectune(*arguments) -> (exit code, stdout, stderr), in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    shutil.copy(empty, tmp_path / "studies/spectune.db")
    for name in [name for name in os.environ if name.startswith("SPECTUNE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SPECTUNE_PREFLIGHT", "0")  # else a dry run imports vLLM
    handlers = [signal.getsignal(number) for number in SIGNALS]
    capsys.readouterr()

    def run(*arguments):
        code = invoke(list(map(str, arguments)))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield run
    for number, handler in zip(SIGNALS, handlers, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def scenario(tmp_path):
    def write(name, **changes):
        text = (files("autotune") / "scenarios" / f"{name}.json").read_text()
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**json.loads(text), **changes}))
        return path

    return write


def windows():
    """How much has been measured in this folder."""
    return sum(info.windows for info in list_studies())


# --------------------------------------------------------------------------------- exit codes


def test_0_the_answer_comes_first(spectune):
    code, out, err = spectune(*REPLAY)
    assert code == 0
    assert out.startswith("MiniMaxAI/MiniMax-M3-MXFP8 on GSM8K: use eagle3 with 4 speculative")
    assert "no command to serve it: engine replay names no drafter" in out
    assert "tok/s" in err and "tok/s" not in out  # progress is not the result
    assert "Traceback" not in err


def test_0_another_sampler_and_fewer_candidates(spectune):
    """The panel has eagle3 with N = 1 to 5; the grid takes them in this order."""
    code, out, _ = spectune(*REPLAY, "--sampler", "grid", "--max-candidates", "2", "--json")
    document = json.loads(out)
    probed = [c for c in document["candidates"] if c["status"] in ("probed", "confirmed")]
    assert code == 0
    assert [c["num_speculative_tokens"] for c in probed] == [1, 2]
    assert "--max-candidates" in document["stopped_because"]
    code, out, _ = spectune(*REPLAY, "--sampler", "random", "--json")
    assert json.loads(out)["study"] != document["study"]  # what is measured differs


def test_0_not_speculating_is_an_answer(spectune):
    code, out, _ = spectune(*SIMULATE, "--simulation", "no-gain")
    assert code == 0
    assert "do not speculate" in out.splitlines()[0]


USAGE = {
    "verb": (["rnu"], "Did you mean 'run'"),
    "inner verb": (["studies", "lst"], "Did you mean 'list'"),
    "option": (["run", "--modle", "x"], "--model"),
    "no model": (["run", "--workload", "math"], "--model"),
    "model": (
        ["run", "--model", "gemma-4-26B-A4-it", "--workload", "math"],
        "did you mean gemma-4-26B-A4B-it",
    ),
    "workload": (["run", "--model", "Qwen3-8B", "--workload", "mth"], "did you mean 'math'"),
    "method": (
        ["run", "--model", "Qwen3-8B", "--workload", "math", "--methods", "eagl3"],
        "did you mean eagle3",
    ),
    "recorded method": ([*REPLAY, "--methods", "egle3"], "there: eagle3"),
    "engine": (["run", "--engine", "vlm"], "'vllm'"),
    "no recording": (["run", "--engine", "replay"], "--recording FILE"),
    "recording": (["run", "--engine", "replay", "--recording", "x.json"], "x.json"),
    "scenario": ([*SIMULATE, "--simulation", "edg"], "edge"),
    "load": ([*SIMULATE, "--max-concurrency", "7"], "there: 4"),
    "bad load": ([*SIMULATE, "--max-concurrency", "0"], "1,8,32"),
    "lengths": ([*SIMULATE, "--num-speculative-tokens", "8-1"], "1-8"),
    "no length": ([*SIMULATE, "--num-speculative-tokens", "60"], "nothing is left to try"),
    "goodput": ([*SIMULATE, "--goodput", "tpt:3"], "write tpot:30,ttft:500"),
    "goodput twice": ([*SIMULATE, "--goodput", "tpot:3,tpot:4"], "limits tpot twice"),
    "no goodput": ([*SIMULATE, "--goodput", "e2el:0"], "not a positive number"),
    "untimed": ([*REPLAY, "--goodput", "tpot:30"], "engine replay measures no latencies"),
    "budget": ([*SIMULATE, "--budget", "3q"], "--budget '3q' is not a duration"),
    "start timeout": (["run", "--start-timeout", "soon"], "--start-timeout 'soon' is not a"),
    "request timeout": (["run", "--request-timeout", "0"], "--request-timeout '0' is not a"),
    "top p": (["run", "--top-p", "0"], "0<x<=1"),
    "prompts": ([*SIMULATE, "--num-prompts", "1"], "x>=2"),
    "sampler": ([*SIMULATE, "--sampler", "cmaes"], "'tpe'"),
    "no candidates": ([*SIMULATE, "--max-candidates", "0"], "x>=1"),
    "noise": ([*SIMULATE, "--replay-noise", "-1"], "x>=0"),
    "storage": ([*SIMULATE, "--storage", "mysql://x"], "sqlite:///FILE"),
    "stray": ([*SIMULATE, "math"], "unexpected extra argument (math)"),
    "format": (["export", "--format", "yml"], "'json'"),
    "no study": (["export"], "spectune run"),
    "unknown study": (["studies", "show", "abc"], "no studies"),
    "unknown model": (["models", "Qwen3-8"], "Qwen3-8B"),
}


@pytest.mark.parametrize(("arguments", "advice"), USAGE.values(), ids=USAGE.keys())
def test_2_says_what_was_meant(spectune, arguments, advice):
    code, out, err = spectune(*arguments)
    assert code == 2
    assert out == ""
    assert advice in err
    assert "Traceback" not in err
    assert windows() == 0


def test_3_the_engines_last_words_are_shown(spectune, scenario):
    path = scenario("dense-chat", faults={"none": {"start_error": "HIP out of memory\nline 2"}})
    code, out, err = spectune(*SIMULATE, "--simulation", path, "--json")
    assert (code, out) == (3, "")
    assert "    HIP out of memory\n    line 2\n" in err


def test_4_too_little_time_is_inconclusive(spectune):
    code, out, _ = spectune(*REPLAY, "--budget", "0.001s")
    assert code == 4
    assert "inconclusive" in out.splitlines()[0]
    code, out, _ = spectune(*REPLAY, "--budget", "0.001s", "--json", "--fresh")
    assert code == 4
    assert json.loads(out)["decision"] == "inconclusive"


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_130_interrupted_and_resumed(spectune, monkeypatch, number):
    run, measured = ReplaySession.run, []

    def interrupted(session, block):
        measured.append(block.key)
        if len(measured) == 4:
            os.kill(os.getpid(), number)
        return run(session, block)

    monkeypatch.setattr(ReplaySession, "run", interrupted)
    code, out, err = spectune(*REPLAY, "--json")
    assert (code, out) == (130, "")
    assert "the same command resumes" in err
    assert windows() == 3
    code, out, _ = spectune(*REPLAY, "--json")
    assert code == 0
    assert json.loads(out)["cost"]["probes"] == len(measured) - 1  # the fourth was lost


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_that_is_ignored_stays_ignored(spectune, number):
    """nohup and service managers start programs with signals ignored."""
    signal.signal(number, signal.SIG_IGN)
    spectune("--version")
    assert signal.getsignal(number) == signal.SIG_IGN
    signal.signal(number, signal.SIG_DFL)
    spectune("--version")
    assert callable(signal.getsignal(number))


def answering(monkeypatch, answer):
    def prompt(text=""):
        if isinstance(answer, str):
            return answer
        raise answer

    monkeypatch.setattr("click.termui.visible_prompt_func", prompt)


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [("n", 2, "aborted"), (EOFError(), 2, "aborted"), (KeyboardInterrupt(), 130, "interrupted")],
    ids=["no", "no terminal", "Ctrl-C"],
)
def test_a_question_that_is_not_answered_yes(spectune, monkeypatch, answer, code, said):
    study = json.loads(spectune(*REPLAY, "--json")[1])["study"]
    answering(monkeypatch, answer)
    found, out, err = spectune("studies", "rm", study)
    assert (found, out) == (code, "")
    assert said in err and "Traceback" not in err
    assert [info.id for info in list_studies()] == [study]
    answering(monkeypatch, "y")
    assert spectune("studies", "rm", study)[0] == 0


def test_70_a_fault_of_our_own_is_not_a_regression(spectune, monkeypatch):
    def broken(*arguments):
        raise ZeroDivisionError("one by nought")

    monkeypatch.setattr("autotune.tuner.tune", broken)
    code, out, err = spectune(*REPLAY, "--json")
    assert (code, out) == (70, "")
    assert "internal error: ZeroDivisionError: one by nought\nTraceback" in err


def test_141_the_reader_went_away(spectune, monkeypatch):
    def closed(*arguments):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    streams = sys.stdout, sys.stderr
    monkeypatch.setattr("autotune.cli.methods.table", closed)
    try:
        assert invoke(["methods"]) == 141
    finally:
        sys.stdout, sys.stderr = streams


def test_help_and_version(spectune):
    for arguments in (["--help"], ["--version"], *([verb, "--help"] for verb in VERBS)):
        code, out, err = spectune(*arguments)
        assert (code, err) == (0, "")
        assert out
    assert all(f"  {verb} " in spectune("--help")[1] for verb in VERBS)


# --------------------------------------------------------------------------------------- JSON


PRINTS = {
    "run": [*REPLAY, "--json"],
    "dry run": [*SIMULATE, "--dry-run", "--json"],
    "methods": ["methods", "--json"],
    "models": ["models", "--json"],
    "workloads": ["workloads", "--json"],
    "studies list": ["studies", "list", "--json"],
    "studies path": ["studies", "path", "--json"],
}
OF_A_STUDY = {
    "studies show": ["studies", "show", "--json"],
    "recording": ["studies", "show", "--recording"],
    "export": ["export"],
    "run again": [*REPLAY, "--json"],
}


@pytest.mark.parametrize("arguments", PRINTS.values(), ids=PRINTS.keys())
def test_json_is_one_document_and_nothing_else(spectune, arguments):
    code, out, _ = spectune(*arguments)
    assert code == 0
    assert isinstance(json.loads(out), dict)
    assert out.endswith("}\n")


def test_json_of_a_stored_study(spectune):
    first = json.loads(spectune(*REPLAY, "--json")[1])
    for what, arguments in OF_A_STUDY.items():
        code, out, _ = spectune(*arguments)
        assert code == 0
        document = json.loads(out)
        if what == "recording":
            assert document["schema"] == "spectune.recording/1"
            assert document["baseline"][0]["output_tokens_per_second"] > 0
        else:
            assert document == first
    removed = json.loads(spectune("studies", "rm", first["study"], "--yes", "--json")[1])
    assert [info["id"] for info in removed["removed"]] == [first["study"]]


def test_a_recording_of_a_study_is_played_back(spectune):
    first = json.loads(spectune(*REPLAY, "--json")[1])
    spectune("studies", "show", "--recording", "-o", "mine.json")
    again = ("run", "--engine", "replay", "--recording", "mine.json", "--json")
    second = json.loads(spectune(*again)[1])
    assert second["method"] == first["method"]
    assert second["num_speculative_tokens"] == first["num_speculative_tokens"]
    assert second["speedup"]["value"] == pytest.approx(first["speedup"]["value"])


# ------------------------------------------------------------------------------------ options


def test_a_finished_study_is_answered_and_fresh_is_not(spectune):
    first = json.loads(spectune(*REPLAY, "--json")[1])
    code, out, err = spectune(*REPLAY, "--json")
    assert (code, json.loads(out)) == (0, first)
    assert "already finished" in err
    third = json.loads(spectune(*REPLAY, "--json", "--fresh")[1])
    assert third["study"] == f"{first['study']}-2"
    assert windows() == 2 * first["cost"]["probes"]


def test_dry_run_starts_nothing(spectune):
    code, out, _ = spectune(*SIMULATE, "--dry-run", "--simulation", "three-loads")
    assert code == 0
    # baseline, three methods with live N, the confirmation
    assert "about 5 engine starts" in out
    assert "gemma4_mtp N=0..6 live" in out and "concurrency 1, 16, 128" in out
    assert "nothing was measured" in out
    assert windows() == 0


@pytest.mark.parametrize("verb", [("run",), ("check", "golden.json"), ("doctor",)])
def test_an_option_of_vllm_before_the_dashes_is_told_where_it_goes(spectune, verb):
    code, _, err = spectune(*verb, "--gpu-memory-utilization", "0.9")
    assert code == 2 and "options of `vllm serve` go after --" in err.lower()
    assert "vllm serve` go" not in spectune(*verb, "--jsn")[2]  # a slip, not an option of vLLM


def test_dry_run_prints_the_very_commands(spectune, llama):
    code, out, _ = spectune(
        "run", "--model", llama, "--workload", "math", "--methods", "ngram",
        "--num-speculative-tokens", "2,4", "--dry-run", "--json",
        "--", "--dtype", "float32", "--methods",
    )  # fmt: skip
    assert code == 0
    preview = json.loads(out)
    assert [c["num_speculative_tokens"] for c in preview["candidates"]] in ([4, 2], [2, 4])
    assert len(preview["commands"]) == 2
    for command in preview["commands"]:
        assert str(llama) in command
        assert "--dtype float32 --methods" in command  # unchanged, though it is an option of ours
    assert "ngram" in preview["commands"][1] and "ngram" not in preview["commands"][0]


def test_without_live_n(spectune):
    for switch in ("--no-live-n", "--no-replay-live-n"):
        _, out, _ = spectune(*REPLAY, "--dry-run", switch)
        # baseline, five N of eagle3, the confirmation
        assert "about 7 engine starts" in out


def test_methods_and_lengths_are_narrowed(spectune):
    _, out, _ = spectune(
        *SIMULATE, "--methods", "ngram,eagle3", "--num-speculative-tokens", "2-3,5", "--json"
    )
    tried = {(c["method"], c["num_speculative_tokens"]) for c in json.loads(out)["candidates"]}
    assert tried == {(m, n) for m in ("eagle3", "ngram") for n in (2, 3, 5)}


def test_the_seed_counts(spectune):
    noisy = (*REPLAY, "--replay-noise", "0.05", "--fast", "--json")
    one, same, other = (
        json.loads(spectune(*noisy, "--seed", seed, "--fresh")[1]) for seed in (1, 1, 2)
    )
    assert one["speedup"] == same["speedup"] != other["speedup"]


VARIABLES = {
    "SPECTUNE_ENGINE": "replay",
    "SPECTUNE_RECORDING": str(RECORDING),
    "SPECTUNE_JSON": "1",
    "SPECTUNE_NUM_SPECULATIVE_TOKENS": "2,3",
    "SPECTUNE_STORAGE": "sqlite:///elsewhere.db",
    "SPECTUNE_OUTPUT": "out.json",
}


def test_variables_stand_in_for_options(spectune, monkeypatch, tmp_path):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    code, out, _ = spectune("run")
    assert code == 0
    lengths = {c["num_speculative_tokens"] for c in json.loads(out)["candidates"]}
    assert lengths == {2, 3}
    assert len(list_studies(f"sqlite:///{tmp_path}/elsewhere.db")) == 1
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(out)


def test_the_command_line_wins_over_variables(spectune, monkeypatch):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    _, out, _ = spectune("run", "--num-speculative-tokens", "4")
    assert {c["num_speculative_tokens"] for c in json.loads(out)["candidates"]} == {4}


def effort(spectune, *arguments):
    """Search and confirmation windows of the baseline tell the preset."""
    spectune(*SIMULATE, "--methods", "ngram", "--num-speculative-tokens", "3", *arguments)
    blocks = [w.block for w in load_study().windows if w.arm == "none:0:static:0"]
    return tuple(sum(block.startswith(role) for block in blocks) for role in ("search", "confirm"))


def test_effort(spectune, monkeypatch):
    assert effort(spectune) == (4, 4)
    assert effort(spectune, "--fast") == (1, 4)
    assert effort(spectune, "--rigorous") == (8, 8)
    monkeypatch.setenv("SPECTUNE_FAST", "1")
    assert effort(spectune, "--seed", "1") == (1, 4)
    monkeypatch.setenv("SPECTUNE_FAST", "0")
    assert effort(spectune, "--seed", "2") == (4, 4)
    monkeypatch.setenv("SPECTUNE_RIGOROUS", "1")
    assert effort(spectune, "--seed", "3") == (8, 8)


def settings_of(spectune, *arguments):
    spectune(*SIMULATE, "--methods", "ngram", "--num-speculative-tokens", "3", *arguments)
    return load_study().plan.settings


def test_a_schedule_is_tried_but_for_fast(spectune, monkeypatch):
    assert settings_of(spectune).schedule
    assert not settings_of(spectune, "--fast").schedule
    assert settings_of(spectune, "--fast", "--schedule").schedule
    assert not settings_of(spectune, "--no-schedule").schedule
    monkeypatch.setenv("SPECTUNE_SCHEDULE", "0")
    assert not settings_of(spectune, "--seed", "1").schedule


def test_limits_are_told(spectune):
    code, out, _ = spectune(*SIMULATE, "--simulation", "moe-low-load", "--goodput", "tpot:20")
    assert code == 0
    assert "LIMITS" in out and "limits: tpot 20 ms, for at least 95% of the requests" in out
    assert load_study().plan.settings.limits.tpot_seconds == 0.02


def test_several_loads_have_a_front_and_the_trial_of_a_schedule(spectune):
    _, out, _ = spectune(*SIMULATE, "--simulation", "steps", "--methods", "mtp")
    assert "mtp with N by batch size (1-13: 7, from 14: 3), " in out.splitlines()[0]
    front = out.index("throughput against latency")
    trial = out.index("N by batch size, mtp (1-13: 7, from 14: 3): won, ")
    assert front < trial < out.index("engine starts")
    (row,) = [line for line in out[trial:].splitlines() if line.startswith("13 ")]
    assert row.endswith("beside a threshold")
    document = json.loads(spectune(*SIMULATE, "--simulation", "steps", "--methods", "mtp",
                                   "--json")[1])  # fmt: skip
    assert document["schedule"] == [[1, 13, 7], [14, 1024, 3]]
    assert document["schedule_trial"]["outcome"] == "won"
    assert document["pareto"] and document["limits"] is None


def test_one_load_has_no_front(spectune):
    _, out, _ = spectune(*SIMULATE)
    assert "latency" not in out


def all_options(command, name):
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield f"{name} {parameter.name}", parameter
    for inner, below in getattr(command, "commands", {}).items():
        yield from all_options(below, f"{name} {inner}")


OWN_VARIABLES = {  # other files and forms than those that `run` and `export` mean
    "studies show recording": "SPECTUNE_AS_RECORDING",
    "studies show output": "SPECTUNE_SHOW_OUTPUT",
    "check output": "SPECTUNE_CHECK_OUTPUT",
    "export output": "SPECTUNE_EXPORT_OUTPUT",
    "report output": "SPECTUNE_REPORT_OUTPUT",
    "report recording": "SPECTUNE_REPORT_RECORDING",
    "report form": "SPECTUNE_REPORT_FORMAT",
}


def test_every_option_of_every_verb_has_its_variable():
    context = click.Context(cli)
    verbs = {verb: cli.get_command(context, verb) for verb in VERBS}
    options = dict(pair for verb, command in verbs.items() for pair in all_options(command, verb))
    assert len(options) > 40
    for name, variable in OWN_VARIABLES.items():
        assert options.pop(name).envvar == variable
    for parameter in options.values():
        longs = [name for name in parameter.opts if name.startswith("--")]
        assert parameter.envvar == "SPECTUNE_" + longs[0][2:].upper().replace("-", "_")


def test_the_variables_of_run_are_no_files_of_other_verbs(spectune, monkeypatch, tmp_path):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SPECTUNE_FORMAT", "command")  # of `export`
    written = json.loads(spectune("run")[1])
    report = json.loads(spectune("report", written["study"])[1])
    assert report["report"] == f"spectune-{written['study']}.html"
    assert report["study"] == written["study"]
    assert json.loads(spectune("export", "--json")[1]) == written
    assert json.loads(spectune("studies", "show")[1]) == written
    assert json.loads((tmp_path / "out.json").read_text()) == written


def test_variables_of_the_other_verbs(spectune, monkeypatch, llama):
    spectune(*REPLAY)
    monkeypatch.setenv("SPECTUNE_RECORDING", str(RECORDING))  # what `run` plays
    assert spectune("studies", "show")[1].startswith("study ")
    monkeypatch.setenv("SPECTUNE_AS_RECORDING", "1")
    assert json.loads(spectune("studies", "show")[1])["schema"] == "spectune.recording/1"
    monkeypatch.setenv("SPECTUNE_JSON", "1")
    assert "methods" in json.loads(spectune("methods")[1])
    monkeypatch.setenv("SPECTUNE_DRAFTER", "eagle3=acme/one draft_model=acme/two")
    methods = json.loads(spectune("models", llama)[1])["methods"]
    assert {m["method"]: m["drafter"] for m in methods if m["drafter"]} == {
        "eagle3": "acme/one",
        "draft_model": "acme/two",
    }


UNREAD = {
    "model": (REPLAY, ["--model", "Qwen3-8B"]),
    "workload": (REPLAY, ["--workload", "math"]),
    "drafter": (REPLAY, ["--drafter", "eagle3=acme/draft"]),
    "num prompts": (SIMULATE, ["--num-prompts", "4"]),
    "prompts per block": (REPLAY, ["--prompts-per-block", "4"]),
    "sampling": (SIMULATE, ["--temperature", "1", "--top-p", "0.5", "--max-tokens", "9"]),
    "engine": (SIMULATE, ["--vllm-python", "x", "--start-timeout", "9m", "--log-dir", "x"]),
    "recording": (SIMULATE, ["--recording", str(RECORDING)]),
    "simulation": (REPLAY, ["--simulation", "edge"]),
    "schedule": (REPLAY, ["--schedule"]),
    "a real engine": (["run"], ["--recording", str(RECORDING), "--replay-noise", "0.1"]),
}


@pytest.mark.parametrize(("verb", "options"), UNREAD.values(), ids=UNREAD.keys())
def test_2_options_that_the_engine_would_ignore(spectune, verb, options):
    code, out, err = spectune(*verb, *options)
    assert (code, out) == (2, "")
    assert f"does not read {', '.join(options[::2])}" in err
    assert windows() == 0


def test_the_model_and_workload_that_are_there_may_be_named(spectune, monkeypatch):
    names = ("--model", "minimax-m3-mxfp8", "--workload", "gsm8k")
    assert spectune(*REPLAY, *names, "--dry-run")[0] == 0
    monkeypatch.setenv("SPECTUNE_MODEL", "Qwen3-8B")  # of the shell, not of this command
    monkeypatch.setenv("SPECTUNE_NUM_PROMPTS", "20")
    assert spectune(*REPLAY, "--dry-run")[0] == 0


@pytest.fixture
def llama(tmp_path):
    """A model that needs no network: a folder with a configuration."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    return model


def test_engine_options_reach_the_engine(spectune, monkeypatch):
    given = []

    def load(name, options):
        given.append(options)
        raise ConfigurationError("seen enough")

    monkeypatch.setattr("autotune.engines.load_engine", load)
    spectune("run")
    spectune("run", "--start-timeout", "2h", "--request-timeout", "90", "--log-dir", "logs")
    default, chosen = given
    assert (default.start_timeout_seconds, default.request_timeout_seconds) == (1800, 600)
    assert (chosen.start_timeout_seconds, chosen.request_timeout_seconds) == (7200, 90)
    assert (default.log_dir, chosen.log_dir) == (None, "logs")


def planned(spectune, monkeypatch, model, *options):
    """The plan of a dry run on a real engine."""
    plans, real = [], sys.modules["autotune.dryrun"].preview
    monkeypatch.setattr("autotune.dryrun.preview", lambda p, e: plans.append(p) or real(p, e))
    arguments = ("--model", model, "--workload", "math", "--methods", "ngram", "--dry-run")
    assert spectune("run", *arguments, *options)[0] == 0
    return plans[0]


def test_sampling_belongs_to_the_workload(spectune, monkeypatch, llama):
    options = ("--temperature", "0.5", "--top-p", "0.9", "--max-tokens", "9", "--seed", "3")
    sampling = planned(spectune, monkeypatch, llama, *options).workload.sampling
    assert (sampling.temperature, sampling.top_p) == (0.5, 0.9)
    assert (sampling.max_tokens, sampling.seed) == (9, 3)


def test_too_few_held_out_prompts_are_a_warning(spectune, monkeypatch, llama):
    """math has 56 prompts and holds out 28."""

    def shared(*options):
        warnings = planned(spectune, monkeypatch, llama, *options).warnings
        return [warning for warning in warnings if "held out" in warning]

    assert shared("--max-concurrency", "1,3", "--prompts-per-block", "7") == []  # 4 x 7 = 28
    (warning,) = shared("--max-concurrency", "1,4")  # 4 x 8
    assert "at concurrency 4 takes 4 blocks of 8 prompts, but 28 prompts are held out" in warning
    assert "give 64 prompts or more, or fewer with --prompts-per-block" in warning
    (warning,) = shared("--max-concurrency", "16", "--rigorous")
    assert "8 blocks of 32 prompts" in warning
    assert "give 512 prompts or more, or tune for a lower load" in warning


GROUPS = ("What to tune", "How hard to measure", "Engine", "Result and storage", "Other")


def test_the_help_of_run_is_grouped(spectune):
    _, out, _ = spectune("run", "--help")
    places = [out.index(f"\n{group}:\n") for group in GROUPS]
    assert places == sorted(places)
    for option, group in [("--model", 0), ("--top-p", 0), ("--budget", 1), ("--log-dir", 2),
                          ("--storage", 3), ("--help", 4)]:  # fmt: skip
        assert out.rindex("\n  " + option, 0, [*places, len(out)][group + 1]) > places[group]


# -------------------------------------------------------------------------------------- files


def test_output_is_the_json_document(spectune, tmp_path):
    _, out, _ = spectune(*REPLAY, "-o", "result.json", "--json")
    assert json.loads((tmp_path / "result.json").read_text()) == json.loads(out)
    code, out, _ = spectune(*REPLAY, "-o", "result.json")  # an old result may be replaced
    assert code == 0 and out.startswith("MiniMaxAI")


@pytest.mark.parametrize("place", ["missing/result.json", "studies"])
def test_unwritable_output_is_found_before_measuring(spectune, place):
    code, out, err = spectune(*REPLAY, "-o", place)
    assert (code, out) == (2, "")
    assert place.split("/")[0] in err and "Traceback" not in err
    assert list_studies() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_output_is_found_before_measuring(spectune, tmp_path):
    (tmp_path / "result.json").write_text("{}")
    (tmp_path / "result.json").chmod(0o400)
    code, _, err = spectune(*REPLAY, "-o", "result.json")
    assert code == 2 and "result.json" in err
    assert list_studies() == []


def test_an_output_lost_meanwhile_does_not_take_the_answer(spectune, monkeypatch):
    monkeypatch.setattr(run_module, "require_writable", lambda *what: None)
    code, out, err = spectune(*REPLAY, "-o", "missing/result.json", "--json")
    assert code == 2 and "cannot write missing/result.json" in err
    assert json.loads(out)["method"] == "eagle3"


# ------------------------------------------------------------------------------------- export


@pytest.fixture
def stored(spectune):
    """A study whose method has a drafter; its id."""
    plan = plan_of(settings={"greedy_prompts": 0}, mtp=[1])
    space = MethodSpace(
        method="eagle3", lengths=(3,), config={"method": "eagle3", "model": "acme/draft"}
    )
    plan = plan.model_copy(update={"spaces": (space,)})
    rates = {("none", 0): 100.0, ("eagle3", 3): 200.0}
    with open_study(None, plan) as study:
        tune(plan, Scripted(rates), study, lambda text: None)
    return study.id


CONFIG = {"method": "eagle3", "model": "acme/draft", "num_speculative_tokens": 3}


def test_export_forms(spectune, stored):
    document = json.loads(spectune("export", stored)[1])
    assert document["speculative_config"] == CONFIG
    assert document == json.loads(spectune("export", stored[:4], "--format", "json")[1])
    _, out, _ = spectune("export", "--format", "speculative-config")
    assert json.loads(out) == CONFIG
    assert len(out.splitlines()) == 1
    _, out, _ = spectune("export", "--format", "command")
    # as a shell reads it
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {out}"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert words[:3] == ["vllm", "serve", "acme/small"]
    assert words[3] == "--speculative-config" and json.loads(words[4]) == CONFIG


def test_a_dash_is_stdout(spectune, stored, tmp_path):
    assert spectune("export", stored, "-o", "-") == spectune("export", stored)
    assert spectune("studies", "show", "-o", "-") == spectune("studies", "show", "--json")
    assert not (tmp_path / "-").exists()


def test_export_json_is_a_format(spectune, stored, monkeypatch):
    document = spectune("export", stored)
    assert spectune("export", "--json") == document
    assert spectune("export", "--json", "--format", "json") == document
    code, out, err = spectune("export", "--json", "--format", "command")
    assert (code, out) == (2, "") and "exclude each other" in err
    monkeypatch.setenv("SPECTUNE_JSON", "1")
    assert spectune("export", "--format", "command")[1].startswith("vllm serve")
    monkeypatch.setenv("SPECTUNE_FORMAT", "command")
    assert spectune("export", "--json") == document


def test_export_of_no_speculation(spectune):
    spectune(*SIMULATE, "--simulation", "no-gain")
    assert spectune("export", "--format", "command")[1] == "vllm serve simulated/dense-8b\n"
    code, out, err = spectune("export", "--format", "speculative-config")
    assert (code, out) == (2, "")
    assert "do_not_speculate" in err


def test_export_of_an_unfinished_study(spectune, monkeypatch):
    def interrupted(session, block):
        raise KeyboardInterrupt

    monkeypatch.setattr(ReplaySession, "run", interrupted)
    assert spectune(*REPLAY)[0] == 130
    code, out, err = spectune("export")
    assert (code, out) == (2, "")
    assert "no recommendation: it is interrupted" in err and "continues it" in err


# --------------------------------------------------------------------------------- the process


def python(*arguments, **more):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, **more
    )


def test_module_form(tmp_path):
    result = python("-m", "autotune", "--version")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("spectune, version ")
    result = python("-m", "autotune", "studies", "path", "--json", cwd=tmp_path)
    place = Path(json.loads(result.stdout)["path"])
    assert place == tmp_path / "studies/spectune.db"
    assert python("-m", "autotune", "rnu").returncode == 2


def test_help_imports_nothing_heavy():
    code = """
import contextlib, io, sys
from autotune.cli import invoke
with contextlib.redirect_stdout(io.StringIO()):
    assert invoke(["--help"]) == 0 and invoke(["run", "--help"]) == 0
heavy = {"optuna", "sqlalchemy", "scipy", "numpy", "torch", "vllm", "rich"}
print(sorted(heavy & set(sys.modules)))
"""
    assert python("-c", code).stdout == "[]\n"


@pytest.mark.parametrize("arguments", [REPLAY, ["studies", "list"], ["methods"], ["doctor"]])
def test_a_closed_stdout_is_nobody_to_tell(tmp_path, arguments):
    line = f"exec {sys.executable} -m autotune {shlex.join(arguments)} >&-"
    with contextlib.chdir(tmp_path):
        done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_a_package_that_is_missing_is_named(spectune, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, err = spectune(*REPLAY, "--fresh")
    assert (code, "the package optuna is missing" in err) == (2, True), err


def test_a_storage_whose_name_is_no_text(spectune):
    code, _, err = spectune(*REPLAY, "--storage", "sqlite:///s\udcff.db")
    assert (code, "is not UTF-8" in err) == (2, True)


def test_the_streams_of_a_real_process(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPECTUNE_")}
    with contextlib.chdir(tmp_path):
        result = python("-m", "autotune", *REPLAY, "--json", env=environment)
    assert result.returncode == 0
    document = json.loads(result.stdout)
    assert (document["method"], document["num_speculative_tokens"]) == ("eagle3", 4)
    assert (tmp_path / "studies/spectune.db").exists()
    assert "\x1b" not in result.stderr  # no bars where there is no terminal
    assert "Trial" not in result.stderr  # Optuna's own log


# -------------------------------------------------------------------------- nothing is destroyed


@pytest.mark.parametrize("victim", ["database", "recording"])
def test_the_answer_never_replaces_what_the_run_uses(tmp_path, victim):
    recording = tmp_path / "sweep.json"
    recording.write_bytes(RECORDING.read_bytes())
    database = tmp_path / "studies.db"
    arguments = ["run", "--engine", "replay", "--recording", str(recording)]
    arguments += ["--storage", f"sqlite:///{database}"]
    assert invoke([*arguments, "--json"]) == 0
    target = {"database": database, "recording": recording}[victim]
    before = target.read_bytes()
    assert invoke([*arguments, "-o", str(target)]) == 2
    assert target.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["points"][0].update(num_speculative_tokens=10**18),
        lambda d: d["baseline"][0].update(output_tokens_per_second=1e308),
        lambda d: d["baseline"][0].update(output_tokens_per_second=5e-324),
    ],
)
def test_figures_beyond_any_machine_are_refused(tmp_path, change, capsys):
    document = json.loads(RECORDING.read_text())
    change(document)
    file = tmp_path / "odd.json"
    file.write_text(json.dumps(document))
    storage = f"sqlite:///{tmp_path}/s.db"
    code = invoke(["run", "--engine", "replay", "--recording", str(file), "--storage", storage])
    assert code == 2
    assert "odd.json" in capsys.readouterr().err


def test_a_recording_nested_without_end_is_refused(tmp_path):
    file = tmp_path / "deep.json"
    file.write_text("[" * 100_000 + "]" * 100_000)
    storage = f"sqlite:///{tmp_path}/s.db"
    arguments = ["run", "--engine", "replay", "--recording", str(file), "--storage", storage]
    assert invoke(arguments) == 2


def test_a_full_output_device_is_an_error_of_use(tmp_path):
    arguments = ["run", "--engine", "replay", "--recording", str(RECORDING)]
    command = [sys.executable, "-m", "autotune", *arguments, "--json"]
    storage = ["--storage", f"sqlite:///{tmp_path}/s.db"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*command, *storage], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "No space left" in done.stderr and "Traceback" not in done.stderr
