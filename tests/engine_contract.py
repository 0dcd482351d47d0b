"""What every engine must keep, real or not: subclass EngineContract and give it two fixtures.

    class TestMyEngine(EngineContract):
        @pytest.fixture(scope="class")
        @classmethod
        def engine(cls): return MyEngine(...)

        @pytest.fixture(scope="class")
        @classmethod
        def arms(cls): return Arms(...)

A slow engine is spared: at most one session is open at a time, it is reused by all tests of its
arm (tests are ordered by arm), and every window is measured once. One class needs five starts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from autotune.engines import Engine, Session
from autotune.errors import EngineError, LiveSwitchError, SpectuneError
from autotune.records import (
    BASELINE,
    Arm,
    Block,
    BlockRole,
    Message,
    Prompt,
    Sampling,
    Target,
    Window,
)

SHORT = Sampling(max_tokens=64)


@dataclass(frozen=True)
class Arms:
    """What the engine under test can run. `live` None: it cannot switch N at all."""

    target: Target
    static: Arm
    live: Arm | None
    switches: tuple[int, ...]  # N that the live arm can measure, the largest last
    concurrency: int | None
    prompts: tuple[Prompt, ...] = tuple(
        Prompt(id=f"p{i}", messages=(Message(role="user", content=f"Count to {i + 5}."),))
        for i in range(4)
    )
    sampling: Sampling = SHORT

    def block(self, index: int = 0) -> Block:
        return Block(
            role=BlockRole.SEARCH,
            index=index,
            concurrency=self.concurrency,
            prompts=self.prompts,
            sampling=self.sampling,
        )


class Bench:
    """Keeps one session open and every window that was measured."""

    def __init__(self, engine: Engine, arms: Arms) -> None:
        self.engine = engine
        self.arms = arms
        self._arm: Arm | None = None
        self._session: Session | None = None
        self._windows: dict[tuple[str, int], Window] = {}

    def session(self, arm: Arm) -> Session:
        if self._session is None or arm != self._arm:
            self.close()
            self._session = self.engine.open(self.arms.target, arm, lambda line: None)
            self._arm = arm
        return self._session

    def window(self, arm: Arm, n: int | None = None) -> Window:
        """The first window of `arm`; `n` is switched to on a live arm."""
        wanted = arm.num_speculative_tokens if n is None else n
        key = (arm.key, wanted)
        if key not in self._windows:
            session = self.session(arm)
            if arm.live:
                session.set_num_speculative_tokens(wanted)
            self._windows[key] = session.run(self.arms.block())
        return self._windows[key]

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = self._arm = None


class EngineContract:
    """Fixtures `engine` and `arms` come from the subclass, both with scope="class"."""

    baseline = Arm()

    @pytest.fixture(scope="class")
    @classmethod
    def bench(cls, engine, arms):
        bench = Bench(engine, arms)
        yield bench
        bench.close()

    @pytest.fixture(scope="class")
    @classmethod
    def live(cls, arms):
        if arms.live is None:
            pytest.skip("this engine cannot switch N")
        return arms.live

    # ------------------------------------------------------------------ without a start

    def test_command_is_readable_and_names_the_model(self, engine, arms):
        for arm in (self.baseline, arms.static, arms.live or arms.static):
            command = engine.command(arms.target, arm)
            assert arms.target.model in command
            assert str(arm.num_speculative_tokens) in command or arm.method == BASELINE

    def test_identity_is_json_and_stable(self, engine):
        assert json.loads(json.dumps(engine.identity())) == engine.identity()

    def test_a_start_has_a_price(self, engine):
        assert engine.estimated_start_seconds() > 0

    def test_an_offer_can_be_run(self, engine):
        offer = engine.offer()
        if offer is None:
            return  # a real engine does not limit what can be tried
        assert offer.model and offer.workload and offer.concurrencies
        names = [space.method for space in offer.spaces]
        assert len(names) == len(set(names)) and BASELINE not in names
        for space in offer.spaces:
            assert list(space.lengths) == sorted(set(space.lengths))
            assert space.lengths[0] >= 1

    def test_an_unknown_method_is_an_error(self, engine, arms):
        arm = Arm(method="no_such_method", num_speculative_tokens=2)
        with pytest.raises(SpectuneError):
            session = engine.open(arms.target, arm, lambda line: None)
            try:
                session.run(arms.block())
            finally:
                session.close()

    # --------------------------------------------------------------------- the baseline

    def test_baseline_has_no_acceptance(self, bench):
        window = bench.window(self.baseline)
        assert (window.method, window.num_speculative_tokens) == (BASELINE, 0)
        assert window.acceptance_length is None
        assert window.per_position_acceptance_rates is None
        assert window.counters is None or window.counters.num_drafts == 0

    def test_baseline_window_is_sound(self, bench):
        self._check(bench, self.baseline, 0)

    def test_baseline_cannot_switch(self, bench):
        session = bench.session(self.baseline)
        assert not session.capabilities.live_n
        with pytest.raises(LiveSwitchError):
            session.set_num_speculative_tokens(0)

    def test_greedy_blocks_carry_the_texts(self, bench, arms):
        """Other windows need not: there the texts were judged and may be dropped."""
        session = bench.session(self.baseline)
        block = arms.block().model_copy(update={"role": BlockRole.GREEDY})
        texts = [request.text for request in session.run(block).requests]
        assert any(texts) == session.capabilities.outputs

    # --------------------------------------------------------------------- a static arm

    def test_static_window_is_sound(self, bench, arms):
        self._check(bench, arms.static, arms.static.num_speculative_tokens)

    def test_static_arm_refuses_a_switch(self, bench, arms):
        session = bench.session(arms.static)
        assert not session.capabilities.live_n
        with pytest.raises(LiveSwitchError):
            session.set_num_speculative_tokens(1)

    def test_repeats_are_new_only_where_promised(self, bench, engine, arms):
        offer, session = engine.offer(), bench.session(arms.static)
        first, second = (session.run(arms.block(1)).output_tokens_per_second for _ in range(2))
        assert (first != second) == (offer is None or offer.repeats)

    # ----------------------------------------------------------------------- a live arm

    def test_live_windows_report_the_n_that_was_set(self, bench, arms, live):
        assert bench.session(live).capabilities.live_n
        for n in (*arms.switches, arms.switches[0]):
            self._check(bench, live, n)

    def test_live_arm_has_a_ceiling_and_a_floor(self, bench, live):
        session = bench.session(live)
        for n in (live.num_speculative_tokens + 1, -1):
            with pytest.raises(LiveSwitchError):
                session.set_num_speculative_tokens(n)

    def test_a_refused_switch_changes_nothing(self, bench, arms, live):
        session = bench.session(live)
        session.set_num_speculative_tokens(arms.switches[0])
        with pytest.raises(LiveSwitchError):
            session.set_num_speculative_tokens(live.num_speculative_tokens + 1)
        assert session.run(arms.block(2)).num_speculative_tokens == arms.switches[0]

    # ---------------------------------------------------------------------------- the end

    def test_close_twice_then_nothing_runs(self, bench, arms):
        session = bench.session(self.baseline.model_copy(update={"generation": 1}))
        session.close()
        session.close()
        with pytest.raises(EngineError):
            session.run(arms.block())

    # ---------------------------------------------------------------------------- helpers

    def _check(self, bench: Bench, arm: Arm, n: int) -> None:
        """Everything that holds for every window."""
        window = bench.window(arm, n)
        capabilities = bench.session(arm).capabilities
        assert bench.session(arm).start_seconds >= 0
        assert (window.method, window.num_speculative_tokens) == (arm.method, n)
        assert window.live == arm.live
        block = bench.arms.block()
        assert (window.block, window.concurrency) == (block.key, block.concurrency)
        assert window.output_tokens_per_second > 0
        if window.duration_seconds is not None and window.output_tokens is not None:
            rate = window.output_tokens / window.duration_seconds
            assert rate == pytest.approx(window.output_tokens_per_second, rel=0.05)
        assert (window.steps is not None) == capabilities.step_timing
        if arm.method != BASELINE:
            assert (window.counters is not None) == capabilities.counters
        _check_counters(window)
        _check_steps(window)


def _check_counters(window: Window) -> None:
    counters, n = window.counters, window.num_speculative_tokens
    if counters is not None:
        accepted = counters.accepted_per_pos
        assert counters.num_draft_tokens <= n * counters.num_drafts
        assert counters.num_accepted_tokens <= counters.num_draft_tokens
        assert sum(accepted) == counters.num_accepted_tokens
        assert list(accepted) == sorted(accepted, reverse=True)
        assert not any(accepted[n:])
        assert all(count <= counters.num_drafts for count in accepted)
        assert window.acceptance_length == counters.acceptance_length
        assert window.per_position_acceptance_rates == counters.per_position_rates
    if window.acceptance_length is not None:
        assert 1 <= window.acceptance_length <= n + 1


def _check_steps(window: Window) -> None:
    steps = window.steps
    if steps is None:
        return
    assert steps.num_steps > 0
    assert steps.verify_seconds_per_step > 0
    assert (steps.draft_seconds_per_step or 0) >= 0
    if window.num_speculative_tokens:
        assert steps.draft_seconds_per_step is not None
    if window.method == BASELINE:
        assert steps.draft_seconds_per_step is None
    parts = (steps.draft_seconds_per_step or 0) + steps.verify_seconds_per_step
    assert steps.coverage == pytest.approx(parts / steps.step_seconds, rel=0.01)
