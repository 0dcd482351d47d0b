"""The main path. Read this first, then records.py.

    baseline  ->  search (probe, learn, decide what to probe next)  ->  confirm
              ->  try N by batch size, where the loads want different N  ->  recommend

What one trial does is in trial_loop.py. Every engine (a real vLLM, a recording, a simulation) is
driven by this same code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.comparison import MAX_CANDIDATES, Comparison, max_candidates_tried, number_tried
from autotune.confirm import confirm
from autotune.engines import Engine, Progress
from autotune.knowledge import Knowledge
from autotune.measure import Lab, is_search_arm
from autotune.recommend import recommend
from autotune.records import BlockRole, Plan, Recommendation, Stopped
from autotune.schedule_trial import try_schedule
from autotune.search import Prices, Search
from autotune.trial_loop import race, run_trial, take_up

if TYPE_CHECKING:
    import optuna

    from autotune.store import Study

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


def why_stopped(search: Search, limited: bool) -> Stopped:
    """The reason for the end of a search that has nothing left to propose."""
    left = len(search.promising())
    if left:
        spent = MAX_CANDIDATES if limited else "the engine starts"
        reason = f"{spent} were spent; {left} unmeasured candidates might still win"
        return Stopped(reason=reason, exhausted=False)
    reason = "no unmeasured candidate could still win by more than the tie margin"
    return Stopped(reason=reason, exhausted=True)


def prices(lab: Lab, knowledge: Knowledge) -> Prices:
    """Seconds per start and per candidate, from what was seen so far."""
    durations = [s.window.duration_seconds for s in lab.study.windows()]
    seen = [d for d in durations if d]  # a source that says 0 does not say
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
