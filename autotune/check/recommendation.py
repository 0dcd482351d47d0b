"""A recommendation as one side of a check.

It is read leniently: only the keys of the contract are needed, others may come.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from autotune import stats
from autotune.check.records import CheckRow, CheckSide, Figure
from autotune.records import BASELINE, PromptDrafts

MEASURED = ("confirmed", "probed")
ROUNDING = 0.005  # of figures that were written with two digits
BROKEN_LENGTH, BROKEN_FIRST = 1.1, 0.1  # a drafter below either does not work
# beyond these no measurement lies, and arithmetic overflows
Positive = Annotated[float, Field(gt=1e-9, lt=1e12)]
Confidence = Annotated[float, Field(ge=0.5, lt=1)]
Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


class Ratio(Lenient):
    value: Positive
    low: Positive
    high: Positive
    confidence: Confidence

    @model_validator(mode="after")
    def _around_the_value(self) -> Ratio:
        if not self.low * (1 - ROUNDING) <= self.value <= self.high * (1 + ROUNDING):
            raise ValueError(f"{self.value} is not within [{self.low}, {self.high}]")
        return self


class Bounds(Lenient):
    """Of a rate: its value stands elsewhere."""

    low: Rate
    high: Rate
    confidence: Confidence


class Work(Lenient):
    name: str
    sha256: str | None = None
    num_prompts: int | None = None
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    max_tokens: int | None = None


class Choice(Lenient):
    concurrency: int | None = None
    method: str
    num_speculative_tokens: int
    speedup: Ratio | None = None


class Candidate(Lenient):
    method: str
    num_speculative_tokens: int | None = None
    concurrency: int | None = None
    status: str
    output_tokens_per_second: Positive | None = None
    speedup: Ratio | None = None
    acceptance_length: float | None = Field(default=None, ge=1, lt=1e12, allow_inf_nan=False)
    acceptance_length_interval: Ratio | None = None
    per_position_acceptance_rates: tuple[Rate, ...] | None = None
    per_position_acceptance_intervals: tuple[Bounds, ...] | None = None
    tpot_p50_seconds: Positive | None = None
    ttft_p50_seconds: Positive | None = None
    speedup_freedom: int | None = Field(default=None, ge=1)
    prompts: tuple[PromptDrafts, ...] = ()


class Baseline(Lenient):
    concurrency: int | None = None
    output_tokens_per_second: Positive


class Document(Lenient):
    """What a check reads of `spectune.recommendation/1`."""

    model: str
    workload: Work
    environment: dict[str, Any] = Field(default_factory=dict)
    engine: str | None = None
    decision: str
    method: str
    num_speculative_tokens: int
    speculative_config: dict[str, Any] | None = None
    per_concurrency: tuple[Choice, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    baseline: tuple[Baseline, ...] = ()
    engine_args: tuple[str, ...] | None = None
    warnings: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_of_each_load(self) -> Document:
        for place, rows in (("baseline", self.baseline), ("per_concurrency", self.per_concurrency)):
            loads = [row.concurrency for row in rows]
            if twice := {load for load in loads if loads.count(load) > 1}:
                raise ValueError(f"{place}: concurrency {twice.pop()} stands there twice")
        return self

    @model_validator(mode="after")
    def _choices_are_candidates(self) -> Document:
        """Whatever a choice says of itself, its candidate says too."""
        listed = {(c.method, c.num_speculative_tokens, c.concurrency): c for c in self.candidates}
        for c in self.per_concurrency:
            candidate = listed.get((c.method, c.num_speculative_tokens, c.concurrency))
            if candidate is None or c.method == BASELINE:
                continue
            named = f"{c.method} N={c.num_speculative_tokens}{at(c.concurrency)}"
            if candidate.status not in MEASURED:
                raise ValueError(f"{named} is chosen, but as a candidate {candidate.status}")
            ratios = [r.value for r in (c.speedup, candidate.speedup) if r is not None]
            if len(ratios) == 2 and not math.isclose(*ratios, rel_tol=2 * ROUNDING):
                raise ValueError(f"{named} is {ratios[0]}x, but as a candidate {ratios[1]}x")
        return self


def recommended_side(document: Any, source: str, noise: float = stats.ASSUMED_NOISE) -> CheckSide:
    """A recommendation as one side of a check; raises pydantic's ValidationError."""
    d = Document.model_validate(document)
    assumed = any("carry no spread of their own" in warning for warning in d.warnings)
    base = {row.concurrency: row.output_tokens_per_second for row in d.baseline}
    chosen = {c.concurrency: c for c in d.per_concurrency}
    rows = [_baseline_row(load, rate, chosen, noise) for load, rate in base.items()]
    rows += [
        _candidate_row(c, base.get(c.concurrency), chosen, noise, assumed)
        for c in d.candidates
        if c.status in MEASURED and c.num_speculative_tokens is not None
    ]
    rows += _choices_alone(d, rows, noise, assumed)
    return CheckSide(
        source=source,
        kind="recommendation",
        model=d.model,
        workload=d.workload.name,
        workload_sha256=d.workload.sha256,
        temperature=d.workload.temperature,
        max_tokens=d.workload.max_tokens,
        num_prompts=d.workload.num_prompts,
        engine=d.engine,
        environment=d.environment,
        engine_args=d.engine_args,
        speculative_config=d.speculative_config,
        method=d.method,
        num_speculative_tokens=d.num_speculative_tokens,
        rows=tuple(rows),
        per_load=True,
        faults=faults(rows),
    )


