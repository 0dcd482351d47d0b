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
64 units at s = 5 % give .69 % with what starts add, and with a reference of the same precision
.97 %. At 2 % noise two cycles do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, cast

from autotune.check import Rules, judged, not_comparable, report
from autotune.check.bench import Bench, Configuration, Memory
from autotune.check.comparable import differences, refused, same_machine
from autotune.check.recommendation import faults
from autotune.check.records import CheckReport, CheckRow, CheckSide, Verdict
from autotune.check.verdicts import ALPHA, METRICS, distance
from autotune.engines import Engine, Progress
from autotune.errors import ConfigurationError
from autotune.measure import Lab
from autotune.records import Plan
from autotune.wording import counted

if TYPE_CHECKING:
    from autotune.store import Study

BLOCKS = 8  # in a pass
CYCLES = 8  # at most
MISSED = 0.02  # of losses of exactly the margin, over all looks
IN_VAIN = 1 / 3  # of the reference's standard error: a tenth of the variance of the change


class Effort(NamedTuple):
    """How much may be measured. `budget_seconds` None: only the cycles count."""

    blocks: int = BLOCKS
    cycles: int = CYCLES
    budget_seconds: float | None = None
    all_cycles: bool = False  # measure on although everything is sure: for a golden value
    rivals: int = 0  # other N of the method, the reference's next best, to measure for a cycle


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
    absolute = same_machine(found, reference, nothing)
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
    """Cycles and looks. Each look has its share of the level of the whole check; where every cycle
    is measured whatever they find, there is one, with all of it.

    The last one has all that is left, also where it comes early: neither the budget nor the
    reference's uncertainty, which end a check, depends on what was found.
    """
    rivals = _rivals(reference, bench, effort)
    began = bench.lab.elapsed_seconds()
    planned, spent = () if effort.all_cycles else looks(effort.cycles), 0.0
    for number in range(1, effort.cycles + 1):
        bench.cycle()
        ended = number == effort.cycles or _budget_is_spent(bench, number, effort, began)
        if number not in planned and not ended:
            continue
        side = measured_side(bench.lab.plan, bench.configuration, (*bench.rows(), *rivals))
        share = (1.0 if ended else number / effort.cycles) - spent
        verdicts = _look(reference, side, absolute, rules, share)
        if not ended and not is_sure(verdicts):
            ended = more_is_in_vain(verdicts, reference, side)
            if ended:
                bench.lab.progress("the reference's own uncertainty is what is left")
                verdicts = _look(reference, side, absolute, rules, 1.0 - spent)
        spent += share
        words = ", ".join(f"{v.metric} {v.word}" for v in verdicts if v.gates)
        bench.lab.progress(f"look after {counted(number, 'cycle')}: {words}")
        if ended or is_sure(verdicts):
            break
    return verdicts, side


def _look(
    reference: CheckSide, side: CheckSide, absolute: bool, rules: Rules, share: float
) -> tuple[Verdict, ...]:
    """The verdicts at a look that has this share of the whole check's errors."""
    alpha, beta = ALPHA * share, MISSED * share
    return judged(reference, side, absolute, rules.margins, alpha=alpha, beta=beta)


def _budget_is_spent(bench: Bench, cycles: int, effort: Effort, began: float) -> bool:
    """Whether one more cycle would take longer than allowed; the first began at `began`."""
    if effort.budget_seconds is None:
        return False
    now = bench.lab.elapsed_seconds()
    spent = now + (now - began) / cycles > effort.budget_seconds
    if spent:
        bench.lab.progress("the budget is spent")
    return spent


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
    """Whether what is still open hangs on the reference, or on a figure that nobody has."""
    now = {row.key: row for row in side.rows}
    open_ones = {(v.metric, v.concurrency) for v in verdicts if v.gates and not v.ruled_out}
    for row in reference.rows:
        for metric in ("speedup", "acceptance_length"):
            if not row.chosen or (metric, row.concurrency) not in open_ones:
                continue
            before, after = getattr(row, metric), getattr(now.get(row.key), metric, None)
            if before is not None and after is not None and after.sd > IN_VAIN * before.sd:
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
    chosen = {row.concurrency: row for row in reference.rows if row.chosen}
    most = 0
    for verdict in verdicts:
        row = chosen.get(verdict.concurrency)
        if not verdict.gates or verdict.ruled_out or row is None:
            continue
        before = getattr(row, verdict.metric)
        after = getattr(rows.get(row.key), verdict.metric, None)
        if before is None or after is None:
            continue
        wanted = _settling_sd(verdict.margin, verdict.metric) ** 2 - before.sd**2
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
    of_rows = faults(list(reference.rows))
    own = [fault for fault in reference.faults if fault not in of_rows]  # of the whole document
    return reference.model_copy(
        update={"rows": rows, "per_load": False, "faults": (*own, *faults(list(rows)))}
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
