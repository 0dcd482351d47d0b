"""One trial of the search: probe a candidate at every load, race it, or give it up.

`tuner.run_search` decides which comes next; what is measured goes into the study and the knowledge.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune import stats
from autotune.choice import may_be_best
from autotune.comparison import suggested, times_told
from autotune.confirm import hold_out
from autotune.errors import EngineDiedError, EngineError, EngineStartError, LiveSwitchError
from autotune.knowledge import NOT_TRIED, Knowledge
from autotune.measure import Lab
from autotune.records import BlockRole, MethodSpace
from autotune.search import PREDICTED, is_hopeless, is_suggested

if TYPE_CHECKING:
    import optuna


def take_up(lab: Lab, knowledge: Knowledge, trials: optuna.Study) -> None:
    """Go on with the trials that an interruption left running."""
    from optuna.trial import TrialState

    for trial in lab.study.running_trials(trials):
        decided = is_suggested(trial, lab.plan.spaces)
        if decided and knowledge.alive(*suggested(trial, lab.plan)):
            run_trial(lab, knowledge, trials, trial)
        else:  # lost before it was decided what to measure, or just after that had failed
            trials.tell(trial, state=TrialState.FAIL)


def run_trial(lab: Lab, knowledge: Knowledge, trials: optuna.Study, trial: optuna.Trial) -> None:
    """One Optuna trial is one candidate: probe it at every load and tell the measured speedup."""
    from optuna.trial import TrialState

    method, n = suggested(trial, lab.plan)
    if PREDICTED not in trial.user_attrs:  # a resumed trial keeps what was predicted first
        loads = lab.plan.concurrencies
        each = {str(load): knowledge.predict(method, n, load) for load in loads}
        predicted = {load: (p.log_speedup, p.log_speedup_sd) for load, p in each.items()}
        trial.set_user_attr(PREDICTED, predicted)
    if measure_candidate(lab, knowledge, (method, n), times_told(trials, trial, knowledge)):
        trials.tell(trial, measured_speedup(knowledge, method, n))
    else:
        trial.set_user_attr("error", knowledge.failed.get((method, n), "the method was given up"))
        trials.tell(trial, state=TrialState.FAIL)


def measure_candidate(
    lab: Lab, knowledge: Knowledge, key: tuple[str, int], times_told: int
) -> bool:
    """Measure a candidate, or its next block where earlier trials were told of it already.

    Where the plan has no block left nothing is measured. False: the candidate has failed.
    """
    if not knowledge.alive(*key):
        return False
    if not times_told:
        return probe(lab, knowledge, *key)
    blocks_left = times_told < lab.plan.settings.search_blocks and key not in knowledge.out_of_race
    if blocks_left and knowledge.blocks_done(*key) <= times_told:
        race(lab, knowledge, [key])
    return True


def probe(lab: Lab, knowledge: Knowledge, method: str, n: int) -> bool:
    """Measure a candidate at every load. False: it failed, and is recorded.

    A live engine answers one block, more only in a race; a static start answers all its blocks.
    """
    space = knowledge.spaces[method]
    try:
        measure_block(lab, knowledge, method, n, index=0)
        if not lab.is_live(space):
            finish_static(lab, knowledge, method, n)
    except EngineError as error:
        if lab.is_live(space) and isinstance(error, LiveSwitchError | EngineStartError):
            lab.fall_back_to_static(space, error)
            return probe(lab, knowledge, method, n)
        give_up(lab, knowledge, space, n, error)
        return False
    return True


def measure_block(lab: Lab, knowledge: Knowledge, method: str, n: int, index: int) -> None:
    """One search block of a candidate at every load."""
    arm = lab.probe_arm(knowledge.spaces[method], n)
    for load in lab.plan.concurrencies:
        knowledge.add(lab.window(arm, n, BlockRole.SEARCH, index, load))


def finish_static(lab: Lab, knowledge: Knowledge, method: str, n: int) -> None:
    """The rest that a static start has to tell: coming back to it would cost another start.

    Its held-out blocks are measured where it may be the finalist: it runs as the user will run it.
    """
    for index in range(1, lab.plan.settings.search_blocks):
        if may_be_best(knowledge, method, n):
            measure_block(lab, knowledge, method, n, index)
    if may_be_best(knowledge, method, n) and not lab.plan.settings.confirm_fresh:
        hold_out(lab, knowledge.spaces[method], n, lab.plan.concurrencies)


def race(lab: Lab, knowledge: Knowledge, contenders: list[tuple[str, int]]) -> None:
    """Close calls on the running engine get one more block each, in turn, so drift cancels.

    A block that fails here costs the candidate its race, not its place: it was measured before.
    """
    fewest = min(knowledge.blocks_done(method, n) for method, n in contenders)
    for method, n in contenders:
        if knowledge.blocks_done(method, n) == fewest:
            try:
                measure_block(lab, knowledge, method, n, index=fewest)
            except EngineError as error:
                lab.progress(f"{method} N={n} lost a block: {error.message}")
                knowledge.out_of_race.add((method, n))


def give_up(lab: Lab, knowledge: Knowledge, space: MethodSpace, n: int, error: EngineError) -> None:
    """Record a failed candidate; a method that keeps failing is given up as a whole."""
    method = space.method
    lab.progress(f"{method} N={n} failed: {error.message}")
    lab.study.fail(method, n, error.message, error.last_words)
    knowledge.fail(method, n, error.message)
    if isinstance(error, EngineDiedError) and lab.is_live(space):
        lab.search_starts -= 1  # its restart is not a choice of the search
    if isinstance(error, EngineDiedError | EngineStartError):  # larger N ask more of the engine
        larger = [length for length in space.lengths if length > n]
        _not_tried(lab, knowledge, method, larger, f"{NOT_TRIED}: N={n} ended the engine")
    if not is_hopeless(knowledge, space):
        return
    if any(knowledge.measured(method, length) for length in space.lengths):
        own = [length for length in space.lengths if (method, length) in knowledge.tried_in_vain]
        reason = f"{NOT_TRIED} after {len(own)} of its N had failed: {error.message}"
        _not_tried(lab, knowledge, method, list(space.lengths), reason)
    else:
        lab.study.fail(method, None, error.message, error.last_words)
        knowledge.fail(method, None, error.message)


def _not_tried(
    lab: Lab, knowledge: Knowledge, method: str, lengths: list[int], reason: str
) -> None:
    """Fail those N that were not measured; what was measured stays."""
    for n in lengths:
        if knowledge.alive(method, n) and not knowledge.measured(method, n):
            lab.study.fail(method, n, reason)
            knowledge.fail(method, n, reason)


def measured_speedup(knowledge: Knowledge, method: str, n: int) -> float:
    """Geometric mean over loads of what was measured, without the cost model."""
    loads = knowledge.plan.concurrencies
    return math.exp(stats.mean([stats.mean(knowledge.log_ratios(method, n, c)) for c in loads]))
