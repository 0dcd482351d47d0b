"""The measuring half of a check: baseline and recommended configuration in alternating starts.

    A B | B A   A B | B A   ...   (a start goes on into the next cycle: 2 starts a cycle, 1 at the
    first)

After 1, 2, 4 and 8 cycles the verdicts are drawn; what is sure then ends the check. Four looks at
the same data must not raise false alarms: each look has a share of the whole check's level
(Bonferroni over looks, so it holds however the looks depend on each other).

Why 8 cycles of 8 blocks: the last look has half of the level, and with Holm's weights a speed-up
gets about a third of that, .0017 (2.9 standard errors); a loss of 5 % (.051 of the logarithm) is
missed with probability .01 (2.3 more) where the change's standard error is .051 / 5.2 = 1 %. A
unit (a block of a cycle: four windows) of noise s has variance s^2; trimming costs about a tenth.
64 units at s = 5 % give .66 %, and with a reference of the same precision .95 %. At 2 % noise two
cycles do.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple, cast

from autotune.check import Rules, judged, not_comparable, report
from autotune.check_documents import faults
from autotune.check_windows import Cycle, baseline_row, measured_row
from autotune.comparable import differences, refused, same_machine
from autotune.engines import Engine, Progress
from autotune.engines.quality import compare_greedy
from autotune.errors import ConfigurationError
from autotune.measure import Lab
from autotune.records import (
    BASELINE,
    Arm,
    Block,
    BlockRole,
    CheckReport,
    CheckRow,
    CheckSide,
    GreedyCheck,
    MethodSpace,
    Plan,
    Tier,
    Verdict,
    Window,
)
from autotune.storage.stored import EngineStart, StoredWindow
from autotune.verdicts import ALPHA, METRICS, distance

if TYPE_CHECKING:
    from autotune.store import Study

BLOCKS = 8  # in a pass
CYCLES = 8  # at most
MISSED = 0.02  # of losses of exactly the margin, over all looks
FIRST_GENERATION = 1000  # fresh starts, so that nothing is mistaken for a study's own
IN_VAIN = 1 / 3  # of the reference's standard error: a tenth of the variance of the change
Load = int | None


class Effort(NamedTuple):
    """How much may be measured. `budget_seconds` None: only the cycles count."""

    blocks: int = BLOCKS
    cycles: int = CYCLES
    budget_seconds: float | None = None
    all_cycles: bool = False  # measure on although everything is sure: for a golden value
    rivals: int = 0  # other N of the method, the reference's next best, to measure for a cycle


class Configuration(NamedTuple):
    """What is checked against no speculation; `tiers` where N follows the batch size."""

    space: MethodSpace
    n: int
    tiers: tuple[Tier, ...] = ()

    def arm(self, generation: int) -> Arm:
        """One of its static starts."""
        if self.tiers:
            scheduled = self.space.schedule_arm(self.tiers)
            return scheduled.model_copy(update={"generation": generation})
        return self.space.arm(self.n, live=False, generation=generation)


class Memory:
    """What a Lab needs of a study, kept in memory: a check is short and starts afresh."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, int, str], StoredWindow] = {}
        self._starts: list[EngineStart] = []
        self._seconds = 0.0

    def recall(self, arm: Arm, n: int, block: Block) -> Window | None:
        found = self._windows.get((arm.key, n, block.key))
        return None if found is None else found.window

    def save(self, arm: Arm, block: Block, repeat: int, window: Window) -> None:
        n, now = window.num_speculative_tokens, time.time()
        self._windows[arm.key, n, block.key] = StoredWindow(
            arm=arm.key, n=n, block=block.key, repeat=repeat, at=now, window=window
        )

    def windows(self) -> list[StoredWindow]:
        return list(self._windows.values())

    def engine_started(self, arm: Arm, seconds: float, error: str | None = None) -> None:
        self._starts.append(
            EngineStart(
                arm=arm.key,
                method=arm.method,
                live=arm.live,
                seconds=seconds,
                error=error,
                at=time.time(),
            )
        )

    def engine_starts(self) -> list[EngineStart]:
        return list(self._starts)

    def add_seconds(self, seconds: float) -> None:
        self._seconds += seconds

    def total_seconds(self) -> float:
        return self._seconds


