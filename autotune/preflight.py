"""Before any engine start: what cannot work is skipped, with the reason; doubts become warnings.

First vLLM's own validators (`preflight_client.py`), asked with exactly the arguments that its
server would get; then what vLLM does not check, or only late (`preflight_rules.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from autotune.engines import Progress
from autotune.engines.arguments import check_engine_args
from autotune.errors import ConfigurationError
from autotune.preflight_client import EngineFacts, Validator, ValidatorError, Verdict
from autotune.records import BASELINE, Arm, MethodSpace, Plan, Skipped, Target

ANYWAY = "--no-preflight starts the engine all the same"


@runtime_checkable
class Asked(Protocol):
    """An engine whose own validators can be asked."""

    def validator(self, progress: Progress) -> Validator: ...

    def serve_arguments(self, target: Target, arm: Arm, port: int = 0) -> list[str]: ...


def preflight(plan: Plan, engine: Asked, *, named: frozenset[str], progress: Progress) -> Plan:
    """The plan without what cannot work.

    Raises ConfigurationError where the user's own arguments are refused, and where a method is
    that the user asked for by name. Whatever could not be checked is a warning, never silence.
    """
    check_engine_args(plan.target.engine_args)
    checks = _Checks(plan, engine)
    try:
        with engine.validator(progress) as validator:
            checks.run(validator, progress)
    except ValidatorError as error:
        checks.warnings.append(f"not checked with vLLM's own validators before a start: {error}")
    spaces, skipped = checks.outcome(named)
    progress(f"preflight: {_count(spaces)} of {_count(plan.spaces)} candidates stay")
    return plan.model_copy(
        update={
            "spaces": spaces,
            "skipped": (*plan.skipped, *skipped),
            "warnings": (*plan.warnings, *dict.fromkeys(checks.warnings)),
        }
    )


def _count(spaces: Sequence[MethodSpace]) -> int:
    return sum(len(space.lengths) for space in spaces)


class _Checks:
    """What is known against the candidates of one plan; what was not reached stays in."""

    def __init__(self, plan: Plan, engine: Asked) -> None:
        self.plan, self.engine = plan, engine
        self.baseline = EngineFacts()
        self.facts: dict[tuple[str, int], EngineFacts] = {}  # of accepted candidates
        self.refused: dict[tuple[str, int], str] = {}  # why not
        self.static: set[str] = set()  # methods whose N cannot be switched live after all
        self.warnings: list[str] = []

    def run(self, validator: Validator, progress: Progress) -> None:
        """Ask about each start that may happen. Raises ValidatorError, ConfigurationError."""
        verdict = self._ask(validator, Arm(method=BASELINE, instrumented=True))
        if not verdict.ok:
            raise ConfigurationError(
                f"vLLM refuses these arguments for {self.plan.target.model}, without speculation:"
                f" {verdict.error}",
                hint=f"what follows -- goes to vllm serve; {ANYWAY}",
            )
        self.baseline = verdict.facts
        for space in self.plan.spaces:
            progress(f"vLLM's validators look at {space.method}")
            for n in space.lengths:
                self._static(validator, space, n)
            self._live(validator, space)

    def _static(self, validator: Validator, space: MethodSpace, n: int) -> None:
        verdict = self._ask(validator, space.arm(n, live=False))
        if verdict.ok:
            self.facts[space.method, n] = verdict.facts
        else:
            self.refused[space.method, n] = f"vLLM refuses it: {verdict.error}"

    def _live(self, validator: Validator, space: MethodSpace) -> None:
        """One start for all N is a configuration of its own, which can be refused too."""
        kept = self._kept(space)
        if not kept or not self.plan.is_live(kept):
            return
        verdict = self._ask(validator, kept.arm(kept.lengths[-1], live=True))
        if not verdict.ok:
            self.static.add(space.method)
            told = f"{space.method}: one start per N, vLLM refuses more: {verdict.error}"
            self.warnings.append(told)

    def _ask(self, validator: Validator, arm: Arm) -> Verdict:
        target = self.plan.target
        return validator.check(["--model", target.model, *self.engine.serve_arguments(target, arm)])

    def outcome(self, named: frozenset[str]) -> tuple[tuple[MethodSpace, ...], tuple[Skipped, ...]]:
        """(spaces, skipped). Raises ConfigurationError where nothing is left of a named method."""
        spaces, skipped = [], []
        for space in self.plan.spaces:
            kept = self._kept(space)
            if kept:
                spaces.append(kept)
                skipped += self._skips(space)
                continue
            said = self.refused[space.method, space.lengths[0]]
            if space.method in named:
                model = self.plan.target.model
                raise ConfigurationError(
                    f"{space.method} cannot be used with {model}: {said}", hint=ANYWAY
                )
            skipped.append(Skipped(method=space.method, reason=said))
        return tuple(spaces), tuple(skipped)

    def _skips(self, space: MethodSpace) -> list[Skipped]:
        return [
            Skipped(method=space.method, num_speculative_tokens=n, reason=reason)
            for (method, n), reason in self.refused.items()
            if method == space.method
        ]

    def _kept(self, space: MethodSpace) -> MethodSpace | None:
        """The space without what is refused; None: nothing of it is left."""
        lengths = tuple(n for n in space.lengths if (space.method, n) not in self.refused)
        live = space.live_n and space.method not in self.static
        return space.model_copy(update={"lengths": lengths, "live_n": live}) if lengths else None
