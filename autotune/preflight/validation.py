"""vLLM's own verdict on each engine start that may happen."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Protocol, runtime_checkable

from autotune.engines import Progress
from autotune.errors import ConfigurationError
from autotune.preflight.client import Validator, Verdict
from autotune.preflight.ledger import ANYWAY, Ledger
from autotune.records import BASELINE, Arm, MethodSpace, Target


@runtime_checkable
class Asked(Protocol):
    """An engine whose own validators can be asked."""

    def validator(self, progress: Progress) -> Validator: ...

    def serve_arguments(self, target: Target, arm: Arm, port: int = 0) -> list[str]: ...


def ask_vllm(ledger: Ledger, engine: Asked, progress: Progress) -> None:
    """Enter vLLM's verdicts.

    Raises ValidatorError where it cannot be asked (any longer), and ConfigurationError where it
    refuses the user's own arguments.
    """
    with closing(engine.validator(progress)) as validator:
        _Asking(ledger, engine, validator).run(progress)


class _Asking:
    def __init__(self, ledger: Ledger, engine: Asked, validator: Validator) -> None:
        self.ledger, self.engine, self.validator = ledger, engine, validator

    def run(self, progress: Progress) -> None:
        self._baseline()
        for space in self.ledger.plan.spaces:
            progress(f"vLLM's validators look at {space.method}")
            for n in space.lengths:
                self._static(space, n)
            self._live(space)

    def _baseline(self) -> None:
        plan = self.ledger.plan
        chats = [[m.model_dump() for m in prompt.messages] for prompt in plan.workload.prompts]
        verdict = self._ask(Arm(method=BASELINE, instrumented=True), chats)
        if not verdict.ok:
            raise ConfigurationError(
                f"vLLM refuses these arguments for {plan.target.model}, without speculation:"
                f" {verdict.error}",
                hint=f"what follows -- goes to vllm serve; {ANYWAY}",
            )
        self.ledger.baseline = verdict.facts
        if verdict.tokens is not None:
            longest = plan.workload.sampling.max_tokens
            self.ledger.request_tokens = tuple(tokens + longest for tokens in verdict.tokens)

    def _static(self, space: MethodSpace, n: int) -> None:
        verdict = self._ask(space.arm(n, live=False))
        if verdict.ok:
            self.ledger.facts[space.method, n] = verdict.facts
        else:
            self.ledger.refuse(space.method, [n], f"vLLM refuses it: {verdict.error}")

    def _live(self, space: MethodSpace) -> None:
        """One start for all N is a configuration of its own, which can be refused too."""
        kept = self.ledger.kept(space)
        if not kept or not self.ledger.plan.is_live(kept):
            return
        verdict = self._ask(kept.arm(kept.lengths[-1], live=True))
        if not verdict.ok:
            self.ledger.not_live(space.method)
            told = f"{space.method}: one start per N, vLLM refuses more: {verdict.error}"
            self.ledger.warnings.append(told)

    def _ask(self, arm: Arm, chats: Sequence[list[dict[str, str]]] = ()) -> Verdict:
        target = self.ledger.plan.target
        arguments = ["--model", target.model, *self.engine.serve_arguments(target, arm)]
        return self.validator.check(arguments, chats)
