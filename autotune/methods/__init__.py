"""Drafting methods: one file a method, each defining `METHOD`; found by scanning this folder.

A method knows what it needs, which N (num_speculative_tokens) it allows for a model and a drafter,
and how to write vLLM's speculative_config. Rules are read from vLLM 0.32's source.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.errors import ConfigurationError
from autotune.machine.environment import EngineInfo
from autotune.methods._knobs import OTHER_VOCABULARY, Knob, Version
from autotune.methods._options import check_options, clash, dotted, vllm_version
from autotune.methods._rules import other_vocabulary
from autotune.models.facts import ModelFacts

# What vLLM lists as a speculative method and we do not offer, and why (tests/test_methods.py).
NOT_OFFERED = {
    "custom_class": "loads the user's own proposer class: nothing to tune from outside",
    "extract_hidden_states": "exports hidden states for training; it drafts nothing",
}
# vLLM takes a draft path that contains one of these for that method, whatever `method` says,
# unless `method` is one of the first four itself (config/speculative.py, __post_init__).
PATH_TRAPS = ("eagle-", "eagle3", "dflash", "dspark")
PATH_SAFE = ("eagle", "eagle3", "dflash", "dspark", "ngram", "ngram_gpu", "suffix")

Check = Callable[[ModelFacts, ModelFacts | None], str | None]
EngineRule = Callable[[int, Version, ModelFacts], str | None]
LengthRule = Callable[[int, ModelFacts, ModelFacts | None], str | None]


def _nothing(*_: object) -> None:
    return None


@dataclass(frozen=True)
class Method:
    """One way of drafting. `check` and `length_rule` return a reason against, or None."""

    name: str  # ours: "gemma4_mtp"
    vllm_method: str  # what speculative_config's "method" takes: "mtp"
    summary: str
    needs: str  # what a user must have, in a few words
    allows: str  # the rule for N, in a few words
    default_lengths: tuple[int, ...]
    needs_drafter: bool
    parallel: bool = False  # all tokens of a draft in one pass
    nested: bool = True  # a shorter draft is the beginning of a longer one from the same text
    live_n: bool = True  # N can be switched on a running engine
    # Drafters (classes) of vLLM's V2 model runner that draft the N asked for; all others of that
    # runner always draft the largest N and cut. Read in vLLM 0.32, v1/worker/gpu/spec_decode.
    live_on_v2: tuple[str, ...] = ()
    live_note: str = "switched live on vLLM 0.32, CPU"
    takes_drafter: bool = True  # an optional drafter may be named where none is needed
    config: Mapping[str, Any] = field(default_factory=dict)  # fixed parts of speculative_config
    knobs: tuple[Knob, ...] = ()  # further keys of speculative_config that are worth tuning
    since: Version | None = None  # first minor version of vLLM that has it; None: 0.19 did
    on_request: str | None = None  # why it is tried only where the user names it
    same_vocabulary: bool = False  # vLLM compares vocabularies, unless told that they differ
    package: str | None = None  # module that the engine's interpreter must have
    install: str | None = None  # how to get it
    not_on_cpu: str | None = None  # why it cannot run on a CPU engine
    refused: str | None = None  # why vLLM never runs it
    inside: Callable[[ModelFacts], bool] = lambda _: False  # the target carries the drafter
    check: Check = _nothing
    length_rule: LengthRule = _nothing
    engine_rule: EngineRule = _nothing  # what single versions of vLLM refuse beyond that

    @property
    def native(self) -> bool:
        """Drafts with weights of the model's own checkpoint, unless a drafter is named."""
        return self.takes_drafter and not self.needs_drafter

    def why_not(
        self, model: ModelFacts, drafter: ModelFacts | None, *, carried: bool = False
    ) -> str | None:
        """Why the method cannot work for this pair; None if nothing known speaks against it.

        `carried`: the model's checkpoint is known to carry the drafter, whatever its facts say.
        """
        inside = carried or self.inside(model)
        reason = self.refused or self.check(model, drafter)
        if not reason and self.needs_drafter and drafter is None and not inside:
            reason = f"no drafter is known for {model.source}"
        if not reason and self.same_vocabulary and not self.config.get(OTHER_VOCABULARY.name):
            reason = other_vocabulary(model, drafter)
        return reason or self._misread(model, drafter)

    def _misread(self, model: ModelFacts, drafter: ModelFacts | None) -> str | None:
        if self.vllm_method in PATH_SAFE:
            return None
        path = (drafter or model).source
        trap = next((trap for trap in PATH_TRAPS if trap in path.lower()), None)
        return trap and (
            f"vLLM takes {path} for another method because its name contains {trap!r}; "
            "give the folder a neutral name"
        )

    def unavailable(self, engine: EngineInfo | None) -> str | None:
        """Why this engine cannot run the method; None if it can, or if the engine is unknown."""
        if engine is None:
            return None
        if self.since and engine.vllm and vllm_version(engine.vllm) < self.since:
            return f"vLLM {engine.vllm} does not have it yet ({dotted(self.since)} does)"
        if self.not_on_cpu and engine.platform == "cpu":
            return self.not_on_cpu
        if self.package and self.package not in engine.packages:
            return f"{self.package} is not installed beside vLLM ({self.install})"
        return None

    def allowed(
        self,
        lengths: Iterable[int],
        model: ModelFacts,
        drafter: ModelFacts | None,
        engine: EngineInfo | None = None,
    ) -> tuple[tuple[int, ...], dict[int, str]]:
        """The lengths that may be tried, ascending, and for each other one the reason."""
        version = vllm_version((engine and engine.vllm) or "")
        reasons = {
            n: self.length_rule(n, model, drafter) or self.engine_rule(n, version, drafter or model)
            for n in sorted(set(lengths))
        }
        refused = {n: reason for n, reason in reasons.items() if reason}
        return tuple(n for n in reasons if n not in refused), refused

    def with_options(self, options: Mapping[str, Any], engine: EngineInfo | None = None) -> Method:
        """The method with these keys of speculative_config set.

        Raises ConfigurationError for a key that is no knob of the method, a value that cannot
        be, and an engine that would refuse or ignore it.
        """
        check_options(self.name, self.knobs, options, engine)
        config = {**self.config, **options}
        if reason := clash(config):
            raise ConfigurationError(f"{self.name}: {reason}")
        return replace(self, config=config)

    def base_config(self, drafter: str | None) -> dict[str, Any]:
        """speculative_config without num_speculative_tokens; the method is always named."""
        model = {"model": drafter} if drafter else {}
        return {"method": self.vllm_method, **model, **self.config}

    def speculative_config(self, n: int, drafter: str | None = None) -> dict[str, Any]:
        """What `vllm serve --speculative-config` takes for N drafted tokens."""
        return {**self.base_config(drafter), "num_speculative_tokens": n}


@functools.cache
def all_methods() -> tuple[Method, ...]:
    """Every method of this folder, by name."""
    names = [info.name for info in pkgutil.iter_modules(__path__) if info.name[0] != "_"]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in sorted(names)]
    return tuple(module.METHOD for module in modules)


def get_method(name: str) -> Method:
    """The method of that catalogue name. Raises ConfigurationError for an unknown one."""
    methods = {method.name: method for method in all_methods()}
    if name in methods:
        return methods[name]
    if name in NOT_OFFERED:
        raise ConfigurationError(f"method {name!r} is not offered: {NOT_OFFERED[name]}")
    close = difflib.get_close_matches(name.lower().replace("-", "_"), methods, n=2)
    if name.endswith("_mtp"):
        close = ["mtp"]  # vLLM's own old names for it
    known = f"known methods: {', '.join(methods)}"
    hint = f"did you mean {' or '.join(close)}? {known}" if close else known
    raise ConfigurationError(f"unknown method {name!r}", hint=hint)
