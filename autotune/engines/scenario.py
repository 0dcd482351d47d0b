"""Scenarios of the simulator: a machine, a model, its drafters, and the true answer.

A scenario is JSON (`spectune.scenario/1`); the packaged ones are in autotune/scenarios.
"""

from __future__ import annotations

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from autotune.engines.drafters import SimulatedMethod
from autotune.engines.roofline import (
    GPUS,
    Machine,
    ModelShape,
    NotNegative,
    Positive,
    Share,
    forward_seconds,
)
from autotune.errors import ConfigurationError
from autotune.records import BASELINE, Record, Tier, scheduled_length

SCHEMA = "spectune.scenario/1"
DEFAULT = "dense-chat"


class Tile(Record):
    """Steps that verify this many tokens per request (N + 1) take `factor` times as long."""

    verify_tokens: int = Field(ge=1)
    factor: Positive


class Quirks(Record):
    """What a smooth model does not know: tile sizes, and the end of the captured graphs.

    Above `capture_limit_tokens` tokens a step, verification takes `capture_factor` times as long.
    Where N follows the batch size, it takes `schedule_factor` times as long at every batch size,
    and `threshold_factor` times at the last of one tier and the first of the next.
    """

    tiles: tuple[Tile, ...] = ()
    capture_limit_tokens: int | None = Field(default=None, ge=1)
    capture_factor: Positive = 1.0
    schedule_factor: Positive = 1.0
    threshold_factor: Positive = 1.0

    def scheduled(self, requests: int, tiers: tuple[Tier, ...]) -> float:
        """What a schedule adds to a step of `requests` requests."""
        thresholds = {last for _, last, _ in tiers[:-1]}
        beside = thresholds | {last + 1 for last in thresholds}
        return self.schedule_factor * (self.threshold_factor if requests in beside else 1.0)

    def factor(self, requests: int, verify_tokens: int) -> float:
        factor = math.prod(t.factor for t in self.tiles if t.verify_tokens == verify_tokens)
        limit = self.capture_limit_tokens
        if limit is not None and requests * verify_tokens > limit:
            factor *= self.capture_factor
        return factor


class Drift(Record):
    """How the machine's speed changes from window to window.

    sinusoid: 1 + amplitude sin(2 pi window / period); linear: reaches 1 + amplitude after one
    period and stays there.
    """

    kind: Literal["sinusoid", "linear"]
    amplitude: float = Field(gt=-1, lt=1)
    period_windows: float = Field(gt=0)

    def speed(self, window: int) -> float:
        phase = window / self.period_windows
        if self.kind == "linear":
            return 1 + self.amplitude * min(phase, 1.0)
        return 1 + self.amplitude * math.sin(2 * math.pi * phase)


class Fault(Record):
    """What goes wrong with one method ("none" for the baseline)."""

    start_error: str | None = None  # the engine's last words
    dies_after: int | None = Field(default=None, ge=0)  # windows of one session
    live_switch_ignored: bool = False  # N stays at the largest one
    no_drafts: bool = False  # speculation is on, nothing is drafted

    @property
    def usable(self) -> bool:
        """Whether a static start of the method can serve."""
        return self.start_error is None and self.dies_after is None and not self.no_drafts


class StepSplit(Record):
    """Noise-free seconds of one decode step."""

    draft_seconds: float
    verify_seconds: float
    overhead_seconds: float

    @property
    def seconds(self) -> float:
        return self.draft_seconds + self.verify_seconds + self.overhead_seconds


