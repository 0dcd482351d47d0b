"""Whether N can be switched, and step times: everything about it that needs no vLLM."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.live import Runner, expects_v2, why_not_live, why_not_switched
from autotune.engines.steps import request_step_tokens, summarize_steps, timed_worker
from autotune.machine.environment import EngineInfo
from autotune.methods import all_methods, get_method
from autotune.records import SpecCounters, StepTimes
from autotune.vllm_plugin import worker
from autotune.vllm_plugin.worker import COLUMNS, StepTimer

LIVE = sorted(method.name for method in all_methods() if method.live_n)
ON_V2 = {
    "eagle": "EagleSpeculator",
    "eagle3": "EagleSpeculator",
    "gemma4_mtp": "Gemma4Speculator",
    "mtp": "MTPSpeculator",
}


def engine(vllm: str = "0.32.0", platform: str = "rocm", triton: bool = True) -> EngineInfo:
    packages = frozenset(["triton"] if triton else [])
    return EngineInfo(python="p", vllm=vllm, platform=platform, packages=packages)


CPU = engine(platform="cpu", triton=False)


def on(v2: bool, drafter: str | None = "x") -> Runner:
    return Runner(name="GPUModelRunner", v2=v2, drafter=drafter)


@pytest.fixture(autouse=True)
def _no_switch(monkeypatch):
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)


# ------------------------------------------------------------------------------ model runners


def test_the_table():
    assert {m.name: m.live_on_v2[0] for m in all_methods() if m.live_on_v2} == ON_V2
    for method in all_methods():
        assert method.live_n or not method.live_on_v2
        if method.live_n and not method.live_on_v2:
            assert "V2" in method.live_note


@pytest.mark.parametrize("method", LIVE)
def test_the_v1_runner_drafts_what_is_asked_for(method):
    for info in (CPU, engine("0.24.0", triton=False)):
        assert why_not_live(info, (), method) is None
        assert why_not_switched(info, on(v2=False), method) is None


@pytest.mark.parametrize("method", LIVE)
def test_the_v2_runner_is_known_before_the_start(method):
    reason = why_not_live(engine(), (), method)
    assert (reason is None) == (method in ON_V2)
    assert reason is None or "V2" in reason


@pytest.mark.parametrize("method", LIVE)
def test_the_running_engine_has_the_last_word(method):
    own = get_method(method).live_on_v2
    for drafter in {*ON_V2.values(), "MultiModuleMTPSpeculator", "DFlashSpeculator", None}:
        reason = why_not_switched(engine(), on(v2=True, drafter=drafter), method)
        assert (reason is None) == (drafter in own)
        assert why_not_switched(engine("0.31.2"), on(v2=True, drafter=drafter), method)


def test_a_runner_that_cannot_be_asked():
    assert why_not_switched(CPU, None, "ngram") is None
    for info in (engine(), engine("0.30.0"), engine(platform="cpu")):
        assert "not known" in why_not_switched(info, None, "eagle3")


def test_old_versions_and_data_parallelism():
    assert "0.23.1" in why_not_live(engine("0.23.1"), (), "ngram")
    assert "data parallel" in why_not_live(CPU, ("-dp", "2"), "ngram")
    assert why_not_live(CPU, ("-dp", "1"), "ngram") is None


def test_which_runner_is_expected(monkeypatch):
    assert expects_v2(engine(), ()) is True
    assert expects_v2(engine(platform="cuda"), ("--dtype", "auto")) is True
    assert expects_v2(engine(), ("--enable-dbo",)) is None
    assert expects_v2(engine("0.30.0"), ()) is None  # decided otherwise then
    assert expects_v2(engine(platform="cpu"), ()) is None
    assert expects_v2(CPU, ()) is False
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    assert expects_v2(engine(), ()) is False
    assert why_not_live(engine(), (), "ngram") is None
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    assert expects_v2(engine("0.30.0"), ()) is True
    assert why_not_live(engine("0.30.0"), (), "eagle3")


# ------------------------------------------------------------------------- inside the worker


class V1Runner:
    """As vLLM's: the last pipeline stage has a `drafter`, and drafts in a method of its own."""

    def __init__(self, drafter: object = None) -> None:
        if drafter is not None:
            self.drafter = drafter

    def execute_model(self, scheduler_output, **rest):
        return None

    def sample_tokens(self, grammar):
        if hasattr(self, "drafter"):
            self.propose_draft_token_ids()
        return "tokens"

    def propose_draft_token_ids(self):
        return "drafts"