class Bench:
    """Measures cycles. Each change between baseline and configuration is a fresh start."""

    def __init__(
        self, lab: Lab, configuration: Configuration, blocks: int, *, rival: int = 0
    ) -> None:
        """`rival`: the how manieth other configuration it is, for which nothing is compared."""
        self.lab, self.configuration, self.blocks = lab, configuration, blocks
        self.rival = rival
        self.cycles: dict[Load, list[Cycle]] = {load: [] for load in lab.plan.concurrencies}
        self.greedy: GreedyCheck | None = None
        self._starts = 0
        self._ours: bool | None = None

    def cycle(self) -> None:
        """A B B A; the second half in mirrored order of blocks, and with the next prompts."""
        taken: dict[tuple[Load, int, bool], list[Window]] = {}
        half = 2 * len(next(iter(self.cycles.values())))
        order = range(self.blocks)
        for ours, later in ((False, 0), (True, 0), (True, 1), (False, 1)):
            for block in reversed(order) if later else order:
                index = (half + later) * self.blocks + block
                for load in self.cycles:
                    window = self._window(ours, BlockRole.CONFIRM, index, load)
                    taken.setdefault((load, block, ours), []).append(window)
            if self._wants_greedy() and ours:
                self.greedy = self._compare_greedy()
        for load, cycles in self.cycles.items():
            sides = {
                ours: tuple(tuple(taken[load, block, ours]) for block in order)
                for ours in (True, False)
            }
            cycles.append(Cycle(ours=sides[True], base=sides[False]))

    def rows(self) -> tuple[CheckRow, ...]:
        method, n = self.configuration.space.method, self.configuration.n
        rows: list[CheckRow] = []
        for i, (load, cycles) in enumerate(self.cycles.items()):
            greedy = None if i else self.greedy  # at batch 1, whatever the load
            ours = measured_row(load, method, n, cycles, greedy)
            if self.rival:
                rows.append(ours.model_copy(update={"chosen": False, "prompts": ()}))
            else:
                rows += [baseline_row(load, cycles), ours]
        return tuple(rows)

    def _window(self, ours: bool, role: BlockRole, index: int, load: Load) -> Window:
        if ours != self._ours:
            self._starts += 1
            self._ours = ours
            if not ours and self._wants_greedy():  # answers without speculation
                self._base = self.lab.window(self._arm(False), 0, BlockRole.GREEDY, 0, 1)
        n = self.configuration.n if ours else 0
        return self.lab.window(self._arm(ours), n, role, index, load)

    def _arm(self, ours: bool) -> Arm:
        generation = FIRST_GENERATION * (self.rival + 1) + self._starts
        if not ours:
            return self.lab.baseline_arm(generation)
        return self.configuration.arm(generation)

    def _wants_greedy(self) -> bool:
        asked = self.lab.plan.settings.greedy_prompts > 0
        return asked and self.greedy is None and not self.rival

    def _compare_greedy(self) -> GreedyCheck:
        ours = self._window(True, BlockRole.GREEDY, 0, 1)
        compared = compare_greedy(self._base.requests, ours.requests)
        first = compared.first_differences[0] if compared.first_differences else None
        return GreedyCheck(
            compared=compared.compared,
            equal=compared.equal,
            first_difference=f"{first.prompt_id} at character {first.position}" if first else None,
        )


