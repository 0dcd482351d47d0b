"""What to measure next and when to stop; `sampler.py` is the Optuna sampler that asks.

Expected improvement of the final choice per second of cost, where an engine start costs far more
than switching N on a running engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from autotune.knowledge import Key, Knowledge, Load
from autotune.limits import NO_SPECULATION, could_keep, keeps, out_of_reach
from autotune.records import MethodSpace, Record

if TYPE_CHECKING:
    import optuna

COULD_WIN_Z = 1.645  # one-sided 95 %: below this chance a candidate is not worth a probe
RACE_Z = 1.28
NOTHING_KEEPS = -1.0  # ln(speedup) to beat where nothing measured keeps the limits: any will do
MAX_FAILED_LENGTHS = 2  # after this many failed N the whole method is given up
PREDICTED = "prediction"  # trial attribute: (mean, sd) by load, before the first probe


class Incumbent(NamedTuple):
    """The best so far, as ln(speedup)."""

    overall: float
    by_load: dict[Load, float]
    unlimited: frozenset[Load]  # loads where the limits are out of reach: throughput alone counts


class Prices(Record):
    """Seconds. What the search pays for an engine start and for one candidate's windows."""

    start_seconds: float = Field(ge=0, allow_inf_nan=False)
    probe_seconds: float = Field(gt=0, allow_inf_nan=False)  # gains are divided by it


class Search:
    """Decisions from knowledge. `open_method` is the method whose live engine is running."""

    def __init__(self, knowledge: Knowledge, prices: Prices, starts_left: int) -> None:
        self.knowledge = knowledge
        self.prices = prices
        self.starts_left = starts_left  # engine starts the search may still cause
        self.open_method: str | None = None
        self.taken: frozenset[Key] = frozenset()  # what other workers are measuring right now

    def incumbent(self) -> Incumbent:
        """Best ln(speedup) so far, overall and by load, among what keeps the latency limits there.

        Not speculating scores 0.
        """
        knowledge, loads = self.knowledge, self.knowledge.plan.concurrencies
        unlimited = frozenset(c for c in loads if out_of_reach(knowledge, c, COULD_WIN_Z))

        def allowed(key: Key, load: Load) -> bool:
            return load in unlimited or keeps(knowledge, key, load)

        known = [key for key in knowledge.candidates() if knowledge.measured(*key)]
        everywhere = [key for key in known if all(allowed(key, load) for load in loads)]
        overall = [knowledge.score(*key)[0] for key in everywhere]
        overall += [0.0] if all(allowed(NO_SPECULATION, load) for load in loads) else []
        by_load: dict[Load, float] = {}
        for load in loads:
            here = [key for key in known if allowed(key, load)]
            scores = [knowledge.predict(*key, load).log_speedup for key in here]
            scores += [0.0] if allowed(NO_SPECULATION, load) else []
            by_load[load] = max(scores, default=NOTHING_KEEPS)
        return Incumbent(max(overall, default=NOTHING_KEEPS), by_load, unlimited)

    def could_win(self, method: str, n: int, best: Incumbent, z: float = COULD_WIN_Z) -> bool:
        """Whether the candidate may beat the best, at any load, by more than the tie margin."""
        overall, by_load, unlimited = best
        margin = math.log1p(self.knowledge.plan.settings.tie_margin)
        centre, sd = self.knowledge.score(method, n)
        possible = self._possible_loads(method, n, unlimited)
        if len(possible) == len(by_load) and centre + z * sd > overall + margin:
            return True
        predictions = [self.knowledge.predict(method, n, load) for load in possible]
        return any(
            p.log_speedup + z * p.log_speedup_sd > by_load[p.concurrency] + margin
            for p in predictions
        )

    def _possible_loads(self, method: str, n: int, unlimited: frozenset[Load]) -> list[Load]:
        """Loads at which an unmeasured candidate may keep the latency limits that count there."""
        return [
            load
            for load in self.knowledge.plan.concurrencies
            if load in unlimited or could_keep(self.knowledge, method, n, load, COULD_WIN_Z)
        ]

    def starts_needed(self, method: str, n: int) -> int:
        return 0 if method == self.open_method else 1

    def promising(self) -> list[Key]:
        """Unmeasured candidates that could still win and that nobody else is measuring.

        A method that was never measured is not dismissed on what is only assumed of it.
        """
        best = self.incumbent()
        tried = {m for m, n in self.knowledge.candidates() if self.knowledge.measured(m, n)}
        return [
            (method, n)
            for method, n in self.knowledge.candidates()
            if not self.knowledge.measured(method, n)
            and (method, n) not in self.taken
            and (method not in tried or self.could_win(method, n, best))
            and self._is_next(method, n)
        ]

    def _is_next(self, method: str, n: int) -> bool:
        """A method whose first N failed must show its smallest N before anything else."""
        lengths = self.knowledge.spaces[method].lengths
        failed = any((method, length) in self.knowledge.tried_in_vain for length in lengths)
        if not failed or any(self.knowledge.measured(method, length) for length in lengths):
            return True
        return n == min(length for length in lengths if self.knowledge.alive(method, length))

    def open_candidates(self) -> list[Key]:
        """The promising candidates that may be paid for."""
        return [key for key in self.promising() if self.starts_needed(*key) <= self.starts_left]

    def propose(self) -> Key | None:
        """The candidate with the best expected improvement per second; None: stop.

        What the running engine can still answer comes first: leaving it would cost another start.
        """
        waiting = self.open_candidates()
        here = [key for key in waiting if self.starts_needed(*key) == 0]
        return self.most_valuable(here or waiting)

    def most_valuable(self, keys: Sequence[Key]) -> Key | None:
        """The one with the best expected improvement per second; None where there is none."""
        best = self.incumbent()
        return max(keys, key=lambda key: self._value_per_second(key, best), default=None)

    def _value_per_second(self, key: Key, best_so_far: Incumbent) -> float:
        overall, by_load, unlimited = best_so_far
        possible = self._possible_loads(*key, unlimited)
        everywhere = len(possible) == len(by_load)
        gain = expected_improvement(*self.knowledge.score(*key), overall) if everywhere else 0.0
        for load in possible:
            p, best = self.knowledge.predict(*key, load), by_load[load]
            gain += expected_improvement(p.log_speedup, p.log_speedup_sd, best) / len(by_load)
        starts = self.starts_needed(*key)
        return gain / (self.prices.probe_seconds + starts * self.prices.start_seconds)

    def contenders(self) -> list[Key]:
        """Measured candidates of the open method too close to call: worth another paired block."""
        knowledge, blocks = self.knowledge, self.knowledge.plan.settings.search_blocks
        close = [
            (method, n)
            for method, n in knowledge.candidates()
            if method == self.open_method
            and knowledge.measured(method, n)
            and knowledge.blocks_done(method, n) < blocks
            and (method, n) not in knowledge.out_of_race
            and self._close_to_best(method, n)
        ]
        return close if len(close) > 1 or self._rivals_elsewhere(close) else []

    def _close_to_best(self, method: str, n: int) -> bool:
        knowledge, best = self.knowledge, self.incumbent().overall
        if best == NOTHING_KEEPS:  # then the fastest are the ones to look at again
            known = [key for key in knowledge.candidates() if knowledge.measured(*key)]
            best = max(knowledge.score(*key)[0] for key in known)
        centre, sd = knowledge.score(method, n)
        return centre + RACE_Z * math.sqrt(2) * sd > best

    def _rivals_elsewhere(self, close: list[Key]) -> bool:
        """A lone contender is raced against what another method or N=0 has shown or may show."""
        if not close:
            return False
        centre, sd = self.knowledge.score(*close[0])
        others = [
            self.knowledge.score(*key)[0]
            for key in self.knowledge.candidates()
            if key not in close and self.knowledge.measured(*key)
        ]
        unseen = any(method != self.open_method for method, _ in self.promising())
        return unseen or any(abs(centre - other) < 2 * sd for other in [0.0, *others])


