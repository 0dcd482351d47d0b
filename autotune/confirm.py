"""Confirmation: the finalist on a fresh static start, on prompts the search never saw.

The winner of a noisy search is optimistic (winner's curse), so its final figure must not come
from the windows that chose it. The baseline's figures on the same prompts were taken during its
own start; a reference block tells whether the machine has drifted since, and only then the
baseline is started once more. Where N cannot be switched live, a probe was a static start already
and has answered the held-out blocks itself: starting it again would only cost a start.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from autotune import stats
from autotune.choice import as_good, best_at, choose
from autotune.engines.quality import compare_greedy
from autotune.errors import EngineError
from autotune.knowledge import Key, Knowledge, Load
from autotune.limits import NO_SPECULATION, eligible, share_within
from autotune.measure import Lab
from autotune.records import (
    Arm,
    BlockRole,
    Confirmation,
    GreedyCheck,
    MethodSpace,
    Window,
)
from autotune.schedule import loads_beside

MAX_REFERENCES = 3
SUSPICIOUS_Z, DRIFT_Z = 2.0, 3.0  # in standard deviations of the noise
MAX_FINALISTS = 3  # finalists that may fail on their static start before the search gives up


def confirm(lab: Lab, knowledge: Knowledge) -> tuple[Confirmation, ...]:
    """Confirm the overall choice, first, and each load's own choice where that is really better.

    A finalist that fails, or misses the latency limits, is given up and the next one is tried.
    """
    done = _confirm_best(lab, knowledge)
    if done and len(lab.plan.concurrencies) > 1 and lab.plan.settings.confirm_each_load:
        _confirm_own(lab, knowledge, done)
    return tuple(done)


def _confirm_own(lab: Lab, knowledge: Knowledge, done: list[Confirmation]) -> None:
    """Append to `done` what single loads prefer; loads that want the same share its start."""
    tries: Counter[Load] = Counter()
    while _time_is_left(lab):
        wanted: dict[Key, list[Load]] = defaultdict(list)
        for load in lab.plan.concurrencies:
            best = best_at(knowledge, load)
            served = best is None or _is_served(knowledge, done, best, load)
            if best is not None and not served and tries[load] < MAX_FINALISTS:
                wanted[best].append(load)
        if not wanted:
            return
        key, loads = next(iter(wanted.items()))
        tries.update(loads)
        confirmation = _confirm_one(lab, knowledge, key, tuple(loads))
        done += [] if confirmation is None else [confirmation]


def _is_served(knowledge: Knowledge, done: Sequence[Confirmation], best: Key, load: Load) -> bool:
    """Whether a choice that was confirmed at this load is as good as the best there."""
    return any(load in c.windows and as_good(knowledge, c.key, best, load) for c in done)


def _time_is_left(lab: Lab) -> bool:
    budget = lab.plan.settings.budget_seconds
    return budget is None or lab.elapsed_seconds() + 2 * lab.start_seconds < budget


def _confirm_best(lab: Lab, knowledge: Knowledge) -> list[Confirmation]:
    """The overall choice first, then those whose held-out blocks missed the latency limits."""
    done: list[Confirmation] = []
    loads = lab.plan.concurrencies
    for _ in range(MAX_FINALISTS):
        chosen = choose(knowledge)
        if chosen is None or chosen in [c.key for c in done]:
            break
        if done and not _time_is_left(lab):
            break
        beside = loads_beside(lab, knowledge, chosen)
        confirmation = _confirm_one(lab, knowledge, chosen, loads, beside)
        done += [] if confirmation is None else [confirmation]
    allowed = eligible(knowledge, [c.key for c in done], loads)
    return sorted(done, key=lambda c: (c.key not in allowed, -knowledge.score(*c.key)[0]))


def _confirm_one(
    lab: Lab,
    knowledge: Knowledge,
    key: Key,
    loads: tuple[Load, ...],
    beside: tuple[int, ...] = (),
) -> Confirmation | None:
    """Measure a finalist and set it against the baseline; None: it failed, and is recorded."""
    method, n = key
    try:
        finalist = _measure(lab, knowledge, key, loads, beside)
    except EngineError as error:
        lab.progress(f"{method} N={n} failed its confirmation: {error.message}")
        lab.study.fail(method, n, error.message, error.last_words)
        knowledge.fail(method, n, error.message)
        return None
    confirmation = _compare(lab, knowledge, finalist)
    _note_shares(knowledge, confirmation)
    return confirmation


def _note_shares(knowledge: Knowledge, confirmation: Confirmation) -> None:
    """Who keeps the latency limits is decided on held-out blocks where there are any."""
    sides = ((confirmation.key, confirmation.windows), (NO_SPECULATION, confirmation.baseline))
    for key, by_load in sides:
        for load, windows in by_load.items():
            share = share_within(knowledge.plan.settings.limits, windows)
            if share is not None:
                knowledge.held_out_shares[(*key, load)] = share


class Measured(NamedTuple):
    """The finalist's side of the comparison."""

    method: str
    n: int
    windows: dict[Load, tuple[Window, ...]]
    references: dict[Load, tuple[Window, ...]]
    drift: dict[Load, float]
    greedy: GreedyCheck | None
    beside: dict[int, tuple[Window, ...]]


