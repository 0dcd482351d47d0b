"""Which methods and lengths to try for a model: user's words + catalogue + facts -> MethodSpace.

Nothing is dropped without a reason, and nothing is dropped because a fact is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.errors import ConfigurationError
from autotune.machine.environment import EngineInfo
from autotune.methods import Method, all_methods, get_method
from autotune.models.catalog import DrafterEntry, ResolvedModel
from autotune.models.discover import other_verifier
from autotune.models.facts import ModelFacts, read_facts
from autotune.models.speculative_options import Options
from autotune.models.wanted import MAX_LENGTH, own_drafter
from autotune.records import MethodSpace, Skipped

BLOCKS = ("dflash", "dspark")  # methods with a trained block
Read = Callable[[str], ModelFacts]


def build_spaces(
    model: ResolvedModel,
    *,
    methods: Sequence[str] | None = None,
    drafters: Mapping[str, str] | None = None,
    lengths: Sequence[int] | None = None,
    environment: EngineInfo | None = None,
    options: Options | None = None,
    read: Read = read_facts,
) -> tuple[tuple[MethodSpace, ...], tuple[Skipped, ...], tuple[str, ...]]:
    """(spaces, skipped, warnings). `methods` None: all that apply, in the order of their names.

    A method that the user names (or names a drafter for) and that cannot work is a
    ConfigurationError; one that merely does not apply is Skipped with the reason. `options`:
    further keys of speculative_config by method; `read` gives the facts of a checkpoint.
    """
    options = dict(options or {})
    drafters = dict(drafters or {})
    named = {get_method(name).name for name in (*(methods or ()), *drafters)}
    wanted = [
        m.with_options(options.get(m.name, {}), environment)
        for m in all_methods()
        if methods is None or m.name in methods
    ]
    unused = sorted(set(drafters) - {m.name for m in wanted})
    plan = _Plan(model, read(model.model), lengths, environment, read)
    plan.warn_variant()
    if unused:
        plan.warn(f"--drafter {', '.join(unused)} is not used: not among --methods")
    for method in wanted:
        plan.consider(method, drafters.get(method.name), explicit=method.name in named)
    for name in sorted(set(options) - {space.method for space in plan.spaces}):
        plan.warn(f"--speculative-option {name}.* is not used: {name} is not tried")
    plan.warn_unread()
    return tuple(plan.spaces), tuple(plan.skipped), tuple(dict.fromkeys(plan.warnings))


@dataclass
class _Plan:
    """Collects the outcome for one model."""

    model: ResolvedModel
    facts: ModelFacts
    lengths: Sequence[int] | None
    environment: EngineInfo | None
    read: Read
    spaces: list[MethodSpace] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    used: list[ModelFacts] = field(default_factory=list)  # drafters of the spaces

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def warn_variant(self) -> None:
        """A variant is given the drafters of the model that the catalogue lists."""
        entry = self.model.entry
        if entry and entry.drafters and entry.id != self.model.model:
            self.warn(f"{self.model.model} gets the drafters that are known for {entry.id}")

    def warn_unread(self) -> None:
        """Checkpoints nothing is known about, one warning a reason."""
        reasons: dict[str, list[str]] = {}
        for facts in (self.facts, *self.used):
            if facts.unknown:
                reasons.setdefault(facts.unknown, []).append(facts.source)
        for reason, sources in reasons.items():
            self.warn(f"unchecked, because config.json was not read ({reason}): "
                      + ", ".join(dict.fromkeys(sources)))  # fmt: skip

    def consider(self, method: Method, own: str | None, *, explicit: bool) -> None:
        """Add the method's space, or say why not."""
        drafter = own_drafter(method, own) if own else self._catalogued(method)
        drafter_facts = self._drafter_facts(drafter) if drafter else None
        reason = (
            (None if explicit else method.on_request)
            or self._not_native(method, drafter, explicit)
            or method.why_not(self.facts, drafter_facts, carried=self._carried(method))
            or self._unavailable(method, explicit)
        )
        if reason:
            self._refuse(method, reason, explicit, drafter)
            return
        allowed, refused = method.allowed(
            self.lengths or method.default_lengths, self.facts, drafter_facts, self.environment
        )
        self.skipped += [
            Skipped(method=method.name, num_speculative_tokens=n, reason=why)
            for n, why in refused.items()
        ]
        if not allowed:
            reasons = "; ".join(dict.fromkeys(refused.values()))
            self._refuse(method, f"none of the lengths is allowed: {reasons}", explicit, drafter)
            return
        self._warn_about(method, drafter, drafter_facts)
        self._advise(method)
        self.spaces.append(
            MethodSpace(
                method=method.name,
                drafter=drafter.id if drafter else None,
                lengths=allowed,
                parallel=method.parallel,
                live_n=method.live_n,
                next_length=self._next_length(method, drafter_facts, allowed[-1]),
                config=method.base_config(drafter.id if drafter else None),
            )
        )

    def _next_length(self, method: Method, drafter: ModelFacts | None, largest: int) -> int | None:
        """The smallest N above the largest one wanted that nothing known forbids."""
        allowed, _ = method.allowed(
            range(largest + 1, MAX_LENGTH + 1), self.facts, drafter, self.environment
        )
        return allowed[0] if allowed else None

    def _catalogued(self, method: Method) -> DrafterEntry | None:
        known = self.model.drafters(method.name)
        return known[0] if known else None

    def _drafter_facts(self, drafter: DrafterEntry) -> ModelFacts:
        facts = self.read(drafter.id)
        if facts.known:
            return facts
        catalogued = {
            "block_size": drafter.block_size,
            "sample_from_anchor": drafter.sample_from_anchor,
        }
        return facts.model_copy(update=catalogued)

    def _carried(self, method: Method) -> bool:
        """Whether the catalogue says that the model's own checkpoint drafts in this way."""
        entry = self.model.entry
        return bool(entry and method.name in entry.native and not self.facts.known)

    def _not_native(
        self, method: Method, drafter: DrafterEntry | None, explicit: bool
    ) -> str | None:
        """The catalogue's word on native MTP counts only where config.json cannot be read."""
        entry = self.model.entry
        if explicit or drafter or not method.native or not entry:
            return None
        if self.facts.known or method.name in entry.native:
            return None
        return f"the catalogue lists no {method.name} layers in {entry.id}"

    def _unavailable(self, method: Method, explicit: bool) -> str | None:
        if self.environment is not None or not method.package:
            return method.unavailable(self.environment)
        unsure = f"whether {method.package} is installed beside vLLM is not known"
        if explicit:
            self.warn(f"{method.name}: {unsure}")
            return None
        return f"{unsure}; name it with --methods to try"

    def _refuse(
        self, method: Method, reason: str, explicit: bool, drafter: DrafterEntry | None
    ) -> None:
        lacks = drafter is None and reason.startswith("no drafter")
        if explicit:
            message = f"{method.name} cannot be used with {self.model.model}: {reason}"
            hint = f"name one with --drafter {method.name}=ID_OR_PATH" if lacks else None
            raise ConfigurationError(message, hint)
        advice = "; name one with --drafter METHOD=ID_OR_PATH" if lacks else ""
        self.skipped.append(Skipped(method=method.name, reason=reason + advice))

    def _advise(self, method: Method) -> None:
        """Say what published commands for ROCm set for this method and this run does not."""
        entry, engine = self.model.entry, self.environment
        if not entry or not engine or engine.platform != "rocm":
            return
        for key, value in entry.on_rocm.get(method.name, {}).items():
            if key not in method.config:
                option = f"--speculative-option {method.name}.{key}={value}"
                self.warn(f"{method.name}: the published command for ROCm adds {option}")

    def _warn_about(
        self, method: Method, drafter: DrafterEntry | None, facts: ModelFacts | None
    ) -> None:
        if drafter is None or facts is None:
            return
        self.used.append(facts)
        if drafter.checked == "unverified":
            self.warn(f"{method.name}: that {drafter.id} fits {self.model.model} is unverified")
        targets = {self.model.model, *((self.model.entry.id,) if self.model.entry else ())}
        if not self.model.local and all(other_verifier(facts, name) for name in targets):
            self.warn(f"{drafter.id} says that it was made for {facts.verifier}")
        if method.name in BLOCKS and not (facts.block_size or facts.speculative_tokens):
            self.warn(f"{drafter.id}: block size unknown; acceptance falls for N above it")
        short, long = facts.max_position_embeddings, self.facts.max_position_embeddings
        if short and long and short < long:
            self.warn(f"{drafter.id} was trained to {short} positions, {self.model.name} to {long}")