def expected_improvement(mean: float, sd: float, best: float) -> float:
    """E[max(0, X - best)] for X ~ Normal(mean, sd) (Jones, Schonlau and Welch, 1998)."""
    if sd <= 0:
        return max(0.0, mean - best)
    z = (mean - best) / sd
    density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return (mean - best) * 0.5 * math.erfc(-z / math.sqrt(2)) + sd * density


def is_hopeless(knowledge: Knowledge, space: MethodSpace) -> bool:
    """Whether so many N of a method have failed when they were run that it is given up."""
    own = [n for n in space.lengths if (space.method, n) in knowledge.tried_in_vain]
    return len(own) >= min(MAX_FAILED_LENGTHS, len(space.lengths))


METHOD = "method"  # Optuna's name of the drafting method
LENGTH = ".num_speculative_tokens"  # ends Optuna's name of N


def length_parameter(method: str) -> str:
    """Optuna's name of N for one method: each method has its own allowed lengths."""
    return method + LENGTH


def method_of(parameter: str) -> str:
    """The method whose N a parameter of that name is."""
    return parameter.removesuffix(LENGTH)


def suggest(trial: optuna.Trial, spaces: Sequence[MethodSpace]) -> Key:
    """The define-by-run search space: a method, then one of its lengths."""
    method = str(trial.suggest_categorical(METHOD, [space.method for space in spaces]))
    space = next(space for space in spaces if space.method == method)
    n = trial.suggest_categorical(length_parameter(method), list(space.lengths))
    return method, int(n)


def candidate_of(parameters: Mapping[str, Any], spaces: Sequence[MethodSpace]) -> Key | None:
    """The candidate that a trial's parameters name; None where they do not name one (yet)."""
    method = str(parameters.get(METHOD))
    n = parameters.get(length_parameter(method))
    known = any(space.method == method for space in spaces)
    return (method, int(n)) if known and n is not None else None


def is_suggested(trial: optuna.Trial, spaces: Sequence[MethodSpace]) -> bool:
    """Whether a trial already says what to measure: both of its parameters are stored."""
    return candidate_of(trial.params, spaces) is not None
