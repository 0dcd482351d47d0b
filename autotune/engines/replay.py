"""Plays a recording back in place of an engine: recorded points only, never interpolated."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from autotune.engines import Capabilities, EngineOptions, Offer, Progress
from autotune.engines.virtual import Calls, describe, require_noise, require_switch
from autotune.errors import (
    ConfigurationError,
    EngineDiedError,
    EngineStartError,
    UnusableMeasurementError,
)
from autotune.recording import RecordedPoint, Recording, load_recording
from autotune.records import (
    BASELINE,
    Arm,
    Block,
    Environment,
    MethodSpace,
    Record,
    Skipped,
    Target,
    Window,
)

PARALLEL_DRAFTERS = ("dflash", "dspark", "pard", "peagle")
TYPICAL_START_SECONDS = 180.0  # a recording does not tell; a vLLM start takes about this long


class Answer(Record):
    """What the recording says about one candidate at one load, repeats averaged."""

    output_tokens_per_second: float
    acceptance_length: float | None = None
    per_position_acceptance_rates: tuple[float, ...] | None = None


Table = dict[tuple[str, int, int | None], Answer]


class ReplaySession:
    """One pretended engine start."""

    def __init__(
        self, table: Table, arm: Arm, capabilities: Capabilities, noise: float, seed: int
    ) -> None:
        self.capabilities = capabilities
        self.start_seconds = 0.0
        self._table = table
        self._arm = arm
        self._n = 0 if arm.method == BASELINE else arm.num_speculative_tokens
        self._noise = noise
        self._calls = Calls(seed, arm)
        self._closed = False

    def set_num_speculative_tokens(self, n: int) -> None:
        """Switch N; raises LiveSwitchError on a static start and outside 0..the arm's N."""
        require_switch(self._arm, n, self.capabilities.live_n)
        self._n = n

    def run(self, block: Block) -> Window:
        """The recorded point, times seeded noise where noise was asked for.

        Raises UnusableMeasurementError, which names the recorded N, for a point that is not there.
        """
        if self._closed:
            raise EngineDiedError("this session is closed")
        answer = self._table.get((self._arm.method, self._n, block.concurrency))
        if answer is None:
            raise UnusableMeasurementError(self._missing(block.concurrency))
        return Window(
            method=self._arm.method,
            num_speculative_tokens=self._n,
            live=self._arm.live,
            block=block.key,
            concurrency=block.concurrency,
            output_tokens_per_second=answer.output_tokens_per_second * self._factor(block),
            acceptance_length=answer.acceptance_length,
            per_position_acceptance_rates=answer.per_position_acceptance_rates,
        )

    def close(self) -> None:
        self._closed = True

    def _factor(self, block: Block) -> float:
        """exp(noise * z): always positive, relative standard deviation about `noise`."""
        if not self._noise:
            return 1.0
        return math.exp(self._noise * self._calls.generator(self._n, block).standard_normal())

    def _missing(self, concurrency: int | None) -> str:
        method = self._arm.method
        load = "" if concurrency is None else f" at concurrency {concurrency}"
        lengths = sorted(n for m, n, c in self._table if (m, c) == (method, concurrency))
        if lengths and method != BASELINE:
            known = ", ".join(map(str, lengths))
            return f"N={self._n} of {method} is not recorded{load}; recorded N: {known}"
        loads = {str(c) if c else "not stated" for m, _, c in self._table if m == method}
        known = ", ".join(sorted(loads))
        return f"{describe(self._arm)} is not recorded{load}; recorded concurrency: {known}"


