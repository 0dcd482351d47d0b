"""A real vLLM: what the plugin promises inside it, and what `spectune run` makes of it.

About a dozen engine starts of half a minute each: at most one engine runs at a time, and a start
measures at once all that the tests want to know of it.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import threading
from typing import NamedTuple

import psutil
import pytest
from engine_contract import Arms, Bench, EngineContract
from study_process import StudyProcess
from tiny_models import tiny_models
from vllm_samples import ENGINE_ARGS, NEEDS_VLLM, engine_environment

from autotune.engines import EngineOptions
from autotune.engines.vllm import VllmEngine
from autotune.errors import EngineDiedError, EngineError
from autotune.records import (
    Arm,
    Block,
    BlockRole,
    Message,
    MethodSpace,
    Prompt,
    Recommendation,
    Sampling,
    Target,
    Window,
)
from autotune.store import StoredWindow

pytestmark = NEEDS_VLLM

LENGTHS = (2, 4)  # live N; each also gets a start of its own
SHORT = ("--max-tokens", "24", "--prompts-per-block", "4")
QUESTIONS = (
    "one has two egg and buys three more",
    "six gives ten coin into five list",
    "count four book from one then two",
    "how many apple has nine left after seven",
    "eight card before three coin with one egg",
)
REQUIRED = {  # of every recommendation document
    "schema", "model", "workload", "environment", "decision", "method", "num_speculative_tokens",
    "speculative_config", "speedup", "per_concurrency", "schedule", "candidates", "baseline",
    "cost", "vllm_serve_args", "warnings",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _environment(tmp_path_factory):
    with engine_environment(tmp_path_factory):
        yield


@pytest.fixture(scope="module")
def models():
    return tiny_models()


# ------------------------------------------------------------------ one engine, all it can tell


class Record(NamedTuple):
    """What every start measures of each N."""

    search: Window  # three requests at a time, timed
    greedy: Window  # one request at a time, timed, with texts
    confirm: Window  # not timed


class Recorder(Bench):
    """A Bench for all arms: what was measured outlives the engine, so each arm starts once."""

    def __init__(self, engine, arms) -> None:
        super().__init__(engine, arms)
        self._records: dict[tuple[str, int], Record] = {}

    def session(self, arm: Arm):
        session = super().session(arm)
        for n in self._missing(arm):
            if arm.live:
                session.set_num_speculative_tokens(n)
            record = Record(*(session.run(block) for block in self._blocks()))
            self._records[arm.key, n] = record
        return session

    def record(self, arm: Arm, n: int) -> Record:
        if (arm.key, n) not in self._records:
            self.session(arm)
        return self._records[arm.key, n]

    def _missing(self, arm: Arm) -> list[int]:
        lengths = reversed(LENGTHS) if arm.live else (arm.num_speculative_tokens,)
        return [n for n in lengths if (arm.key, n) not in self._records]

    def _blocks(self) -> tuple[Block, ...]:
        first = self.arms.block()
        alone = {"role": BlockRole.GREEDY, "concurrency": 1}
        short = {"role": BlockRole.CONFIRM, "prompts": first.prompts[:2]}
        return first, first.model_copy(update=alone), first.model_copy(update=short)


@pytest.fixture(scope="module")
def spaces(models):
    lookup = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    small = {"method": "draft_model", "model": str(models.draft)}
    return {
        config["method"]: MethodSpace(method=config["method"], lengths=LENGTHS, config=config)
        for config in (lookup, small)
    }


@pytest.fixture(scope="module")
def recorder(models, spaces, tmp_path_factory):
    engine = VllmEngine(EngineOptions(log_dir=str(tmp_path_factory.mktemp("logs"))))
    recorder = Recorder(engine, _arms(models, spaces["ngram"]))
    yield recorder
    recorder.close()


def _arms(models, space: MethodSpace) -> Arms:
    return Arms(
        target=Target(model=str(models.deep), engine_args=ENGINE_ARGS),
        static=space.arm(LENGTHS[0], live=False),
        live=space.arm(max(LENGTHS), live=True),
        switches=(LENGTHS[0], max(LENGTHS)),
        concurrency=3,
        prompts=tuple(
            Prompt(id=f"q{i}", messages=(Message(role="user", content=question),))
            for i, question in enumerate(QUESTIONS[:4])
        ),
        sampling=Sampling(max_tokens=24),
    )


class VllmContract(EngineContract):
    """The contract, then what is special about vLLM. `method` comes from the subclass."""

    baseline = Arm(instrumented=True)
    method = ""

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, recorder):
        return recorder.engine

    @pytest.fixture(scope="class")
    @classmethod
    def bench(cls, recorder):
        return recorder

    @pytest.fixture(scope="class")
    @classmethod
    def arms(cls, models, spaces):
        return _arms(models, spaces[cls.method])

    def test_live_n_drafts_exactly_as_a_fresh_start_with_that_n(self, bench, spaces, live):
        for n in LENGTHS:
            ours, fresh = bench.record(live, n), self._fresh(bench, spaces, n)
            assert ours.search.live and not fresh.search.live
            for a, b in ((ours.search, fresh.search), (ours.greedy, fresh.greedy)):
                assert a.counters.num_drafts > 10
                assert a.counters.num_accepted_tokens > 5
                assert _counts(a, n) == _counts(b, n)

    def test_greedy_outputs_are_those_of_the_baseline(self, bench, spaces, live):
        base = _texts(bench.record(self.baseline, 0))
        assert len(base) == len(bench.arms.prompts) and all(base.values())
        for n in LENGTHS:
            assert _texts(bench.record(live, n)) == base
            assert _texts(self._fresh(bench, spaces, n)) == base

    def test_draft_and_verify_cover_the_steps(self, bench, spaces, live):
        """The best window counts: whatever else the machine does only widens the gaps."""
        speculating = [(bench.record(live, n), self._fresh(bench, spaces, n)) for n in LENGTHS]
        for records in (*speculating, [bench.record(self.baseline, 0)]):
            timed = [window.steps for record in records for window in record[:2]]
            assert all(steps.num_steps > 5 for steps in timed)
            assert max(steps.coverage for steps in timed) >= 0.9
            assert all(steps.coverage <= 1.01 for steps in timed)

    def test_held_out_windows_are_not_timed(self, bench, live):
        for n in LENGTHS:
            record = bench.record(live, n)
            assert record.search.steps is not None
            assert record.confirm.steps is None

    def test_requests_tell_exactly_what_the_counters_say(self, bench, spaces, live):
        for n in LENGTHS:
            for window in (*bench.record(live, n)[:2], *self._fresh(bench, spaces, n)[:2]):
                told = [request.drafts for request in window.requests]
                assert sum(t.num_drafts for t in told) == window.counters.num_drafts
                assert sum(t.num_draft_tokens for t in told) == window.counters.num_draft_tokens
                for i, accepted in enumerate(window.counters.accepted_per_pos):
                    assert sum(sum(t.accepted_per_pos[i : i + 1]) for t in told) == accepted
                assert "request_drafts_disagree" not in window.flags

    def _fresh(self, bench, spaces, n: int) -> Record:
        return bench.record(spaces[self.method].arm(n, live=False), n)


class TestNgram(VllmContract):
    method = "ngram"

    def test_the_worker_says_which_runner_it_has(self, bench, spaces):
        """On a CPU always V1, whose drafters draft what is asked for."""
        runner = bench.session(spaces["ngram"].arm(LENGTHS[1], live=False)).runner
        assert (runner.v2, runner.drafter) == (False, "NgramProposer")
        assert runner.name.startswith("vllm.v1.worker.cpu_model_runner")

    def test_a_lookup_costs_next_to_nothing(self, bench, live):
        for n in LENGTHS:
            steps = bench.record(live, n).greedy.steps
            assert 0 < steps.draft_seconds_per_step < 0.1 * steps.verify_seconds_per_step

    def test_stop_takes_every_patch_back(self, bench, spaces):
        session = bench.session(spaces["ngram"].arm(LENGTHS[1], live=False))
        call = session._server.rpc
        session.run(bench.arms.block())
        assert call("spectune_stop") == [{"stopped": True}]
        assert call("spectune_stop") == [{"stopped": False}]
        session.run(bench.arms.block().model_copy(update={"role": BlockRole.CONFIRM}))
        assert call("spectune_drain") == [{"steps": [], "drafter": False}]

    def test_close_twice_then_nothing_runs(self, bench, spaces):
        """On the engine that happens to run, which spares a start."""
        session = bench.session(spaces["ngram"].arm(LENGTHS[1], live=False))
        family = _family(session)
        bench.close()
        session.close()
        with pytest.raises(EngineError):
            session.run(bench.arms.block())
        assert len(family) >= 2 and not any(process.is_running() for process in family)


class TestDraftModel(VllmContract):
    method = "draft_model"
    # the baseline was judged with the n-grams
    test_baseline_has_no_acceptance = None
    test_baseline_window_is_sound = None
    test_baseline_cannot_switch = None
    test_greedy_blocks_carry_the_texts = None

    def test_drafting_more_takes_longer(self, bench, live):
        drafting = [bench.record(live, n).greedy.steps.draft_seconds_per_step for n in LENGTHS]
        assert drafting == sorted(drafting)

    def test_close_twice_then_nothing_runs(self, bench, spaces):
        """Here the engine's inner process is killed in the middle of a window."""
        session = bench.session(spaces["draft_model"].arm(LENGTHS[1], live=False))
        family = _family(session)
        core = next(p for p in family if "EngineCore" in " ".join(p.cmdline()))
        long = bench.arms.block().model_copy(update={"sampling": Sampling(max_tokens=400)})
        killer = threading.Timer(1.0, core.kill)
        killer.start()
        with pytest.raises(EngineDiedError) as caught:
            session.run(long)
        killer.join()
        assert "engine core exited unexpectedly" in caught.value.last_words
        bench.close()
        session.close()
        assert not any(process.is_running() for process in family)