def faults(rows: list[CheckRow]) -> tuple[str, ...]:
    """What is wrong with the chosen configurations: such figures are no golden values."""
    found = []
    for row in rows:
        if not row.chosen or row.method == BASELINE:
            continue
        what = f"{row.method} N={row.num_speculative_tokens}{at(row.concurrency)}"
        length, first = row.acceptance_length, row.position_rates[:1]
        if length is not None and length.value < BROKEN_LENGTH:
            found.append(f"{what}: acceptance length {length.value:.2f}, the drafter is broken")
        elif first and first[0].value < BROKEN_FIRST:
            found.append(
                f"{what}: {first[0].value:.1%} of first drafted tokens accepted, "
                "the drafter is broken"
            )
        if row.speedup is not None and row.speedup.value * math.exp(2 * row.speedup.sd) < 1:
            found.append(f"{what}: {row.speedup.value:.2f}x, slower than no speculation")
    return tuple(found)


def at(load: int | None) -> str:
    return "" if load is None else f" at concurrency {load}"


def _baseline_row(
    load: int | None, rate: float, chosen: dict[int | None, Choice], noise: float
) -> CheckRow:
    choice = chosen.get(load)
    return CheckRow(
        concurrency=load,
        method=BASELINE,
        num_speculative_tokens=0,
        chosen=choice is not None and choice.method == BASELINE,
        speedup=Figure(value=1.0, sd=0.0),
        throughput=Figure(value=rate, sd=noise, assumed=True),
    )


def _candidate_row(
    c: Candidate,
    base: float | None,
    chosen: dict[int | None, Choice],
    noise: float,
    assumed: bool,
) -> CheckRow:
    choice, n = chosen.get(c.concurrency), c.num_speculative_tokens or 0
    rate = c.output_tokens_per_second
    speedup = None
    if c.speedup is not None:
        speedup = from_ratio(
            c.speedup, noise * math.sqrt(2) if assumed else None, c.speedup_freedom
        )
    elif rate is not None and base is not None:
        speedup = Figure(value=rate / base, sd=noise * math.sqrt(2), assumed=True)
    return CheckRow(
        concurrency=c.concurrency,
        method=c.method,
        num_speculative_tokens=n,
        chosen=choice is not None
        and (choice.method, choice.num_speculative_tokens) == (c.method, n),
        speedup=speedup,
        throughput=single(rate, noise),
        acceptance_length=_length(c, noise),
        prompts=c.prompts,
        position_rates=_rates(c, noise),
        latencies={
            name: Figure(value=value, sd=noise, assumed=True)
            for name, value in (("tpot_p50", c.tpot_p50_seconds), ("ttft_p50", c.ttft_p50_seconds))
            if value is not None
        },
    )


def _choices_alone(
    d: Document, rows: list[CheckRow], noise: float, assumed: bool
) -> list[CheckRow]:
    """Choices whose candidates the document does not list: their speed-ups are all there is."""
    there = {row.key for row in rows}
    return [
        CheckRow(
            concurrency=c.concurrency,
            method=c.method,
            num_speculative_tokens=c.num_speculative_tokens,
            chosen=True,
            speedup=from_ratio(c.speedup, noise * math.sqrt(2) if assumed else None),
        )
        for c in d.per_concurrency
        if c.speedup is not None
        and c.method != BASELINE
        and (c.method, c.num_speculative_tokens, c.concurrency) not in there
    ]


def from_ratio(
    ratio: Ratio, assumed_sd: float | None = None, freedom: float | None = None
) -> Figure:
    """Standard error of the logarithm from an interval."""
    if assumed_sd is not None:
        return Figure(value=ratio.value, sd=assumed_sd, assumed=True)
    z = _critical(ratio.confidence, freedom)
    sd = abs(math.log(ratio.high / ratio.low)) / (2 * z)
    return Figure(value=ratio.value, sd=sd, freedom=freedom)


def _critical(confidence: float, freedom: float | None) -> float:
    """Standard errors to either side of an interval: Student's t; without `freedom` normal."""
    from scipy.stats import norm, t

    tail = (1 + confidence) / 2
    return float(norm.ppf(tail) if freedom is None else t.ppf(tail, freedom))


def single(value: float | None, noise: float) -> Figure | None:
    """A figure without a spread of its own."""
    return None if value is None else Figure(value=value, sd=noise, assumed=True)


def _length(c: Candidate, noise: float) -> Figure | None:
    if c.acceptance_length_interval is not None:
        return from_ratio(c.acceptance_length_interval, freedom=_freedom(c))
    return single(c.acceptance_length, noise)


def _rates(c: Candidate, noise: float) -> tuple[Figure, ...]:
    rates = c.per_position_acceptance_rates or ()
    intervals = c.per_position_acceptance_intervals or ()
    if len(intervals) != len(rates):
        return tuple(Figure(value=rate, sd=noise * rate, assumed=True) for rate in rates)
    found = []
    for rate, interval in zip(rates, intervals, strict=True):
        sd = (interval.high - interval.low) / (2 * _critical(interval.confidence, _freedom(c)))
        found.append(Figure(value=rate, sd=sd, freedom=_freedom(c)))
    return tuple(found)


def _freedom(c: Candidate) -> float | None:
    """Of the intervals of acceptance, which are Student's t over prompts; None: not told."""
    return float(len(c.prompts) - 1) if len(c.prompts) > 1 else None
