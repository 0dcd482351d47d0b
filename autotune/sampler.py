"""SpectuneSampler: Optuna asks the cost model which method and N to try next.

    sampler = SpectuneSampler({"mtp": range(1, 9), "eagle3": (1, 3, 5)})
    optuna.create_study(direction="maximize", sampler=sampler).optimize(objective, n_trials=30)

This module imports optuna when it is imported; whoever wants `--help` to be instant imports it
inside a function.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

import optuna
from optuna.trial import TrialState

from autotune.errors import SamplerError
from autotune.knowledge import Key, Load
from autotune.sampler_inputs import Spaces, as_prices, as_spaces, by_load
from autotune.search import METHOD, Search, candidate_of, length_parameter, method_of
from autotune.trials import TrialKnowledge

PROPOSAL = "spectune:proposal"  # trial attribute: [method, N, whether that is final]
NOTHING_LEFT = "nothing is left that could win"


class SpectuneSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]
    """Chooses `method` and `<method>.num_speculative_tokens`; maximises; learns from the trials.

    The value of a trial is the speed-up over not speculating, or a throughput where `baseline`
    says what not speculating yields. Failed and pruned trials are failed candidates; a candidate
    that another worker is measuring is not proposed again. What a trial may say about itself is
    in `trials.py`. Other parameters go to `independent_sampler` (default: TPE).

    `study.optimize` ends when no unmeasured candidate could still win by more than the tie margin.
    Where the objective has other parameters, it goes on: then the leading candidate is proposed
    again, so that these are tuned for it.

    spaces: lengths by method (with spectune's priors), or MethodSpace records with priors of
    their own.
    concurrencies: the loads that `values_by_load` of a trial speaks of.
    baseline: the value of not speculating, one for all loads or by load; 1 for speed-ups.
    tie_margin: relative gain that is worth having.
    start_seconds, probe_seconds: what it costs to go to another method, and to measure once.
    seed: of the default independent sampler; the choice of method and N is not random.

    Raises SamplerError (a ValueError) for lengths, a baseline or prices that cannot be, and for a
    study that minimises or has several objectives.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        concurrencies: Sequence[Load] = (None,),
        baseline: float | Mapping[Load, float] = 1.0,
        tie_margin: float = 0.01,
        start_seconds: float = 0.0,
        probe_seconds: float = 1.0,
        independent_sampler: optuna.samplers.BaseSampler | None = None,
        seed: int | None = None,
    ) -> None:
        self._spaces = as_spaces(spaces)
        self._baseline = by_load(baseline, concurrencies)
        self._tie_margin = tie_margin
        self._prices = as_prices(start_seconds, probe_seconds)
        self._independent = independent_sampler or optuna.samplers.TPESampler(seed=seed)
        self._given: Search | None = None
        self._learned: TrialKnowledge | None = None
        self._study: tuple[str, int] | None = None  # whose trials were learned
        self._lock = threading.Lock()

    @classmethod
    def asking(cls, search: Search) -> Self:
        """A sampler for a search that learns elsewhere (from windows) and is asked and told."""
        sampler = cls(search.knowledge.plan.spaces)
        sampler._given = search
        return sampler

    def __getstate__(self) -> dict[str, Any]:
        """Locks cannot be pickled, and what was learned is read from the study again."""
        return {**self.__dict__, "_lock": None, "_learned": None, "_study": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "_lock": threading.Lock()}

    def reseed_rng(self) -> None:
        self._independent.reseed_rng()

    # --------------------------------------------------------------------- other parameters

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        _refuse_several_objectives(study)
        found = self._independent.infer_relative_search_space(study, trial)
        return {name: kind for name, kind in found.items() if not self._is_ours(name)}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        _refuse_several_objectives(study)
        found: dict[str, Any] = self._independent.sample_relative(study, trial, search_space)
        return found

    def before_trial(self, study: Any, trial: Any) -> None:
        self._independent.before_trial(study, trial)

    # -------------------------------------------------------------------------- method and N

    def sample_independent(
        self, study: Any, trial: Any, param_name: str, param_distribution: Any
    ) -> Any:
        _refuse_several_objectives(study)
        if not self._is_ours(param_name):
            return self._independent.sample_independent(
                study, trial, param_name, param_distribution
            )
        if not _maximises(study):
            raise SamplerError(
                "SpectuneSampler maximises the speed-up, and this study minimises",
                hint='optuna.create_study(direction="maximize", ...)',
            )
        asked = None if param_name == METHOD else method_of(param_name)
        method, n = self._proposal(study, trial, asked)
        return _offered(method if asked is None else n, param_name, param_distribution)

    def _is_ours(self, name: str) -> bool:
        return name == METHOD or any(name == length_parameter(s.method) for s in self._spaces)

    def _proposal(self, study: Any, trial: Any, asked: str | None) -> Key:
        """What the trial is to measure, decided when the first of its two parameters is asked for.

        Optuna does not ask for a parameter that has one choice only or that the user has fixed;
        `asked` is the method then. The proposal is stored with the trial: other workers see it.
        """
        with self._lock:
            known = trial.system_attrs.get(PROPOSAL)
            if known is not None and asked in (None, known[0]):
                method, n, _ = known
                return method, n
            search = self._search(study, trial)
            while True:
                key = self._choice(study, search, asked)
                if key is None:
                    _stop(study)
                    raise optuna.TrialPruned(NOTHING_LEFT)
                found = self._lost_to(study, trial, key) - search.taken
                if not found:
                    _note(study, trial, key, final=True)
                    return key
                search.taken |= found

    def _lost_to(self, study: Any, trial: Any, key: Key) -> frozenset[Key]:
        """Claim the candidate. What others have taken, if it is taken by now; else nothing.

        Of two that are not final yet the earlier trial keeps it. No storage of Optuna can lock
        across processes: two workers that ask at the same instant may still get the same.
        """
        if self._given is not None:
            return frozenset()  # the tuner: one process, one trial at a time
        _note(study, trial, key, final=False)
        claims = self._claims(study, trial)
        lost = any(
            taken == key and (final or number < trial.number) for number, taken, final in claims
        )
        return frozenset(taken for _, taken, _ in claims) if lost else frozenset()

    def _choice(self, study: Any, search: Search, asked: str | None) -> Key | None:
        key = search.propose() or self._leader(search, study)
        if asked is not None and len(self._spaces) > 1 and (key is None or key[0] != asked):
            return best_length(search, asked)
        return key

    def _search(self, study: Any, trial: Any = None) -> Search:
        """The search, with all that is known; what others are measuring is taken."""
        search = self._given or self._from_trials(study)
        search.taken = frozenset(key for _, key, _ in self._claims(study, trial))
        return search

    def _claims(self, study: Any, trial: Any) -> list[tuple[int, Key, bool]]:
        """(number, candidate, final) of other trials that run or whose end is not learned of."""
        claims = []
        for other in study.get_trials(deepcopy=False):
            if self._is_known(study, other) or (trial is not None and other.number == trial.number):
                continue
            key = other.system_attrs.get(PROPOSAL) or candidate_of(other.params, self._spaces)
            if key is not None:
                method, n, *final = key
                claims.append((other.number, (method, n), final != [False]))
        return claims

    def _is_known(self, study: Any, trial: Any) -> bool:
        if self._given is not None:  # it learns elsewhere, and of everything that ends
            return bool(trial.state.is_finished())
        return bool(trial.state.is_finished() and self._of(study).knows(trial.number))

    def _from_trials(self, study: Any) -> Search:
        learned = self._of(study)
        learned.update(study.get_trials(deepcopy=False))
        everything = sum(len(space.lengths) for space in self._spaces)
        search = Search(learned.knowledge, self._prices, starts_left=everything)
        # with starts that cost nothing no method is cheaper than another
        search.open_method = learned.last_method if self._prices.start_seconds else None
        return search

    def _of(self, study: Any) -> TrialKnowledge:
        name = (study.study_name, study._study_id)
        if self._learned is None or self._study != name:
            self._learned = TrialKnowledge(self._spaces, self._baseline, self._tie_margin)
            self._study = name
        return self._learned

    def _leader(self, search: Search, study: Any) -> Key | None:
        """The best candidate so far, where other parameters remain to be tuned for it."""
        if self._given is not None or not self._of(study).has_others:
            return None
        knowledge = search.knowledge
        known = [key for key in knowledge.candidates() if knowledge.measured(*key)]
        return max(known, key=lambda key: knowledge.score(*key)[0], default=None)

    # ------------------------------------------------------------------------------- the end

    def after_trial(self, study: Any, trial: Any, state: TrialState, values: Any) -> None:
        """Learn from the trial; end `study.optimize` where nothing is left that could win."""
        self._independent.after_trial(study, trial, state, values)
        ours = candidate_of(trial.params, self._spaces) is not None and _maximises(study)
        if self._given is not None or not ours:
            return
        with self._lock:
            value = values[0] if state == TrialState.COMPLETE else None
            self._of(study).take_in(trial, value)
            search = self._search(study, trial)
            if search.propose() is None and self._leader(search, study) is None:
                _stop(study)

    def is_exhausted(self, study: optuna.Study) -> bool:
        """Whether no candidate that is neither measured nor being measured could still win."""
        with self._lock:
            return self._search(study).propose() is None


