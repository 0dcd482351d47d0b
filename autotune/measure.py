"""The laboratory: starts engines one at a time, measures blocks, and remembers all of it.

A window that the study already holds is recalled instead of measured, and an engine is started
only when a window is missing. That is all there is to resuming: the tuner runs the same path.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from autotune.engines import Engine, Progress, Session
from autotune.engines.quality import judge_quality
from autotune.errors import EngineError, UnusableMeasurementError
from autotune.records import (
    BASELINE,
    Arm,
    Block,
    BlockRole,
    Cost,
    MethodSpace,
    Plan,
    Window,
)
from autotune.workload import make_block

if TYPE_CHECKING:
    from autotune.store import EngineStart, Study

logger = logging.getLogger(__name__)

SETTLED = 0.05  # warm-up ends when throughput rises by less than this from block to block
MAX_WARMUPS = 3
TOUCH_TOKENS = 8


class Lab:
    """Measures windows for one plan; at most one engine runs at a time."""

    def __init__(self, plan: Plan, engine: Engine, study: Study, progress: Progress) -> None:
        self.plan = plan
        self.engine = engine
        self.study = study
        self.progress = progress
        self.static_methods: dict[str, str] = {}  # live N did not work there, and why
        self.start_seconds = engine.estimated_start_seconds()
        self.search_starts = 0  # engines started for the search
        self._arm: Arm | None = None
        self._session: Session | None = None
        self._touched: set[tuple[int, int | None]] = set()  # N and loads this engine has run
        self._lost: EngineStart | None = None  # the engine that an interruption took
        self._recall_starts()
        self._clock: Callable[[], float] = time.monotonic
        self._accounted = self._clock()

    # -------------------------------------------------------------------------- arms

    def baseline_arm(self, generation: int = 0) -> Arm:
        return Arm(method=BASELINE, instrumented=True, generation=generation)

    def probe_arm(self, space: MethodSpace, n: int) -> Arm:
        """The start that answers for N: one live start for all N where that works."""
        live = self.is_live(space)
        return space.arm(max(space.lengths) if live else n, live=live)

    def confirm_arm(self, space: MethodSpace, n: int) -> Arm:
        """A static start, as the user will run it: a fresh one, unless the probe's was static."""
        fresh = self.is_live(space) or self.plan.settings.confirm_fresh
        return space.arm(n, live=False, generation=int(fresh))

    def is_live(self, space: MethodSpace) -> bool:
        return self.plan.is_live(space) and self.why_static(space) is None

    def why_static(self, space: MethodSpace) -> str | None:
        """What speaks against switching N on a running engine; None: nothing that is known."""
        seen = self.static_methods.get(space.method)
        return seen or self.engine.why_not_live(self.plan.target, space)

    def why_no_schedule(self, space: MethodSpace) -> str | None:
        """What speaks against N by batch size, which needs what live N needs; None: nothing."""
        offer = self.engine.offer()
        if offer is not None and not offer.schedules:
            return f"engine {self.plan.engine} cannot let N follow the batch size"
        if not space.live_n:
            return f"N of {space.method} cannot change while the engine runs"
        if not (self.plan.settings.live_n or self.plan.settings.confirm_fresh):
            return "live N is off: the loads beside the thresholds would take one more start"
        return self.why_static(space)

    @property
    def open_method(self) -> str | None:
        """The method whose live engine is running: its other N cost no start.

        An engine that an interruption took counts as running: its restart was paid for.
        """
        running = self._arm or self._lost
        return running.method if running is not None and running.live else None

    # ------------------------------------------------------------------------ windows

    def block(self, role: BlockRole, index: int, concurrency: int | None) -> Block:
        size = self.plan.settings.prompts_per_block
        if role == BlockRole.GREEDY:
            size = self.plan.settings.greedy_prompts
            block = make_block(self.plan.workload, role, index, 1, size)
            return block.model_copy(update={"prompts": block.prompts[:size]})
        return make_block(self.plan.workload, role, index, concurrency, size)

    def window(self, arm: Arm, n: int, role: BlockRole, index: int, load: int | None) -> Window:
        """One block on one arm at N: recalled if the study has it, measured otherwise.

        Raises EngineError (its kind says what went wrong); nothing is stored then.
        """
        block = self.block(role, index, load)
        known = self.study.recall(arm, n, block)
        if known is not None:
            return known
        try:
            session = self._session_for(arm)
            if arm.live:
                session.set_num_speculative_tokens(n)
            self._touch(session, n, load)
            window = session.run(block)
            refuse_without_drafts(window)
            if arm.method != BASELINE:  # broken text can be fast: it must never lead the search
                judge_quality(window.flags, self._baseline_flags(block))
        except UnusableMeasurementError:
            raise  # the engine itself is well
        except EngineError:
            self.close()  # an engine that misbehaved is not asked again
            raise
        self.study.save(arm, block, 0, window)
        self._account()
        self.progress(describe_window(window, role, scheduled=bool(arm.schedule)))
        return window

    def _baseline_flags(self, block: Block) -> set[str]:
        """Quality flags without speculation: of this block, or of all blocks where it has none.

        Beside a schedule's thresholds the baseline is never measured.
        """
        same = self.study.recall(self.baseline_arm(), 0, block)
        if same is not None:
            return set(same.flags)
        return {
            flag
            for stored in self.study.windows()
            if stored.window.method == BASELINE
            for flag in stored.window.flags
        }

    def _session_for(self, arm: Arm) -> Session:
        if self._session is not None and arm == self._arm:
            return self._session
        self.close()
        began = self._clock()
        try:
            session = self.engine.open(self.plan.target, arm, self.progress)
        except EngineError as error:
            self.study.engine_started(arm, self._clock() - began, error.message)
            raise
        self._session, self._arm = session, arm
        self._touched.clear()
        self.start_seconds = session.start_seconds or self.start_seconds
        restarted = self._lost is not None and self._lost.arm == arm.key
        self.search_starts += arm.method != BASELINE and not restarted
        self._lost = None
        self.study.engine_started(arm, session.start_seconds)
        if session.capabilities.warmup:
            began = self._clock()
            self._warm_up(session, arm)
            self.start_seconds += self._clock() - began  # every start needs one
        return session

    def _recall_starts(self) -> None:
        """What earlier, interrupted runs have started; a restart after an interruption is free."""
        live = {space.method for space in self.plan.spaces if self.is_live(space)}
        for start in self.study.engine_starts():
            if start.method == BASELINE or not is_search_arm(start.arm):
                continue
            if not start.live and start.method in live:
                self.static_methods[start.method] = "live N did not work in an earlier run"
            if start.error is None:
                self.search_starts += self._lost is None or self._lost.arm != start.arm
                self._lost = start

    def _touch(self, session: Session, n: int, load: int | None) -> None:
        """Before the first window at an N and load: a few tokens, so that kernels exist."""
        if not session.capabilities.warmup or (n, load) in self._touched:
            return
        block = self.block(BlockRole.WARMUP, 0, load)
        sampling = block.sampling.model_copy(update={"max_tokens": TOUCH_TOKENS})
        few = block.prompts[: load or 1]
        run_unjudged(session, block.model_copy(update={"prompts": few, "sampling": sampling}))
        self._touched.add((n, load))

    def _warm_up(self, session: Session, arm: Arm) -> None:
        """Run blocks and throw them away until throughput no longer rises."""
        load = max(self.plan.concurrencies, key=lambda c: c or 1)
        previous = 0.0
        for index in range(MAX_WARMUPS):
            self.progress(f"{arm.method}: warming up")
            if arm.live:
                session.set_num_speculative_tokens(arm.num_speculative_tokens)
            rate = run_unjudged(session, self.block(BlockRole.WARMUP, index, load))
            if index and rate < previous * (1 + SETTLED):
                return
            previous = max(previous, rate)

    def fall_back_to_static(self, space: MethodSpace, error: EngineError) -> None:
        """From now on one start per N for this method."""
        logger.warning("%s: live N is off, one start per N: %s", space.method, error.message)
        self.progress(f"{space.method}: live N does not work here, starting once per N")
        self.static_methods[space.method] = error.message
        self.close()

    # --------------------------------------------------------------------------- cost

    def close(self) -> None:
        session, self._session, self._arm = self._session, None, None
        if session is not None:
            session.close()

    def elapsed_seconds(self) -> float:
        """Wall time of this study, earlier interrupted runs included."""
        self._account()
        return self.study.total_seconds()

    def _account(self) -> None:
        now = self._clock()
        self.study.add_seconds(now - self._accounted)
        self._accounted = now

    def cost(self) -> Cost:
        windows = [stored.window for stored in self.study.windows()]
        return Cost(
            engine_starts=len(self.study.engine_starts()),
            probes=len(windows),
            probe_seconds=sum(w.duration_seconds or 0.0 for w in windows),
            total_seconds=self.elapsed_seconds(),
        )