def _measure(
    lab: Lab, knowledge: Knowledge, key: Key, loads: tuple[Load, ...], beside: tuple[int, ...]
) -> Measured:
    """Run the finalist on its own start; raises EngineError when it cannot do it.

    `beside`: loads where the N of a schedule that may beat it changes.
    """
    method, n = key
    space, repeats = knowledge.spaces[method], lab.plan.settings.repeats
    arm = lab.confirm_arm(space, n)
    if arm.generation:
        lab.progress(f"confirming {method} N={n} on a fresh start")
    references = _references(lab, knowledge, arm, n, loads) if repeats and arm.generation else {}
    drift = {load: _drift(knowledge, arm, n, load, now) for load, now in references.items()}
    windows = hold_out(lab, space, n, (*loads, *beside))
    greedy = _greedy_check(lab, arm, n) if lab.plan.settings.greedy_prompts else None
    return Measured(
        method,
        n,
        {load: windows[load] for load in loads},
        references,
        drift,
        greedy,
        {load: windows[load] for load in beside},
    )


def hold_out(
    lab: Lab, space: MethodSpace, n: int, loads: tuple[Load, ...]
) -> dict[Load, tuple[Window, ...]]:
    """The held-out blocks and greedy outputs of a candidate on its confirming start."""
    arm = lab.confirm_arm(space, n)
    if lab.plan.settings.greedy_prompts:
        lab.window(arm, n, BlockRole.GREEDY, 0, 1)
    return held_out(lab, arm, n, loads)


def _compare(lab: Lab, knowledge: Knowledge, finalist: Measured) -> Confirmation:
    """Set it against the baseline; an EngineError here is the baseline's, not the finalist's."""
    generation = int(drifted(lab, knowledge, finalist.drift))
    if generation:
        lab.progress("the reference block has moved: measuring the baseline once more")
    windows, loads = finalist.windows, tuple(finalist.windows)
    base = held_out(lab, lab.baseline_arm(generation), 0, loads)
    return Confirmation(
        method=finalist.method,
        num_speculative_tokens=finalist.n,
        log_ratios={load: log_ratios(windows[load], base[load]) for load in loads},
        windows=windows,
        baseline=base,
        references=finalist.references,
        drift=finalist.drift,
        baseline_generation=generation,
        greedy=finalist.greedy,
        beside=finalist.beside,
    )


def held_out(lab: Lab, arm: Arm, n: int, loads: tuple[Load, ...]) -> dict[Load, tuple[Window, ...]]:
    """The held-out blocks of an arm, by load; block by block, so that the loads share any drift."""
    blocks = range(lab.plan.settings.confirm_blocks)
    taken: dict[Load, list[Window]] = {load: [] for load in loads}
    for index in blocks:
        for load in loads:
            taken[load].append(lab.window(arm, n, BlockRole.CONFIRM, index, load))
    return {load: tuple(windows) for load, windows in taken.items()}


def log_ratios(ours: tuple[Window, ...], base: tuple[Window, ...]) -> tuple[float, ...]:
    """ln(throughput of ours / of base), block by block."""
    return tuple(
        math.log(a.output_tokens_per_second / b.output_tokens_per_second)
        for a, b in zip(ours, base, strict=True)
    )


def _drift(knowledge: Knowledge, arm: Arm, n: int, load: Load, now: tuple[Window, ...]) -> float:
    """ln(reference block now / the same prompts when the candidate was probed)."""
    then = knowledge.windows(arm.method, n, load)[0]
    rates = [math.log(window.output_tokens_per_second) for window in now]
    return stats.mean(rates) - math.log(then.output_tokens_per_second)


def _references(
    lab: Lab, knowledge: Knowledge, arm: Arm, n: int, loads: tuple[Load, ...]
) -> dict[Load, tuple[Window, ...]]:
    """Reference windows by load. A suspicious drift is looked at again: that costs no start."""
    taken: dict[Load, tuple[Window, ...]] = dict.fromkeys(loads, ())
    for index in range(MAX_REFERENCES):
        for load in loads:
            taken[load] += (lab.window(arm, n, BlockRole.REFERENCE, index, load),)
        drift = {load: _drift(knowledge, arm, n, load, now) for load, now in taken.items()}
        if not drifted(lab, knowledge, drift, SUSPICIOUS_Z):
            break
    return taken


def drifted(lab: Lab, knowledge: Knowledge, drift: dict[Load, float], z: float = DRIFT_Z) -> bool:
    """Whether the references moved by more than the margin and more than noise explains."""
    if not drift:
        return False
    moved = abs(stats.mean(list(drift.values())))
    noise = z * knowledge.noise * math.sqrt(2 / len(drift))
    return moved > max(lab.plan.settings.drift_margin, noise)


def _greedy_check(lab: Lab, arm: Arm, n: int) -> GreedyCheck:
    """Compare outputs at batch 1."""
    ours = lab.window(arm, n, BlockRole.GREEDY, 0, 1)
    base = lab.window(lab.baseline_arm(), 0, BlockRole.GREEDY, 0, 1)
    compared = compare_greedy(base.requests, ours.requests)
    first = compared.first_differences[0] if compared.first_differences else None
    return GreedyCheck(
        compared=compared.compared,
        equal=compared.equal,
        first_difference=f"{first.prompt_id} at character {first.position}" if first else None,
    )