def check_engine(
    reference: CheckSide,
    plan: Plan,
    configuration: Configuration,
    engine: Engine,
    rules: Rules,
    effort: Effort,
    progress: Progress,
) -> CheckReport:
    """Measure until every gating verdict is sure, or the cycles or the budget are spent.

    Raises EngineError where an engine fails: no verdict rests on half a measurement.
    """
    nothing = measured_side(plan, configuration, ())
    found = differences(reference, nothing, rules.allowed)
    if refused(found):
        return not_comparable(reference, None, found)
    reference = chosen_for(reference, configuration, plan)
    memory = Memory()
    lab = Lab(plan, engine, cast("Study", memory), progress)
    bench = Bench(lab, configuration, effort.blocks)
    absolute = same_machine(found, reference)
    try:
        verdicts, side = _measure(reference, bench, absolute, rules, effort)
    finally:
        lab.close()
    done = report(reference, side, verdicts, found, rules)
    pairs = 2 * effort.blocks * len(next(iter(bench.cycles.values())))
    return done.model_copy(
        update={
            "repeats": pairs,
            "repeats_needed": pairs_needed(verdicts, side, reference, pairs),
            "cost": lab.cost(),
            "warnings": (*done.warnings, *_own_warnings(plan, configuration)),
        }
    )


def _own_warnings(plan: Plan, configuration: Configuration) -> tuple[str, ...]:
    """What to know about measuring this at all."""
    learns = (
        "suffix decoding learns from earlier answers: with the same prompts again it is accepted "
        "more often than it would be with new ones"
    )
    return (*plan.warnings, *([learns] if configuration.space.method == "suffix" else []))


def _measure(
    reference: CheckSide, bench: Bench, absolute: bool, rules: Rules, effort: Effort
) -> tuple[tuple[Verdict, ...], CheckSide]:
    """Cycles and looks. Each look has its share of the level of the whole check."""
    rivals = _rivals(reference, bench, effort)
    spent = 0.0
    for look in looks(effort.cycles):
        while len(next(iter(bench.cycles.values()))) < look:
            bench.cycle()
        share, spent = look / effort.cycles - spent, look / effort.cycles
        side = measured_side(bench.lab.plan, bench.configuration, (*bench.rows(), *rivals))
        verdicts = judged(
            reference, side, absolute, rules.margins, alpha=ALPHA * share, beta=MISSED * share
        )
        words = ", ".join(f"{v.metric} {v.word}" for v in verdicts if v.gates)
        bench.lab.progress(f"look after {look} cycles: {words}")
        if look == effort.cycles or (is_sure(verdicts) and not effort.all_cycles):
            break
        if not effort.all_cycles and more_is_in_vain(verdicts, reference, side):
            bench.lab.progress("the reference's own uncertainty is what is left")
            break
        per_cycle = bench.lab.elapsed_seconds() / look
        if effort.budget_seconds and (look + 1) * per_cycle > effort.budget_seconds:
            bench.lab.progress("the budget is spent")
            break
    return verdicts, side


def _rivals(reference: CheckSide, bench: Bench, effort: Effort) -> tuple[CheckRow, ...]:
    """One cycle each of the best other N that the reference knows at all of the loads."""
    configuration, rows = bench.configuration, list[CheckRow]()
    loads = bench.lab.plan.concurrencies
    known: dict[int, list[float]] = {}
    for row in reference.rows:
        if row.method == configuration.space.method and row.concurrency in loads and row.speedup:
            known.setdefault(row.num_speculative_tokens, []).append(math.log(row.speedup.value))
    others = [n for n, logs in known.items() if len(logs) == len(loads) and n != configuration.n]
    others.sort(key=lambda n: -math.fsum(known[n]))
    for index, n in enumerate(others[: effort.rivals], start=1):
        other = Bench(bench.lab, Configuration(configuration.space, n), effort.blocks, rival=index)
        other.cycle()
        rows += other.rows()
    return tuple(rows)