class Speculator:
    def propose(self):
        return "drafts"


class V2Runner:
    def __init__(self, speculator: object = None) -> None:
        self.speculator = speculator

    def execute_model(self, scheduler_output, **rest):
        return None

    def sample_tokens(self, grammar):
        if self.speculator is not None:
            self.speculator.propose()
        return "tokens"


class CpuV2Runner(V2Runner):
    pass


V2Runner.__module__ = worker.V2_RUNNER


class Worker(StepTimer):
    device = SimpleNamespace(type="cpu")

    def __init__(self, runner: object) -> None:
        self.model_runner = runner

    def step(self, drafted: int = 2, new: bool = False) -> None:
        """One request: its prefill, or one token and its drafts to verify."""
        output = SimpleNamespace(
            total_num_scheduled_tokens=5 if new else 1 + drafted,
            num_scheduled_tokens={"a": 5 if new else 1 + drafted},
            scheduled_spec_decode_tokens={} if new else {"a": [7] * drafted},
            scheduled_new_reqs=["a"] if new else [],
            scheduled_cached_reqs=SimpleNamespace(num_computed_tokens=[] if new else [5]),
        )
        self.model_runner.execute_model(output)
        assert self.model_runner.sample_tokens(None) == "tokens"


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())


@pytest.mark.parametrize(
    ("runner", "v2", "drafter"),
    [
        (V1Runner(), False, None),
        (V1Runner(Speculator()), False, "Speculator"),
        (V2Runner(), True, None),
        (V2Runner(Speculator()), True, "Speculator"),
        (CpuV2Runner(Speculator()), True, "Speculator"),
    ],
)
def test_a_worker_says_what_it_has_and_times_it(runner, v2, drafter):
    worker = Worker(runner)
    about = Runner(**worker.spectune_about())
    assert (about.v2, about.drafter) == (v2, drafter)
    assert about.name.endswith(type(runner).__name__)
    assert worker.spectune_drain() == {"steps": [], "drafter": False}
    assert worker.spectune_start() == {"drafter": drafter is not None}
    worker.step(new=True)
    worker.step()
    drained = worker.spectune_drain()
    assert drained["drafter"] == (drafter is not None)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in drained["steps"]]
    assert [row["decode"] for row in rows] == [0.0, 1.0]
    assert [row["context"] for row in rows] == [0, 5]
    assert all((row["draft"] > 0) == (drafter is not None) for row in rows)
    assert worker.spectune_stop() == {"stopped": True}
    own = {"speculator"} if hasattr(runner, "speculator") else {"drafter"} & set(vars(runner))
    assert set(vars(runner)) == own  # nothing is patched any more
    assert not drafter or not vars(getattr(runner, "speculator", Speculator()))


def test_a_timer_that_cannot_be_installed_leaves_nothing():
    class Older:
        drafter = Speculator()

        def execute_model(self, scheduler_output):
            return None

    worker = Worker(Older())
    with pytest.raises(AttributeError):
        worker.spectune_start()
    assert vars(worker.model_runner) == {}
    assert worker.spectune_stop() == {"stopped": False}


# --------------------------------------------------------------------------------- step times


def row(start: float, draft: float, *, requests: int = 2, decode: bool = True) -> list[float]:
    values = {"start": start, "step": 0.9, "draft": draft, "requests": requests}
    values |= {"tokens": 3, "drafted": 2, "decode": float(decode), "context": None}
    return [values[column] for column in COLUMNS]


def test_step_times():
    rows = [row(0.0, 0.3, decode=False), row(1.0, 0.2), row(2.0, 0.2), row(3.0, 0.2)]
    steps = summarize_steps(rows, drafter=True, tokens_per_request=1.5)
    assert steps.num_steps == 2
    assert steps.draft_seconds_per_step == pytest.approx(0.2)
    assert steps.verify_seconds_per_step == pytest.approx(0.7)
    assert (steps.step_seconds, steps.coverage) == (pytest.approx(1.0), pytest.approx(0.9))
    assert (steps.requests_per_step, steps.tokens_per_step) == (2, 3)
    assert summarize_steps(rows[:2], drafter=True, tokens_per_request=1.5) is None