def _counts(window: Window, n: int) -> tuple[int, ...]:
    """A live engine counts all positions it could draft, a static one its own."""
    counters = window.counters
    assert not any(counters.accepted_per_pos[n:])
    return counters.num_drafts, counters.num_draft_tokens, *counters.accepted_per_pos[:n]


def _texts(record: Record) -> dict[str, str | None]:
    return {request.prompt_id: request.text for request in record.greedy.requests}


def _family(session) -> list[psutil.Process]:
    return psutil.Process(session._process.pid).children(recursive=True)


# ---------------------------------------------------------------------------- the command line


def _arguments(models, workload, *, draft, lengths: str) -> list[str]:
    return [
        *("--model", str(models.target), "--workload", str(workload)),
        *("--methods", "ngram,draft_model", "--drafter", f"draft_model={draft}"),
        *("--num-speculative-tokens", lengths, "--max-concurrency", "1,2"),
        *("--fast", "--", *ENGINE_ARGS),
    ]


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    path = tmp_path_factory.mktemp("workload") / "questions.jsonl"
    numbers = ("one", "two", "three", "five", "six", "seven", "eight", "nine")
    lines = [{"prompt": f"{number} more: {q}"} for number in numbers for q in QUESTIONS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def start_study(tmp_path_factory):
    """Makes StudyProcesses; none of their processes outlives the tests."""
    made = []

    def start(arguments: list[str]) -> StudyProcess:
        made.append(StudyProcess(tmp_path_factory.mktemp("study") / "here", arguments))
        return made[-1]

    yield start
    for study in made:
        study.clean_up()


class Quiet(NamedTuple):
    """A study that nobody disturbs."""

    process: StudyProcess
    announced: list[str]  # commands of the dry run
    after_dry_run: list[str]  # files and processes that it left
    code: int


@pytest.fixture(scope="module")
def quiet(models, workload, start_study, recorder) -> Quiet:
    recorder.close()  # one engine at a time
    process = start_study(_arguments(models, workload, draft=models.draft, lengths="1,2,4"))
    assert process.run(*SHORT, "--dry-run", "--json", seconds=60) == 0
    announced = process.document["commands"]
    left = [*map(str, process.folder.rglob("*")), *map(str, process.processes())]
    return Quiet(process, announced, left, process.run(*SHORT, "--json"))


class TestQuietStudy:
    def test_it_ends_with_a_complete_document(self, quiet, models):
        assert quiet.code in (0, 4), quiet.process.stderr
        document = quiet.process.document
        assert set(document) >= REQUIRED
        del document["serve_command"]  # computed
        recommendation = Recommendation.model_validate(document)
        assert (recommendation.model, recommendation.engine) == (str(models.target), "vllm")
        assert (recommendation.decision == "inconclusive") == (quiet.code == 4)
        statuses = {
            (c.method, c.num_speculative_tokens): c.status for c in recommendation.candidates
        }
        assert len(statuses) == 6 and "failed" not in statuses.values()

    def test_one_start_a_method_and_the_confirmation(self, quiet):
        arms = list(dict.fromkeys(window.arm for window in quiet.process.windows()))
        live = {"ngram:4:live:0", "draft_model:4:live:0"}
        confirmed = {arm for arm in arms if arm.endswith(":static:1")}
        assert arms[0] == "none:0:static:0" and set(arms[1:3]) == live
        assert set(arms) == {arms[0], *live, *confirmed}
        assert quiet.process.document["cost"]["engine_starts"] == len(arms)
        assert len(quiet.process.commands) == len(arms)

    def test_a_dry_run_starts_nothing(self, quiet):
        assert quiet.after_dry_run == []

    def test_the_commands_of_the_dry_run_are_those_that_run(self, quiet):
        announced = {_comparable(shlex.split(command)) for command in quiet.announced}
        ran = [_comparable(command) for command in quiet.process.commands.values()]
        assert len(announced) == 3
        assert announced == set(ran[:3])
        for static in ran[3:]:  # as the user will run it
            assert "--scheduler-cls" not in static
            assert "num_speculative_tokens_per_batch_size" not in " ".join(static)

    def test_the_confirmation_accepts_exactly_what_live_n_accepted(self, quiet):
        """Its reference block has the prompts of the first search block."""
        windows = quiet.process.windows()
        again = [w for w in windows if w.block.startswith("reference") and w.n]
        if not again:
            pytest.skip("this time nothing was worth a confirmation")
        for static in again:
            wanted = (static.n, f"search:0:{static.block.split(':')[2]}")
            method = static.window.method
            live = next(w for w in quiet.process.windows(method) if (w.n, w.block) == wanted)
            assert live.window.live and not static.window.live
            assert _counts(live.window, live.n) == _counts(static.window, static.n)

    def test_nothing_is_left(self, quiet):
        assert quiet.process.vanished()

    def test_the_same_command_answers_from_the_store(self, quiet):
        starts = quiet.process.document["cost"]["engine_starts"]
        assert quiet.process.run(*SHORT, "--json", seconds=60) == quiet.code
        assert quiet.process.document["cost"]["engine_starts"] == starts


def _comparable(argv: list[str]) -> tuple[str, ...]:
    """Without the variables before the command and without the port."""
    first = next(i for i, word in enumerate(argv) if not re.match(r"[A-Z_]+=", word))
    port = argv.index("--port")
    return (*argv[first:port], *argv[port + 2 :])


class Stormy(NamedTuple):
    """A study that meets everything: see the fixture."""

    process: StudyProcess
    killed: list[StoredWindow]  # stored when the tuner was killed
    killed_left_nothing: bool
    interrupted: list[StoredWindow]
    interrupted_left_nothing: bool
    codes: tuple[int, ...]
    says: str  # on stderr of the interrupted run


@pytest.fixture(scope="module")
def stormy(models, workload, start_study, recorder) -> Stormy:
    """First an engine dies and then the tuner is killed, both in the middle of a window.

    Then Ctrl-C is pressed while an engine starts, then it may finish. The draft model does not
    fit all the while.
    """
    recorder.close()
    process = start_study(_arguments(models, workload, draft=models.misfit, lengths="1,2"))
    options = ("--max-tokens", "48", "--prompts-per-block", "2", "--json")

    process.start(*options)
    process.until(lambda: process.windows("ngram"), 600, "the first n-gram window")
    process.kill_engine_core()
    died = process.windows("ngram")[0].n
    others = lambda: [w for w in process.windows("ngram") if w.n != died]  # noqa: E731
    process.until(others, 300, "a window of the other N")
    process.signal(signal.SIGKILL)
    first = process.wait(10)
    killed_left_nothing = process.vanished()
    killed = process.windows()

    process.start(*options)
    process.until(process.engine_cores, 300, "an engine core")
    process.signal(signal.SIGINT)
    second = process.wait(60)
    interrupted_left_nothing = process.vanished()
    says, interrupted = process.stderr, process.windows()

    third = process.run(*options)
    return Stormy(
        process,
        killed,
        killed_left_nothing,
        interrupted,
        interrupted_left_nothing,
        (first, second, third),
        says,
    )


class TestStormyStudy:
    def test_nothing_survives_the_death_of_the_tuner(self, stormy):
        assert stormy.codes[0] == -signal.SIGKILL
        assert stormy.killed_left_nothing

    def test_ctrl_c_ends_the_engine_and_says_how_to_go_on(self, stormy):
        assert stormy.codes[1] == 130
        assert stormy.interrupted_left_nothing
        assert "the same command resumes" in stormy.says

    def test_what_was_stored_is_not_measured_again(self, stormy):
        after = {(w.arm, w.n, w.block): w.at for w in stormy.process.windows()}
        for stored in (stormy.killed, stormy.interrupted):
            assert stored
            assert {(w.arm, w.n, w.block): w.at for w in stored}.items() <= after.items()
        assert len(stormy.killed) == len(stormy.interrupted) < len(after)

    def test_it_finishes_all_the_same(self, stormy):
        assert stormy.codes[2] in (0, 4), stormy.process.stderr
        assert set(stormy.process.document) >= REQUIRED
        assert stormy.process.vanished()

    def test_a_refused_draft_has_failed_in_vllms_words(self, stormy):
        failures = [f for f in stormy.process.study.failures if f.method == "draft_model"]
        assert {f.num_speculative_tokens for f in failures} == {1, 2, None}
        for failure in failures:
            assert "should have the same vocabulary size" in failure.last_words
        for candidate in self._candidates(stormy, "draft_model"):
            assert candidate["status"] == "failed"
            assert "should have the same vocabulary size" in candidate["error"]

    def test_an_engine_that_died_fails_its_candidate_only(self, stormy):
        failures = [f for f in stormy.process.study.failures if f.method == "ngram"]
        assert len(failures) == 1
        died = failures[0].num_speculative_tokens
        assert "vLLM" in failures[0].error
        assert "engine core exited unexpectedly" in failures[0].last_words
        for candidate in self._candidates(stormy, "ngram"):
            failed = candidate["num_speculative_tokens"] == died
            assert (candidate["status"] == "failed") == failed

    def test_every_start_is_accounted_for(self, stormy):
        starts = [(s.arm, s.error is None) for s in stormy.process.study.engine_starts]
        confirmations = [arm for arm, _ in starts if arm.endswith(":1")]
        assert starts.count(("none:0:static:0", True)) == 1
        assert starts.count(("ngram:2:live:0", True)) == 3
        assert [started for arm, started in starts if arm.startswith("draft_model")] == [False] * 3
        assert len(starts) == 7 + len(confirmations)
        assert stormy.process.document["cost"]["engine_starts"] == len(starts)

    def _candidates(self, stormy: Stormy, method: str) -> list[dict]:
        found = [c for c in stormy.process.document["candidates"] if c["method"] == method]
        assert found
        return found


def test_a_baseline_that_cannot_start_is_the_engines_fault(models, workload, start_study, recorder):
    recorder.close()
    process = start_study(
        [*_arguments(models, workload, draft=models.draft, lengths="1"), "--no-such-flag"]
    )
    assert process.run(seconds=120) == 3
    assert "vLLM did not start" in process.stderr
    assert "unrecognized arguments: --no-such-flag" in process.stderr
    assert process.vanished()
