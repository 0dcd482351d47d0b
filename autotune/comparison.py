"""Optuna's own samplers in place of our search, to compare: `run --sampler tpe|gp|random|grid`.

Engine starts are not limited here, but counted. A sampler that proposes a candidate again gets its
next paired block, as long as the plan has some, and after that the known value without measuring.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from autotune.errors import ConfigurationError
from autotune.knowledge import NOT_TRIED, Key, Knowledge
from autotune.records import Plan, Recommendation, SamplerName, Status, Stopped
from autotune.search import METHOD, candidate_of, length_parameter, suggest

if TYPE_CHECKING:
    import optuna

MAX_CANDIDATES = "the candidates allowed by --max-candidates"
ALL_MEASURED = "every candidate was measured"
TRIED = (Status.CONFIRMED, Status.PROBED, Status.FAILED)
RANK = "length_rank"  # which of a method's lengths, 0..1: one static space for all methods
STATIC = ("gp",)  # samplers that need a space without conditions
GP_STARTUP = 5  # random trials first; Optuna's 10 are most of the candidates of a usual study


def require_sampler(name: SamplerName) -> SamplerName:
    """Raises ConfigurationError where something that a sampler needs is missing."""
    if name == "gp" and find_spec("torch") is None:
        raise ConfigurationError(
            "--sampler gp needs PyTorch, which is not installed here",
            hint="pip install torch, or compare with --sampler tpe",
        )
    return name


def suggested(trial: optuna.Trial, plan: Plan) -> Key:
    """What a trial is to measure, asked in the way that the plan's sampler needs."""
    if plan.settings.sampler not in STATIC:
        return suggest(trial, plan.spaces)
    method = str(trial.suggest_categorical(METHOD, [space.method for space in plan.spaces]))
    lengths = next(space.lengths for space in plan.spaces if space.method == method)
    rank = trial.suggest_float(RANK, 0.0, 1.0)
    n = lengths[min(int(rank * len(lengths)), len(lengths) - 1)]
    # nothing to choose: it is noted under the name that every reader of trials knows
    return method, trial.suggest_int(length_parameter(method), n, n)


def times_told(trials: optuna.Study, trial: optuna.Trial, knowledge: Knowledge) -> int:
    """How many earlier trials were about the same candidate and have ended."""
    spaces = knowledge.plan.spaces
    key = candidate_of(trial.params, spaces)
    ended = [t for t in trials.get_trials(deepcopy=False) if t.state.is_finished()]
    return sum(candidate_of(t.params, spaces) == key and t.number < trial.number for t in ended)


def candidates_tried(knowledge: Knowledge) -> int:
    """Distinct candidates that were measured or failed when they were run."""
    everything = [(space.method, n) for space in knowledge.plan.spaces for n in space.lengths]
    return sum(key in knowledge.tried_in_vain or knowledge.measured(*key) for key in everything)


def max_candidates_tried(knowledge: Knowledge) -> bool:
    allowed = knowledge.plan.settings.max_candidates
    return allowed is not None and candidates_tried(knowledge) >= allowed


def number_tried(finished: Recommendation) -> int:
    """`candidates_tried` of a study that has ended: what was given up unseen was not tried."""
    tried = [
        c
        for c in finished.candidates
        if c.status in TRIED and not (c.error or "").startswith(NOT_TRIED)
    ]
    return len({(c.method, c.num_speculative_tokens) for c in tried})


class Comparison:
    """Asks one of Optuna's samplers for the next trial and says when it has had its share."""

    def __init__(self, knowledge: Knowledge, trials: optuna.Study) -> None:
        self.knowledge = knowledge
        self.trials = trials
        self.name = knowledge.plan.settings.sampler
        self.size = sum(len(space.lengths) for space in knowledge.plan.spaces)

    def ask(self) -> optuna.Trial:
        """The next trial. Each has a seed of its own: a resumed study goes on where it was."""
        from optuna.trial import TrialState

        everything = self.trials.get_trials(deepcopy=False)
        if self.name == "grid" and all(t.state != TrialState.WAITING for t in everything):
            method, n = self._unmeasured()[0]
            self.trials.enqueue_trial({METHOD: method, length_parameter(method): n})
        seed = (self.knowledge.plan.settings.seed, self._trials_had())
        self.trials.sampler = make_sampler(self.name, seed)
        return self.trials.ask()

    def why_stopped(self) -> Stopped | None:
        """Every candidate was measured, or the sampler has had its trials; None: go on."""
        left = len(self._unmeasured())
        if not left:
            failed = "" if not self.knowledge.failed else " or has failed"
            return Stopped(reason=ALL_MEASURED + failed, exhausted=True)
        if max_candidates_tried(self.knowledge):
            spent = f"{MAX_CANDIDATES} were spent"
        elif self._trials_had() >= self.size:
            spent = f"--sampler {self.name} had its {self.size} trials, one per candidate"
        else:
            return None
        reason = f"{spent}; {left} candidates were not measured"
        return Stopped(reason=reason, exhausted=False)

    def starts_needed(self, open_method: str | None) -> int:
        """Engine starts that the next trial may cause: which it is only the grid knows ahead."""
        return int(self.name != "grid" or self._unmeasured()[0][0] != open_method)

    def _unmeasured(self) -> list[Key]:
        knowledge = self.knowledge
        return [key for key in knowledge.candidates() if not knowledge.measured(*key)]

    def _trials_had(self) -> int:
        """Trials that named a candidate and have ended; those that were lost do not count."""
        spaces = self.knowledge.plan.spaces
        ended = [t for t in self.trials.get_trials(deepcopy=False) if t.state.is_finished()]
        return sum(candidate_of(t.params, spaces) is not None for t in ended)


def make_sampler(name: SamplerName, seed: tuple[int, int]) -> optuna.samplers.BaseSampler:
    """One of Optuna's samplers. The grid needs none: its trials are enqueued, in plan order.

    (GridSampler takes products of independent choices only; here each method has its own lengths.)
    """
    import numpy as np
    import optuna

    number = int(np.random.SeedSequence(seed).generate_state(1)[0])
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=number)
    if name == "gp":
        return optuna.samplers.GPSampler(
            seed=number, n_startup_trials=GP_STARTUP, warn_independent_sampling=False
        )
    return optuna.samplers.RandomSampler(seed=number)
