"""The main path. Read this first, then records.py.

    baseline  ->  search (probe, learn, decide what to probe next)  ->  confirm
              ->  try N by batch size, where the loads want different N  ->  recommend

Every engine (a real vLLM, a recording, a simulation) is driven by this same code.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from autotune import stats
from autotune.choice import may_be_best
from autotune.comparison import (
    MAX_CANDIDATES,
    Comparison,
    max_candidates_tried,
    number_tried,
    suggested,
    times_told,
)
from autotune.confirm import confirm, hold_out
from autotune.engines import Engine, Progress
from autotune.errors import (
    EngineDiedError,
    EngineError,
    EngineStartError,
    LiveSwitchError,
)
from autotune.knowledge import NOT_TRIED, Knowledge
from autotune.measure import Lab, is_search_arm
from autotune.recommend import recommend
from autotune.records import BlockRole, MethodSpace, Plan, Recommendation, Stopped
from autotune.schedule_trial import try_schedule
from autotune.search import PREDICTED, Prices, Search, is_hopeless, is_suggested

if TYPE_CHECKING:
    import optuna

    from autotune.store import Study

logger = logging.getLogger(__name__)

BUDGET_SPENT = "the budget was spent"
GROWN = 1.05  # a budget must be larger than what was used for a study to go on


def tune(plan: Plan, engine: Engine, study: Study, progress: Progress) -> Recommendation:
    """Find the best method and N for the plan. A finished study answers from its store.

    A study that ended because its budget was spent goes on when there is more of it now.
    Raises EngineError when the baseline cannot be measured: without it nothing can be decided.
    """
    finished = study.recommendation()
    if finished is not None and not may_go_on(finished, plan):
        progress(f"study {study.id} is already finished; --fresh measures again")
        return finished
    lab = Lab(plan, engine, study, progress)
    try:
        knowledge = recall(plan, study)
        measure_baseline(lab, knowledge)
        with study.optuna_explained():
            stopped = run_search(lab, knowledge)
        confirmations = confirm(lab, knowledge)
        trial = try_schedule(lab, knowledge, confirmations)
        recommendation = recommend(lab, knowledge, confirmations, stopped, trial)
    finally:
        lab.close()
    study.finish(recommendation)
    return recommendation


def may_go_on(finished: Recommendation, plan: Plan) -> bool:
    """Whether a finished study was cut short by a limit that is larger now."""
    budget, allowed = plan.settings.budget_seconds, plan.settings.max_candidates
    if finished.stopped_because == BUDGET_SPENT:
        return budget is None or budget > GROWN * finished.cost.total_seconds
    if finished.stopped_because.startswith(MAX_CANDIDATES):
        return allowed is None or allowed > number_tried(finished)
    return False


def recall(plan: Plan, study: Study) -> Knowledge:
    """What earlier, interrupted runs of this study have learned."""
    knowledge = Knowledge(plan)
    for stored in study.windows():
        if is_search_arm(stored.arm):
            knowledge.add(stored.window)
    for failure in study.failures():
        knowledge.fail(failure.method, failure.num_speculative_tokens, failure.error)
    return knowledge


def measure_baseline(lab: Lab, knowledge: Knowledge) -> None:
    """No speculation, in its own start: search blocks, held-out blocks, greedy outputs.

    The last window repeats the first block: their ratio is the drift within this start.
    """
    arm, settings = lab.baseline_arm(), lab.plan.settings
    loads = lab.plan.concurrencies
    for index in range(settings.search_blocks):
        for load in loads:
            knowledge.add(lab.window(arm, 0, BlockRole.SEARCH, index, load))
    for index in range(settings.confirm_blocks):
        for load in loads:
            lab.window(arm, 0, BlockRole.CONFIRM, index, load)
    if settings.greedy_prompts:
        lab.window(arm, 0, BlockRole.GREEDY, 0, 1)
    if settings.repeats:
        for load in loads:
            knowledge.add(lab.window(arm, 0, BlockRole.REFERENCE, 0, load))


def run_search(lab: Lab, knowledge: Knowledge) -> Stopped:
    """Probe until no unmeasured candidate could still win, or the budget is spent."""
    from autotune.sampler import SpectuneSampler

    search = Search(knowledge, Prices(start_seconds=0.0, probe_seconds=1.0), starts_left=0)
    trials = lab.study.optuna_study(SpectuneSampler.asking(search))
    take_up(lab, knowledge, trials)
    if lab.plan.settings.sampler != "spectune":
        return run_comparison(lab, knowledge, trials, search)
    while True:
        search.prices = prices(lab, knowledge)
        search.open_method = lab.open_method
        search.starts_left = starts_allowed(lab) - lab.search_starts
        limited = max_candidates_tried(knowledge)
        waiting = [] if limited else search.open_candidates()
        here = any(method == search.open_method for method, _ in waiting)
        contenders = [] if here else search.contenders()
        if not waiting and not contenders:
            return why_stopped(search, limited)
        new_starts = 0 if here or contenders else 1
        if budget_spent(lab, search, new_starts, probes=max(1, len(contenders))):
            return Stopped(reason=BUDGET_SPENT, exhausted=False)
        if contenders:
            race(lab, knowledge, contenders)
        else:
            run_trial(lab, knowledge, trials, trials.ask())


def take_up(lab: Lab, knowledge: Knowledge, trials: optuna.Study) -> None:
    """Go on with the trials that an interruption left running."""
    from optuna.trial import TrialState

    for trial in lab.study.running_trials(trials):
        decided = is_suggested(trial, lab.plan.spaces)
        if decided and knowledge.alive(*suggested(trial, lab.plan)):
            run_trial(lab, knowledge, trials, trial)
        else:  # lost before it was decided what to measure, or just after that had failed
            trials.tell(trial, state=TrialState.FAIL)


def run_comparison(lab: Lab, knowledge: Knowledge, trials: optuna.Study, search: Search) -> Stopped:
    """The same trials, chosen by one of Optuna's own samplers (`--sampler`)."""
    comparison = Comparison(knowledge, trials)
    while True:
        search.prices = prices(lab, knowledge)
        stopped = comparison.why_stopped()
        if stopped is not None:
            return stopped
        if budget_spent(lab, search, comparison.starts_needed(lab.open_method), probes=1):
            return Stopped(reason=BUDGET_SPENT, exhausted=False)
        run_trial(lab, knowledge, trials, comparison.ask())


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


