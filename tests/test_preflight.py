"""What is refused, skipped or doubted before an engine is started, and by whom."""

from __future__ import annotations

import json
import os
import stat
import sys
import textwrap
import time

import psutil
import pytest
from tiny_models import tiny_models
from vllm_samples import ENGINE_ARGS, NEEDS_VLLM, engine_environment

from autotune.engines import EngineOptions
from autotune.engines.vllm import VllmEngine
from autotune.environment import EngineInfo
from autotune.errors import ConfigurationError
from autotune.plan import Request, make_plan
from autotune.preflight import preflight
from autotune.preflight_client import Validator, ValidatorError
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
        given = json.loads(line)["arguments"]
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
    info = EngineInfo(python="python", vllm="0.32.0", platform="cpu")
    return preflight(plan, engine, info, named=frozenset(named), progress=progress, **more)


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


# ------------------------------------------------------- a side process that cannot be relied on


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


@pytest.mark.parametrize(
    ("verdict", "before", "words"),
    [("accept()", "time.sleep(60)", "loading vLLM"), ("time.sleep(60)", "", "checking")],
    ids=["import", "check"],
)
def test_a_hang_ends(fake, verdict, before, words):
    python, said = fake(verdict, before).info.python, []
    with pytest.raises(ValidatorError, match=words):  # noqa: SIM117
        with Validator(python, os.environ, said.append, load_seconds=1.5, check_seconds=1.5) as one:
            one.check([])
    assert any(line.endswith("(1 s)") for line in said)


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


# ------------------------------------------------------------------------- vLLM's own validators


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """One side process with the real vLLM for all tests."""
    with engine_environment(tmp_path_factory):
        engine = VllmEngine(EngineOptions())
        with engine.validator(lambda _: None) as validator:
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
        assert (facts.max_model_len, facts.max_num_seqs, facts.device) == (1024, 8, "cpu")
        assert (facts.capture_sizes, facts.cudagraph_mode) == ((), "NONE")
        assert facts.sampling == {}
        drafted = self._verdict(real, models, method="draft_model", model=str(models.draft))
        assert drafted.ok and drafted.facts.draft_max_model_len == 1024

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
        assert verdict.error.startswith("Invalid repository ID or local directory specified")

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

    def test_a_plan_is_checked_from_end_to_end(self, models, tmp_path_factory):
        with engine_environment(tmp_path_factory):
            request = Request(
                model=str(models.target), workload="math", methods="draft_model",
                drafters=(f"draft_model={models.misfit}",), engine_args=ENGINE_ARGS,
            )  # fmt: skip
            with pytest.raises(ConfigurationError, match="same vocabulary size"):
                make_plan(request, VllmEngine(EngineOptions()))
