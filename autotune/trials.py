"""What the trials of an Optuna study say, as Knowledge: the search decides from both alike.

A finished trial is one window per load; a failed or pruned one is a failed candidate. A trial may
say more about itself in user attributes:

- `values_by_load`: {"1": 2.1, "32": 1.2}, the value at each load, in the unit of the trial's value
- `per_position_acceptance_rates`: unconditional rates by drafted position
- `acceptance_length`: tokens per round, the target model's own included
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from autotune.errors import SamplerError
from autotune.knowledge import NOT_TRIED, Key, Knowledge, Load
from autotune.records import (
    BASELINE,
    Message,
    MethodSpace,
    Plan,
    Prompt,
    Settings,
    Target,
    Window,
    Workload,
)
from autotune.search import candidate_of, is_hopeless

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

logger = logging.getLogger(__name__)

VALUES_BY_LOAD = "values_by_load"
EVIDENCE = ("per_position_acceptance_rates", "acceptance_length")


class TrialKnowledge:
    """Knowledge from the finished trials of one study; each trial is taken in once."""

    def __init__(
        self,
        spaces: tuple[MethodSpace, ...],
        baseline: Mapping[Load, float],
        tie_margin: float,
    ) -> None:
        self.spaces = spaces
        self.loads = tuple(baseline)
        self.knowledge = Knowledge(stand_in_plan(spaces, self.loads, tie_margin))
        self.one_value_will_do = len(set(baseline.values())) == 1
        self.has_others = False  # trials have parameters besides method and N
        self.last_method: str | None = None  # of the trial that finished last
        self._taken_in: set[int] = set()  # trial numbers
        self._repeats: dict[Key, int] = {}
        for load, value in baseline.items():
            self.knowledge.add(_window(BASELINE, 0, load, 0, value))

    def knows(self, number: int) -> bool:
        """Whether the trial of this number has been taken in."""
        return number in self._taken_in

    def update(self, trials: Sequence[FrozenTrial]) -> None:
        """Take in the finished ones among a study's trials.

        What cannot be read is left out, with a warning: a finished trial cannot be mended.
        """
        for trial in trials:
            if trial.state.is_finished() and trial.number not in self._taken_in:
                value = trial.value if trial.state.name == "COMPLETE" else None
                try:
                    self.take_in(trial, value)
                except SamplerError as error:
                    logger.warning("left out: %s", error.message)

    def take_in(self, trial: FrozenTrial, value: float | None) -> None:
        """One trial and its value; None: it failed. Raises SamplerError for a bad attribute."""
        self._taken_in.add(trial.number)
        key = candidate_of(trial.params, self.spaces)
        if key is None:
            return
        self.has_others |= len(trial.params) > 2
        self.last_method = key[0]
        by_load = self._by_load(trial, value)
        if by_load is None:
            self._fail(*key, str(trial.user_attrs.get("error", "the trial failed")))
        else:
            self._measured(key, by_load, trial)

    def _by_load(self, trial: FrozenTrial, value: float | None) -> dict[Load, float] | None:
        """The value at every load; None for a trial that says it did not work.

        Where a trial tells one value only, that is its value at every load.
        """
        if value is None or not 0 < value < math.inf:
            return None
        told = trial.user_attrs.get(VALUES_BY_LOAD)
        if told is None and self.one_value_will_do:
            return dict.fromkeys(self.loads, value)
        try:
            return {load: float(told[str(load)]) for load in self.loads}
        except (KeyError, TypeError, ValueError) as error:
            loads = ", ".join(map(str, self.loads))
            raise SamplerError(
                f"trial {trial.number}: {VALUES_BY_LOAD} is {told!r}",
                hint=f"a positive number for each of the loads {loads}"
                + (", or no such attribute" if self.one_value_will_do else ""),
            ) from error

    def _measured(self, key: Key, by_load: Mapping[Load, float], trial: FrozenTrial) -> None:
        repeat = self._repeats.get(key, 0)
        evidence = {name: trial.user_attrs.get(name) for name in EVIDENCE}
        try:
            windows = [_window(*key, load, repeat, by_load[load], **evidence) for load in by_load]
        except ValidationError as error:
            raise SamplerError(
                f"trial {trial.number}: its user attributes cannot be read: {error}",
                hint=f"{' and '.join(EVIDENCE)}: rates in 0..1, a number, or leave them out",
            ) from error
        for of in (key, (key[0], None)):  # it works after all
            self.knowledge.failed.pop(of, None)
        self.knowledge.tried_in_vain.discard(key)
        for window in windows:
            self.knowledge.add(window)
        self._repeats[key] = repeat + 1

    def _fail(self, method: str, n: int, error: str) -> None:
        """A candidate that was measured before keeps its place."""
        if (method, n) in self._repeats:
            return
        knowledge, space = self.knowledge, self.knowledge.spaces[method]
        knowledge.fail(method, n, error)
        if not is_hopeless(knowledge, space):
            return
        if not any(knowledge.measured(method, length) for length in space.lengths):
            knowledge.fail(method, None, error)
        for length in space.lengths:
            if knowledge.alive(method, length) and not knowledge.measured(method, length):
                knowledge.fail(method, length, f"{NOT_TRIED}: other N of {method} failed")


def _window(method: str, n: int, load: Load, repeat: int, value: float, **evidence: Any) -> Window:
    at = "any" if load is None else load
    return Window(
        method=method,
        num_speculative_tokens=n,
        live=False,
        block=f"{'reference' if repeat else 'search'}:{repeat}:c{at}",  # the same prompts again
        concurrency=load,
        output_tokens_per_second=value,
        **evidence,
    )


def stand_in_plan(
    spaces: tuple[MethodSpace, ...], loads: tuple[Load, ...], tie_margin: float
) -> Plan:
    """A plan around bare trials: what is served and with which prompts is the objective's."""
    unseen = Prompt(id="unseen", messages=(Message(role="user", content="unseen"),))
    return Plan(
        engine="optuna",
        target=Target(model="the objective's"),
        workload=Workload(name="the objective's", prompts=(unseen,)),
        spaces=spaces,
        concurrencies=loads,
        settings=Settings(search_blocks=1, tie_margin=tie_margin),
        sends_prompts=False,
    )