def measured_speedup(knowledge: Knowledge, method: str, n: int) -> float:
    """Geometric mean over loads of what was measured, without the cost model."""
    loads = knowledge.plan.concurrencies
    return math.exp(stats.mean([stats.mean(knowledge.log_ratios(method, n, c)) for c in loads]))


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


def why_stopped(search: Search, limited: bool) -> Stopped:
    """The reason for the end of a search that has nothing left to propose."""
    left = len(search.promising())
    if left:
        spent = MAX_CANDIDATES if limited else "the engine starts"
        reason = f"{spent} were spent; {left} unmeasured candidates might still win"
        return Stopped(reason=reason, exhausted=False)
    reason = "no unmeasured candidate could still win by more than the tie margin"
    return Stopped(reason=reason, exhausted=True)


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


def prices(lab: Lab, knowledge: Knowledge) -> Prices:
    """Seconds per start and per candidate, from what was seen so far."""
    durations = [s.window.duration_seconds for s in lab.study.windows()]
    seen = [d for d in durations if d is not None]
    per_window = sum(seen) / len(seen) if seen else 1.0
    return Prices(
        start_seconds=lab.start_seconds, probe_seconds=per_window * len(lab.plan.concurrencies)
    )


def starts_allowed(lab: Lab) -> int:
    """Engine starts the search may spend: one per method with live N, else two per method.

    With the baseline, and for live N the confirmation, that makes M + 2 and 2 M + 1.
    """
    live = sum(lab.is_live(space) or len(space.lengths) == 1 for space in lab.plan.spaces)
    static = len(lab.plan.spaces) - live
    wasted = len(lab.static_methods)  # live starts that turned out not to work
    return live + 2 * static + wasted


def budget_spent(lab: Lab, search: Search, starts: int, probes: int) -> bool:
    """Whether the next step would leave too little time for the confirmation."""
    budget = lab.plan.settings.budget_seconds
    if budget is None:
        return False
    blocks = lab.plan.settings.confirm_blocks + 1
    needed = (starts + 1) * search.prices.start_seconds + (
        probes + blocks
    ) * search.prices.probe_seconds
    return lab.elapsed_seconds() + needed > budget