def looks(cycles: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the last: each doubles what is known."""
    return tuple(sorted({min(2**i, cycles) for i in range(cycles.bit_length() + 1)}))


def is_sure(verdicts: tuple[Verdict, ...]) -> bool:
    """A regression was found, or every gating verdict has ruled one out."""
    found = any(v.word == "regression" for v in verdicts)
    return found or all(v.ruled_out for v in verdicts if v.gates)


def more_is_in_vain(verdicts: tuple[Verdict, ...], reference: CheckSide, side: CheckSide) -> bool:
    """Whether what is still open hangs on the reference, which no measuring improves."""
    now = {row.key: row for row in side.rows}
    open_ones = {(v.metric, v.concurrency) for v in verdicts if v.gates and not v.ruled_out}
    for row in reference.rows:
        for metric in ("speedup", "acceptance_length"):
            if not row.chosen or (metric, row.concurrency) not in open_ones:
                continue
            before, after = getattr(row, metric), getattr(now.get(row.key), metric, None)
            if before is None or after is None or after.sd > IN_VAIN * before.sd:
                return False
    return True


def pairs_needed(
    verdicts: tuple[Verdict, ...], side: CheckSide, reference: CheckSide, pairs: int
) -> int | None:
    """Pairs of windows a load that would settle the open speed-ups and acceptance lengths.

    None where nothing is open, or where the reference's own uncertainty is too large for any
    number of them.
    """
    rows = {row.key: row for row in side.rows}
    open_ones = {v.metric: v for v in verdicts if v.gates and not v.ruled_out}
    most = 0
    for row in reference.rows:
        now = rows.get(row.key)
        for metric, verdict in open_ones.items():
            before, after = getattr(row, metric), getattr(now, metric, None)
            if not row.chosen or before is None or after is None or row.method == BASELINE:
                continue
            wanted = _settling_sd(verdict.margin, metric) ** 2 - before.sd**2
            if wanted <= 0:
                return None
            most = max(most, math.ceil(pairs * after.sd**2 / wanted))
    return most or None


def _settling_sd(margin: float, metric: str) -> float:
    """Standard error of a change at which a loss of the margin is found, and its absence too."""
    from scipy.stats import norm

    z = float(norm.isf(ALPHA / 4) + norm.isf(MISSED / 2))
    return distance(margin, METRICS[metric]) / z


def chosen_for(reference: CheckSide, configuration: Configuration, plan: Plan) -> CheckSide:
    """The reference with the measured configuration as its choice, at the measured loads only."""
    key = (configuration.space.method, configuration.n)
    rows = tuple(
        row.model_copy(
            update={
                "chosen": (row.method, row.num_speculative_tokens) == key
                and row.concurrency in plan.concurrencies
            }
        )
        for row in reference.rows
    )
    if not any(row.chosen for row in rows):
        raise ConfigurationError(
            f"{reference.source} holds no figures of {key[0]} N={key[1]} at the loads to check"
        )
    return reference.model_copy(
        update={"rows": rows, "per_load": False, "faults": faults(list(rows))}
    )


def measured_side(
    plan: Plan, configuration: Configuration, rows: tuple[CheckRow, ...]
) -> CheckSide:
    """What was measured, in the form in which documents are compared."""
    sent = plan.sends_prompts
    return CheckSide(
        source="measured now",
        kind="measurement",
        model=plan.target.model,
        workload=plan.workload.name,
        workload_sha256=plan.workload.sha256,
        temperature=plan.workload.sampling.temperature if sent else None,
        max_tokens=plan.workload.sampling.max_tokens if sent else None,
        num_prompts=len(plan.workload.prompts) if sent else None,
        engine=plan.engine,
        environment=plan.environment.model_dump(mode="json"),
        engine_args=plan.target.engine_args,
        speculative_config=configuration.arm(0).speculative_config,
        method=configuration.space.method,
        num_speculative_tokens=configuration.n,
        rows=rows,
        per_load=False,
        faults=faults(list(rows)),
    )