def best_length(search: Search, method: str) -> Key:
    """The most valuable candidate of a method that the user has fixed, measured ones included."""
    alive = [key for key in search.knowledge.candidates() if key[0] == method]
    promising = [key for key in search.promising() if key[0] == method]
    free = [key for key in alive if key not in search.taken]
    smallest = (method, search.knowledge.spaces[method].lengths[0])
    return search.most_valuable(promising or free or alive) or smallest


def _refuse_several_objectives(study: Any) -> None:
    if len(study.directions) > 1:
        raise SamplerError(
            "SpectuneSampler serves one objective, the speed-up",
            hint="tell other figures as user attributes of the trial",
        )


def _note(study: Any, trial: Any, key: Key, *, final: bool) -> None:
    """Store with the trial what it is to measure; not final until others were looked at again."""
    study._storage.set_trial_system_attr(trial._trial_id, PROPOSAL, [*key, final])


def _maximises(study: Any) -> bool:
    return bool(study.directions == [optuna.study.StudyDirection.MAXIMIZE])


def _offered(value: str | int, name: str, distribution: Any) -> str | int:
    """The value, where the objective's own parameter allows it."""
    try:
        if distribution._contains(distribution.to_internal_repr(value)):
            return value
    except ValueError:
        pass
    raise SamplerError(
        f"the objective does not offer {name} = {value!r}: it suggests from {distribution}",
        hint="give SpectuneSampler the same methods and lengths as the objective",
    )


def _stop(study: Any) -> None:
    with contextlib.suppress(RuntimeError):  # asked and told: there is no loop to be ended
        study.stop()