class Scenario(Record):
    """A simulated world; everything that is random is drawn by the engine."""

    schema_: Literal["spectune.scenario/1"] = Field(default="spectune.scenario/1", alias="schema")
    model_config = ConfigDict(populate_by_name=True)
    name: str = Field(min_length=1)
    description: str = ""
    workload: str = "simulated"
    gpu: str
    gpu_count: int = Field(default=1, ge=1)
    compute_efficiency: Share = 0.5
    bandwidth_efficiency: Share = 0.7
    model: ModelShape
    context_tokens: int = Field(default=1024, ge=0)
    step_overhead_seconds: NotNegative = 0.001
    methods: tuple[SimulatedMethod, ...] = Field(min_length=1)
    concurrencies: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    noise_sd: NotNegative = 0.0  # of the log throughput, independent per window
    block_sd: NotNegative = 0.0  # of the log throughput, common to all arms on one prompt block
    drift: Drift | None = None
    quirks: Quirks = Quirks()
    faults: dict[str, Fault] = Field(default_factory=dict)
    start_seconds: NotNegative = 120.0

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        if self.gpu not in GPUS:
            raise ValueError(f"unknown gpu {self.gpu!r}; known: {', '.join(GPUS)}")
        names = [method.method for method in self.methods]
        for what, values in (("method", names), ("concurrency", list(self.concurrencies))):
            if len(set(values)) < len(values):
                raise ValueError(f"the same {what} twice")
        if unknown := self.faults.keys() - {BASELINE, *names}:
            raise ValueError(f"faults of methods that do not exist: {', '.join(sorted(unknown))}")
        weights = self.model.parameters_billion * self.model.bytes_per_weight
        room = GPUS[self.gpu].memory_gigabytes * self.gpu_count
        if weights > room:
            raise ValueError(f"{weights:.0f} GB of weights do not fit into {room:.0f} GB")
        return self

    @property
    def machine(self) -> Machine:
        return Machine(
            gpu=GPUS[self.gpu],
            gpu_count=self.gpu_count,
            compute_efficiency=self.compute_efficiency,
            bandwidth_efficiency=self.bandwidth_efficiency,
        )

    def method(self, name: str) -> SimulatedMethod | None:
        """The method called `name`; None for the baseline.

        Raises ConfigurationError for a name that is not in the scenario.
        """
        if name == BASELINE:
            return None
        for method in self.methods:
            if method.method == name:
                return method
        known = ", ".join(method.method for method in self.methods)
        raise ConfigurationError(f"{self.name} has no method {name!r}", hint=f"it has: {known}")

    def acceptance_rates(self, method: str, n: int) -> tuple[float, ...]:
        drafter = self.method(method)
        return drafter.acceptance.at(n) if drafter else ()

    def step(self, method: str, n: int, requests: int, tiers: tuple[Tier, ...] = ()) -> StepSplit:
        """One noise-free decode step of `requests` requests with n drafted tokens each.

        `tiers` is the schedule of the engine, whose own N for `requests` is not looked up.
        """
        drafter = self.method(method)
        verify = forward_seconds(self.model, self.machine, requests, n + 1, self.context_tokens)
        return StepSplit(
            draft_seconds=drafter.drafting.seconds(self.machine, n, requests) if drafter else 0.0,
            verify_seconds=verify
            * self.quirks.factor(requests, n + 1)
            * (self.quirks.scheduled(requests, tiers) if tiers else 1.0),
            overhead_seconds=self.step_overhead_seconds,
        )

    def truth(self, method: str, n: int, concurrency: int) -> float:
        """Noise-free output tokens per second: b (1 + sum p_i(N)) / T(N, b); faults ignored."""
        tokens = concurrency * (1 + sum(self.acceptance_rates(method, n)))
        return tokens / self.step(method, n, concurrency).seconds

    def schedule_truth(self, method: str, tiers: tuple[Tier, ...], concurrency: int) -> float:
        """`truth` of an engine whose N follows the batch size."""
        n = scheduled_length(tiers, concurrency)
        tokens = concurrency * (1 + sum(self.acceptance_rates(method, n)))
        return tokens / self.step(method, n, concurrency, tiers).seconds

    def ttft_seconds(self) -> float:
        """From a request's arrival to its first token: one pass over its context, nothing else."""
        tokens = max(1, self.context_tokens)
        prefill = forward_seconds(self.model, self.machine, 1, tokens, self.context_tokens / 2)
        return prefill + self.step_overhead_seconds

    def best(self, concurrency: int) -> tuple[str, int, float]:
        """(method, N, throughput) of the best candidate that works, baseline included.

        Of exactly equal candidates the smaller N.
        """
        candidates = [(BASELINE, 0)] + [
            (method.method, n)
            for method in self.methods
            if self.faults.get(method.method, Fault()).usable
            for n in method.lengths
        ]
        rated = [(name, n, self.truth(name, n, concurrency)) for name, n in candidates]
        return max(rated, key=lambda candidate: (candidate[2], -candidate[1]))


def packaged_scenarios() -> tuple[str, ...]:
    """Names of the scenarios that come with the package."""
    folder = files("autotune") / "scenarios"
    names = [entry.name for entry in folder.iterdir() if entry.name.endswith(".json")]
    return tuple(sorted(name.removesuffix(".json") for name in names))


def load_scenario(name_or_path: str | None) -> Scenario:
    """A packaged scenario by name, or one from a JSON file; None: the default one.

    Raises ConfigurationError when there is no such scenario or when it is not well formed.
    """
    name = name_or_path or DEFAULT
    if name in packaged_scenarios():
        text = (files("autotune") / "scenarios" / f"{name}.json").read_text(encoding="utf-8")
    else:
        text = _read(name)
    try:
        found = json.loads(text).get("schema")
    except (ValueError, AttributeError) as error:
        raise ConfigurationError(f"scenario {name} is not a JSON object: {error}") from error
    if found != SCHEMA:
        raise ConfigurationError(
            f"scenario {name} has schema {found!r}, but {SCHEMA!r} is what can be read"
        )
    try:
        return Scenario.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigurationError(
            f"scenario {name}: {place + ': ' if place else ''}{first['msg']}"
        ) from error


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"no scenario called {path!r} and no such file can be read",
            hint=f"packaged scenarios: {', '.join(packaged_scenarios())}; or a JSON file",
        ) from error