def run_unjudged(session: Session, block: Block) -> float:
    """Throughput of a block that is thrown away, 0 where it could not be ranked.

    A few tokens may well come without a single draft: n-grams first need something to repeat.
    """
    try:
        return session.run(block).output_tokens_per_second
    except UnusableMeasurementError:
        return 0.0


def is_search_arm(key: str) -> bool:
    """Whether an Arm.key is the search's; fresh starts (confirmation, drift) are held out."""
    return key.endswith(":0")


def refuse_without_drafts(window: Window) -> None:
    """Raise UnusableMeasurementError where N > 0 was set and nothing was drafted.

    Such a candidate is the baseline under another name: failed, never slow.
    """
    counters = window.counters
    if window.num_speculative_tokens and counters is not None and not counters.num_drafts:
        raise UnusableMeasurementError(
            f"{describe_candidate(window.method, window.num_speculative_tokens)} drafted nothing: "
            "speculation was bypassed"
        )


def describe_window(window: Window, role: BlockRole, *, scheduled: bool = False) -> str:
    """One line of progress: what was measured and what came out."""
    what = describe_candidate(window.method, window.num_speculative_tokens)
    if scheduled:
        what = f"{window.method} with N by batch size"
    at = "" if window.concurrency is None else f" at concurrency {window.concurrency}"
    length = window.acceptance_length
    accepted = "" if length is None else f", acceptance length {length:.2f}"
    rate = window.output_tokens_per_second
    return f"{what}{at}, {role.value} block: {rate:.1f} tok/s{accepted}"


def describe_candidate(method: str, n: int) -> str:
    return "no speculation" if method == BASELINE else f"{method} N={n}"