def test_step_times_by_batch():
    """By hand: two steps of 2 requests, one of 1; the last decode step has no successor."""
    rows = [
        # start, step, draft, requests, tokens, drafted, decode, context
        [0.0, 0.30, 0.05, 2, 90, 0, 0.0, 0],
        [1.0, 0.30, 0.10, 2, 6, 4, 1.0, 40],
        [1.4, 0.40, 0.20, 2, 4, 2, 1.0, 44],
        [2.0, 0.20, 0.02, 1, 3, 2, 1.0, 30],
        [2.3, 0.20, 0.02, 1, 3, 2, 1.0, 32],
    ]
    steps = summarize_steps(rows, drafter=True, tokens_per_request=1.5)
    one, two = steps.by_batch
    assert (one.requests, one.num_steps, two.requests, two.num_steps) == (1, 1, 2, 2)
    assert (one.verified_tokens_per_step, two.verified_tokens_per_step) == (3, 5)
    assert (one.context_tokens_per_request, two.context_tokens_per_request) == (30, 21)
    assert one.draft_seconds_per_step == pytest.approx(0.02)
    assert two.draft_seconds_per_step == pytest.approx(0.15)
    assert one.verify_seconds_per_step == pytest.approx(0.18)
    assert two.verify_seconds_per_step == pytest.approx(0.2)
    assert one.step_seconds == pytest.approx(0.3)
    assert two.step_seconds == pytest.approx(0.5)
    assert steps.verified_tokens_per_step == pytest.approx(13 / 3)


STEP_ROWS = st.tuples(
    st.floats(1e-4, 1), st.floats(0, 1), st.integers(1, 8), st.integers(0, 9), st.booleans()
)


@given(st.lists(STEP_ROWS, min_size=2, max_size=40))
def test_by_batch_holds_the_very_steps_of_the_totals(drawn):
    rows, start = [], 0.0
    for busy, share, requests, drafts, decode in drawn:
        tokens = requests * (1 + drafts)
        rows.append([start, busy, share * busy, requests, tokens, drafts, float(decode), 7])
        start += 1.5 * busy
    steps = summarize_steps(rows, drafter=True, tokens_per_request=1.0)
    if steps is None:
        return
    assert sum(batch.num_steps for batch in steps.by_batch) == steps.num_steps
    names = ["verify_seconds_per_step", "step_seconds", "verified_tokens_per_step"]
    if steps.draft_seconds_per_step is not None:
        names.append("draft_seconds_per_step")
    for name in names:
        total = sum(batch.num_steps * getattr(batch, name) for batch in steps.by_batch)
        assert total == pytest.approx(steps.num_steps * getattr(steps, name))


def test_windows_stored_before_there_was_by_batch_still_load():
    rows = [row(0.0, 0.2), row(1.0, 0.2)]
    steps = summarize_steps(rows, drafter=True, tokens_per_request=1.0)
    older = steps.model_dump(exclude={"by_batch", "verified_tokens_per_step"})
    loaded = StepTimes.model_validate(older)
    assert (loaded.by_batch, loaded.verified_tokens_per_step) == ((), None)
    assert loaded.step_seconds == steps.step_seconds


def test_drafting_that_was_not_timed_is_not_zero():
    rows = [row(0.0, 0.0), row(1.0, 0.0)]
    for drafter in (True, False):
        steps = summarize_steps(rows, drafter=drafter, tokens_per_request=1.0)
        assert steps.draft_seconds_per_step is None
        assert steps.verify_seconds_per_step == pytest.approx(0.9)
        assert [batch.draft_seconds_per_step for batch in steps.by_batch] == [None]


def test_the_worker_that_drafts_is_read():
    first, last = {"steps": [1], "drafter": False}, {"steps": [2], "drafter": True}
    assert timed_worker([first, last]) is last
    assert timed_worker([last, first]) is last
    assert timed_worker([first, first | {"steps": [3]}])["steps"] == [3]


def counters(drafts: int, accepted: int) -> SpecCounters:
    return SpecCounters(
        num_drafts=drafts, num_draft_tokens=4 * drafts, num_accepted_tokens=accepted
    )


def test_tokens_of_a_request_and_step():
    assert request_step_tokens(None, 100, 4) == 1
    assert request_step_tokens(counters(10, 0), 100, 4) == 1
    # a drafter that always drafts: 20 drafts are 20 steps, though 5 accepted tokens were cut
    assert request_step_tokens(counters(20, 60), 20 + 60 + 4 - 5, 4) == pytest.approx(4)
    # n-gram: 20 of 50 steps had a draft
    assert request_step_tokens(counters(20, 30), 50 + 30 + 4, 4) == pytest.approx(1.6)
    assert request_step_tokens(counters(1, 8), 3, 1) == 9  # everything was cut