class ReplayEngine:
    """Opens sessions on one recording."""

    name = "replay"

    def __init__(self, options: EngineOptions) -> None:
        if options.recording is None:
            raise ConfigurationError(
                "the replay engine needs a recording", hint="name one with --recording FILE"
            )
        self.recording = load_recording(options.recording)
        self._file = Path(options.recording).name
        self._noise = require_noise(options.noise)
        self._seed = options.seed
        self._live_n = options.live_n
        self._table = _table(self.recording)

    def open(self, target: Target, arm: Arm, progress: Progress) -> ReplaySession:
        """Raises EngineStartError for a method that is not in the recording."""
        if arm.method not in (BASELINE, *self.recording.methods):
            raise EngineStartError(
                f"{self._file} has no method {arm.method!r}",
                hint=f"recorded methods: {', '.join(self.recording.methods) or 'none'}",
            )
        capabilities = Capabilities(
            live_n=self._live_n and arm.live and arm.method != BASELINE,
            step_timing=False,
            counters=False,
            outputs=False,
            warmup=False,
        )
        return ReplaySession(self._table, arm, capabilities, self._noise, self._seed)

    def command(self, target: Target, arm: Arm) -> str:
        """A line for people: nothing is started."""
        return f"replay {self._file} ({target.model}): {describe(arm)}"

    def why_not_live(self, target: Target, space: MethodSpace) -> None:
        """Nothing beyond what `MethodSpace.live_n` says."""

    def estimated_start_seconds(self) -> float:
        """What a start of the recorded engine would have cost, so that a search spares starts."""
        return TYPICAL_START_SECONDS

    def offer(self) -> Offer:
        """The recorded methods and N at the loads that have a baseline."""
        loads = self.recording.concurrencies
        points = [p for p in self.recording.points if p.concurrency in loads]
        return Offer(
            model=self.recording.model,
            workload=self.recording.workload,
            environment=_environment(self.recording),
            spaces=tuple(
                self._space(method, points)
                for method in self.recording.methods
                if any(point.method == method for point in points)
            ),
            concurrencies=loads,
            skipped=tuple(
                Skipped(
                    method=point.method,
                    num_speculative_tokens=point.num_speculative_tokens,
                    reason=f"no baseline is recorded at concurrency {point.concurrency}",
                )
                for point in self.recording.points
                if point.concurrency not in loads
            ),
            repeats=self._noise > 0,
            latencies=False,
            schedules=False,
        )

    def identity(self) -> dict[str, Any]:
        return {"recording": self.recording.sha256, "noise": self._noise, "seed": self._seed}

    def _space(self, method: str, points: Sequence[RecordedPoint]) -> MethodSpace:
        return MethodSpace(
            method=method,
            lengths=tuple(sorted({p.num_speculative_tokens for p in points if p.method == method})),
            parallel=method.startswith(PARALLEL_DRAFTERS),
            live_n=self._live_n,
        )


def _table(recording: Recording) -> Table:
    """One answer per (method, N, concurrency); the baseline is N=0 of method "none"."""
    table: Table = {}
    for load in recording.concurrencies:
        rates = [b.output_tokens_per_second for b in recording.baseline if b.concurrency == load]
        table[BASELINE, 0, load] = Answer(output_tokens_per_second=fmean(rates))
    repeats: dict[tuple[str, int, int | None], list[RecordedPoint]] = {}
    for point in recording.points:
        key = (point.method, point.num_speculative_tokens, point.concurrency)
        repeats.setdefault(key, []).append(point)
    return table | {key: _mean(points) for key, points in repeats.items()}


def _mean(points: list[RecordedPoint]) -> Answer:
    """Mean of repeated measurements of one point."""
    vectors = [p.per_position_acceptance for p in points if p.per_position_acceptance]
    shortest = min(map(len, vectors), default=0)
    rates = tuple(fmean(vector[i] for vector in vectors) for i in range(shortest))
    lengths = [p.mean_acceptance_length for p in points if p.mean_acceptance_length is not None]
    if not lengths and shortest == points[0].num_speculative_tokens:
        lengths = [1 + sum(rates)]  # an identity when every position is known
    return Answer(
        output_tokens_per_second=fmean(p.output_tokens_per_second for p in points),
        acceptance_length=fmean(lengths) if lengths else None,
        per_position_acceptance_rates=rates or None,
    )


def _environment(recording: Recording) -> Environment:
    """Split "2x MI300X TP2" and "vLLM 0.23.1, ROCm 7.2"; what is "unknown" becomes None."""
    hardware = _stated(recording.hardware)
    counted = re.fullmatch(r"(\d+)x (.+)", hardware or "")
    parts = [part.strip() for part in (recording.engine_version or "").split(",")]
    versions = [re.sub(r"^vLLM ?(?=\d|$)", "", p) for p in parts if p.startswith("vLLM")]
    others = [part for part in parts if _stated(part) and not part.startswith("vLLM")]
    return Environment(
        gpu=counted[2] if counted else hardware,
        gpu_count=int(counted[1]) if counted else None,
        vllm=versions[0] or None if versions else None,
        runtime=", ".join(others) or None,
    )


def _stated(text: str | None) -> str | None:
    return None if text in (None, "", "unknown") else text


ENGINE = ReplayEngine
