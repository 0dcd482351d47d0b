"""What the preflight found out about the candidates of one plan."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.errors import ConfigurationError
from autotune.preflight.client import EngineFacts
from autotune.records import MethodSpace, Plan, Skipped

ANYWAY = "--no-preflight starts the engine all the same"


class Ledger:
    """Reasons against candidates, warnings, and what vLLM told. What was not reached stays in."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.baseline = EngineFacts()  # of the start without speculation
        self.facts: dict[tuple[str, int], EngineFacts] = {}  # of candidates that vLLM accepts
        self.request_tokens: tuple[int, ...] | None = None  # each prompt with its longest answer
        self.warnings: list[str] = []
        self._refused: dict[tuple[str, int], str] = {}
        self._static: set[str] = set()

    def refuse(self, method: str, lengths: Sequence[int], reason: str) -> None:
        for n in lengths:
            self._refused.setdefault((method, n), reason)

    def not_live(self, method: str) -> None:
        """N of this method cannot be switched on a running engine after all."""
        self._static.add(method)

    def spaces(self) -> list[MethodSpace]:
        return list(filter(None, map(self.kept, self.plan.spaces)))

    def kept(self, space: MethodSpace) -> MethodSpace | None:
        """The space without what is refused; None: nothing of it is left."""
        lengths = tuple(n for n in space.lengths if (space.method, n) not in self._refused)
        live = space.live_n and space.method not in self._static
        return space.model_copy(update={"lengths": lengths, "live_n": live}) if lengths else None

    def outcome(self, named: frozenset[str]) -> Plan:
        """The plan without what is refused.

        Raises ConfigurationError where nothing is left of a method that the user named.
        """
        skipped = [skip for space in self.plan.spaces for skip in self._skips(space, named)]
        return self.plan.model_copy(
            update={
                "spaces": tuple(self.spaces()),
                "skipped": (*self.plan.skipped, *skipped),
                "warnings": (*self.plan.warnings, *dict.fromkeys(self.warnings)),
            }
        )

    def _skips(self, space: MethodSpace, named: frozenset[str]) -> list[Skipped]:
        """One a length, or one for the method where none is left."""
        reasons = {n: r for (method, n), r in self._refused.items() if method == space.method}
        if self.kept(space):
            return [
                Skipped(method=space.method, num_speculative_tokens=n, reason=reason)
                for n, reason in reasons.items()
            ]
        first = reasons[space.lengths[0]]
        if space.method in named:
            model = self.plan.target.model
            raise ConfigurationError(f"{space.method} cannot be used with {model}: {first}", ANYWAY)
        return [Skipped(method=space.method, reason=first)]
