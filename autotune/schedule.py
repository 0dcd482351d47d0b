"""N by batch size: which N each load wants, the tiers that makes, and whether to try them.

vLLM (0.24 and later) looks N up by the number of requests in a step,
`num_speculative_tokens_per_batch_size`: a list of [from, to, N]. A schedule is a guess until it
has been measured as a whole: `schedule_trial` does that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise

from autotune import stats
from autotune.choice import as_good, measured
from autotune.engines.arguments import max_num_seqs
from autotune.knowledge import Key, Knowledge, Load
from autotune.limits import eligible
from autotune.measure import Lab
from autotune.records import Plan, Record, Tier

MOST_REQUESTS = 1024  # largest default of vLLM's --max-num-seqs (0.32: 128 to 1024 by machine)


class Proposal(Record):
    """A schedule that the cost model prefers to the one static N."""

    method: str
    static: int
    tiers: tuple[Tier, ...]
    log_gain: float  # predicted, over the static N: ln, mean over the plan's loads

    @property
    def largest(self) -> int:
        return max(n for _, _, n in self.tiers)


def halfway(low: int, high: int) -> int:
    """The geometric mean of two loads, rounded down: the last batch size of the lower one's N."""
    return math.isqrt(low * high)


def build_tiers(
    lengths: Mapping[int, int], most_requests: int, last_of: Callable[[int, int], int] = halfway
) -> tuple[Tier, ...]:
    """Contiguous tiers from batch size 1 that give each load its own N (`lengths`, by load).

    `last_of` parts two neighbouring loads with different N: the last batch size, low..high-1, of
    the lower one's. The last tier ends at `most_requests` (--max-num-seqs), or at the largest load
    if that is more; vLLM carries its N on beyond.
    """
    loads = sorted(lengths)
    changes = [(a, b) for a, b in pairwise(loads) if lengths[a] != lengths[b]]
    lasts = [last_of(a, b) for a, b in changes] + [max(most_requests, loads[-1])]
    firsts = [1, *(last + 1 for last in lasts[:-1])]
    values = [lengths[loads[0]], *(lengths[b] for _, b in changes)]
    return tuple(zip(firsts, lasts, values, strict=True))


def threshold_loads(tiers: tuple[Tier, ...], loads: Iterable[Load]) -> tuple[int, ...]:
    """The last batch size of each tier and the first of the next, but for the plan's `loads`."""
    lasts = [last for _, last, _ in tiers[:-1]]
    beside = {size for last in lasts for size in (last, last + 1)}
    return tuple(sorted(beside - set(loads)))


def propose(plan: Plan, knowledge: Knowledge, key: Key) -> Proposal | None:
    """The schedule of a static choice's method; None where its gain is within the tie margin."""
    loads = [load for load in plan.concurrencies if load is not None]
    if len(loads) < 2:
        return None
    method, static = key
    wanted = {load: _wanted(knowledge, key, load) for load in loads}
    gains = [
        knowledge.predict(method, n, load).log_speedup
        - knowledge.predict(method, static, load).log_speedup
        for load, n in wanted.items()
    ]
    gain = stats.mean(gains)
    if len(set(wanted.values())) < 2 or gain <= math.log1p(plan.settings.tie_margin):
        return None
    asked = max_num_seqs(plan.target.engine_args)
    most = asked if asked is not None else max(MOST_REQUESTS, 2 * max(loads))
    tiers = build_tiers(wanted, most, partial(_crossing, knowledge, method, wanted))
    return Proposal(method=method, static=static, tiers=tiers, log_gain=gain)


def _crossing(
    knowledge: Knowledge, method: str, lengths: Mapping[int, int], low: int, high: int
) -> int:
    """The last batch size at which the cost model prefers the lower load's N to the higher one's.

    Looked for at sizes a tenth apart. Steps are flat in the batch while memory-bound and grow
    afterwards, so a crossing between two loads tends to come early: never before halfway.
    """
    last = size = low
    while size < high:
        ours, other = (knowledge.predict(method, lengths[load], size) for load in (low, high))
        if ours.log_speedup < other.log_speedup:
            break
        last, size = size, max(size + 1, round(1.1 * size))
    return min(max(last, halfway(low, high)), high - 1)


def _wanted(knowledge: Knowledge, key: Key, load: Load) -> int:
    """The best N of the method at a load; the static one, then the smallest, where it is a tie."""
    own = [other for other in measured(knowledge) if other[0] == key[0]]
    allowed = eligible(knowledge, own, (load,))
    best = max(allowed, key=lambda other: knowledge.predict(other[0], other[1], load).log_speedup)
    if as_good(knowledge, key, best, load):
        return key[1]
    return min(n for method, n in allowed if as_good(knowledge, (method, n), best, load))


def loads_beside(lab: Lab, knowledge: Knowledge, key: Key) -> tuple[int, ...]:
    """Loads at which the static choice is measured too, because a schedule will be tried."""
    if not lab.plan.settings.schedule:
        return ()
    proposal = propose(lab.plan, knowledge, key)
    if proposal is None or lab.why_no_schedule(knowledge.spaces[key[0]]) is not None:
        return ()
    beside = threshold_loads(proposal.tiers, lab.plan.concurrencies)
    windows = 2 * len(beside) + len(lab.plan.concurrencies)
    return beside if affordable(lab, windows * lab.plan.settings.confirm_blocks) else ()


def affordable(lab: Lab, windows: int) -> bool:
    """Whether the budget has room for one more start and this many windows, at their mean time."""
    budget = lab.plan.settings.budget_seconds
    if budget is None:
        return True
    times = [stored.window.duration_seconds for stored in lab.study.windows()]
    known = [seconds for seconds in times if seconds is not None]
    per_window = stats.mean(known) if known else 0.0
    return lab.elapsed_seconds() + lab.start_seconds + windows * per_window < budget
