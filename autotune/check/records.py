"""What a check compares and what it says: two sides, verdicts, the document `spectune.check/1`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from autotune.records import Cost, GreedyCheck, PromptDrafts, Record

CheckWord = Literal["regression", "improvement", "no difference", "inconclusive"]


class Figure(Record):
    """One figure and its standard error: of ln(value), for rates of the value itself."""

    value: float = Field(allow_inf_nan=False)
    sd: float = Field(ge=0, le=1e6)
    # degrees of freedom of `sd`; None: taken as known
    freedom: float | None = Field(default=None, ge=0.5)
    assumed: bool = False  # the source carries no spread, the field's noise stands for it
    count: int | None = None  # independent units behind it


def _has_logarithm(figure: Figure) -> Figure:
    if not 1e-9 < figure.value < 1e12:
        raise ValueError(f"{figure.value:g} is no speed, length or time above 0")
    return figure


Positive = Annotated[Figure, AfterValidator(_has_logarithm)]  # compared as a logarithm


class CheckRow(Record):
    """One configuration at one load, with whatever its source says."""

    concurrency: int | None
    method: str
    num_speculative_tokens: int
    chosen: bool = False  # the source's choice for this load
    speedup: Positive | None = None
    throughput: Positive | None = None
    acceptance_length: Positive | None = None
    position_rates: tuple[Figure, ...] = ()
    latencies: dict[str, Positive] = Field(default_factory=dict)  # "tpot_p50": seconds, ...
    prompts: tuple[PromptDrafts, ...] = ()
    greedy: GreedyCheck | None = None

    @property
    def key(self) -> tuple[str, int, int | None]:
        return self.method, self.num_speculative_tokens, self.concurrency

    @model_validator(mode="after")
    def _possible(self) -> CheckRow:
        if any(not 0 <= rate.value <= 1 for rate in self.position_rates):
            raise ValueError("an acceptance rate that is not from 0 to 1")
        return self


class CheckSide(Record):
    """One of the two things that are compared. None: the source does not say."""

    source: str  # file, study or "measured now"
    kind: Literal["recommendation", "recording", "study", "check", "measurement"]
    model: str
    workload: str
    workload_sha256: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    num_prompts: int | None = None
    engine: str | None = None
    environment: dict[str, Any] = Field(default_factory=dict)
    engine_args: tuple[str, ...] | None = None
    speculative_config: dict[str, Any] | None = None
    method: str
    num_speculative_tokens: int
    rows: tuple[CheckRow, ...]
    per_load: bool  # the chosen rows are each load's own choice; else one choice for all loads
    faults: tuple[str, ...] = ()  # why it must not be a golden value

    @model_validator(mode="after")
    def _one_row_each(self) -> CheckSide:
        seen: set[tuple[str, int, int | None]] = set()
        for key in (row.key for row in self.rows):
            if key in seen:
                method, n, load = key
                where = "" if load is None else f" at concurrency {load}"
                raise ValueError(f"{method} N={n}{where} stands there twice")
            seen.add(key)
        return self


class Difference(Record):
    """A field in which two sides differ; `refused`: they may not be compared because of it."""

    field: str
    reference: str
    measured: str
    refused: bool


class Verdict(Record):
    """One metric at one load. Changes are relative (rates, greedy: absolute), worse is negative."""

    metric: str
    concurrency: int | None
    all_loads: bool = False
    subject: str  # "eagle3 N=5"
    word: CheckWord
    reference: float | None
    measured: float | None
    change: float | None
    low: float | None  # of the change, at 95 %
    high: float | None
    margin: float
    p_worse: float | None  # corrected for the number of verdicts
    p_better: float | None
    gates: bool  # while a loss beyond the margin is not ruled out, the whole check is inconclusive
    ruled_out: bool  # a loss beyond the margin is
    assumed: bool  # the test rests on assumed noise
    note: str = ""


class CheckReport(Record):
    """The document `spectune.check/1`."""

    schema_: Literal["spectune.check/1"] = Field(default="spectune.check/1", alias="schema")
    model_config = ConfigDict(populate_by_name=True)
    created_at: str
    outcome: Literal["no regression", "regression", "inconclusive", "not comparable"]
    exit_code: int
    summary: str
    reference: CheckSide
    measured: CheckSide | None  # None: refused before anything was measured
    verdicts: tuple[Verdict, ...] = ()
    differences: tuple[Difference, ...] = ()
    warnings: tuple[str, ...] = ()
    repeats: int | None = None  # pairs of windows per load that were measured
    repeats_needed: int | None = None  # that would settle it; None: settled, or none would
    cost: Cost | None = None
