"""Every typed record, in the order in which data flows. No I/O, no behaviour beyond derived values.

Plan(Target, Workload, MethodSpace...) -> Arm (one engine start) -> Window (one measured block)
-> Measurement (one candidate at one load) -> Recommendation.

Times are seconds, rates are tokens per second, acceptance rates are per drafted position and
unconditional (accepted_per_pos[i] / drafts). A number that was not measured is None, never 0.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

SamplerName = Literal["spectune", "tpe", "gp", "random", "grid"]

BASELINE = "none"  # the name of "no speculation" wherever a method name is expected
SCHEDULED = "schedule-"  # in the key of a start whose N follows the batch size
Tier = tuple[int, int, int]  # batch sizes from, to (inclusive), and the N for them


class Record(BaseModel):
    """Immutable; an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        json_schema_serialization_defaults_required=True,  # what is written is written whole
    )


def digest(value: Any) -> str:
    """SHA-256 (hex) of a JSON-able value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def scheduled_length(tiers: tuple[Tier, ...], batch_size: int) -> int:
    """N of a batch size; above the last tier its N goes on, as in vLLM. `tiers` not empty."""
    return next((n for _, last, n in tiers if batch_size <= last), tiers[-1][2])


# ---------------------------------------------------------------------------- what is asked


class Message(Record):
    role: Literal["system", "user", "assistant"]
    content: str


class Prompt(Record):
    """One request's input: chat messages, to which the engine applies its chat template."""

    id: str
    messages: tuple[Message, ...] = Field(min_length=1)


class Sampling(Record):
    """Sampling settings belong to the workload: acceptance depends on them."""

    temperature: float = Field(default=0.0, ge=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    max_tokens: int = Field(default=256, ge=1)
    seed: int = 0
    ignore_eos: bool = False


class Workload(Record):
    """Prompts in a fixed order plus sampling settings; `sha256` identifies both."""

    name: str
    prompts: tuple[Prompt, ...] = Field(min_length=1)
    sampling: Sampling = Sampling()

    @property
    def sha256(self) -> str:
        return digest(self.model_dump(mode="json", exclude={"name"}))


class Target(Record):
    """The model to serve. `model` goes to vLLM: a Hub id or a local path."""

    model: str
    engine_args: tuple[str, ...] = ()  # everything the user wrote after `--`, unchanged


class Prior(Record):
    """What is assumed of a method before it is measured: see priors.py, acceptance.py, steptime.py.

    Conditional acceptance at position i of rounds of N: alpha_i + carry * p_N, alpha_1 = `first`,
    then changing by the steps. Relative cost of a step: cost_intercept + cost_slope * N.
    """

    first: float = Field(default=0.85, ge=0, le=1)
    second_step: float = -0.03
    third_step: float = -0.01
    later_step: float = -0.004
    carry: float = 0.05
    cost_intercept: float = Field(default=1.35, gt=0)
    cost_slope: float = Field(default=0.2, ge=0)
    doubt: float = Field(default=1.0, gt=0)  # a factor on how far acceptance may be from all this


class MethodSpace(Record):
    """The candidates of one drafting method: one drafter and the N that may be tried."""

    method: str  # catalogue name: "ngram", "eagle3", ...
    drafter: str | None = None  # Hub id or path of the draft checkpoint, if the method needs one
    lengths: tuple[int, ...] = Field(min_length=1)  # allowed num_speculative_tokens, ascending
    parallel: bool = False  # all tokens drafted in one pass (DFlash, DSpark, PARD)
    live_n: bool = True  # N can be switched on a running engine
    next_length: int | None = None  # the next larger N that could be tried; None: none is known
    # speculative_config without num_speculative_tokens; empty for replay and simulation
    config: dict[str, Any] = Field(default_factory=dict)
    prior: Prior = Prior()

    def speculative_config(self, n: int, tiers: tuple[Tier, ...] = ()) -> dict[str, Any] | None:
        """What vLLM takes for this N; None where the engine needs none.

        With `tiers` N follows the batch size (vLLM 0.24 and later) and `n` is their largest.
        """
        if not self.config:
            return None
        schedule = {"num_speculative_tokens_per_batch_size": [list(tier) for tier in tiers]}
        return {**self.config, "num_speculative_tokens": n, **(schedule if tiers else {})}

    def arm(self, n: int, *, live: bool, generation: int = 0) -> Arm:
        """The engine start that serves N; a live one serves every N up to it."""
        return Arm(
            method=self.method,
            num_speculative_tokens=n,
            live=live,
            instrumented=True,
            speculative_config=self.speculative_config(n),
            generation=generation,
            lengths=self.lengths if live else (),
        )

    def schedule_arm(self, tiers: tuple[Tier, ...]) -> Arm:
        """The fresh static start whose N follows the batch size."""
        longest = max(n for _, _, n in tiers)
        arm = self.arm(longest, live=False, generation=1)
        config = self.speculative_config(longest, tiers)
        return arm.model_copy(update={"schedule": tiers, "speculative_config": config})


class Skipped(Record):
    """A method or a single N that is not tried, and why."""

    method: str
    num_speculative_tokens: int | None = None
    reason: str


class Environment(Record):
    """The machine and the engine's software, as far as they decide how fast a measurement is."""

    gpu: str | None = None
    gpu_count: int | None = None
    runtime: str | None = None  # "ROCm 7.2.0", "CUDA 13.0", "CPU"
    driver: str | None = None
    vllm: str | None = None
    torch: str | None = None
    python: str | None = None
    cpu: str | None = None
    gpu_target: str | None = None  # "gfx942", "sm_90"; follows from the GPU, so no identity
    gpu_partition: str | None = None  # "SPX/NPS1", "MIG 3g.20gb"
    gpu_power_cap_watts: float | None = None  # the lowest of the GPUs
    variables: dict[str, str] | None = None  # that choose kernels and the runner; None: not known

    @property
    def identity(self) -> dict[str, Any]:
        """What must be equal for two measurements to be compared.

        What was added later and is not known is left out, so that studies from before keep theirs.
        """
        content = self.model_dump(mode="json", exclude={"gpu_target"})
        added = ("gpu_partition", "gpu_power_cap_watts", "variables")
        return {k: v for k, v in content.items() if k not in added or v not in (None, {})}

    @property
    def sha256(self) -> str:
        return digest(self.identity)


class Limits(Record):
    """Latency limits for one request, in seconds; None: no such limit. What vLLM calls goodput."""

    ttft_seconds: float | None = Field(default=None, gt=0.0)
    tpot_seconds: float | None = Field(default=None, gt=0.0)  # per output token after the first
    e2el_seconds: float | None = Field(default=None, gt=0.0)  # end to end


class Settings(Record):
    """How hard to measure. `--fast` and `--rigorous` choose a preset of these."""

    search_blocks: int = Field(default=4, ge=1)  # most blocks of a candidate at a load
    confirm_each_load: bool = True  # a load with a better choice of its own gets its own start
    confirm_blocks: int = Field(default=4, ge=1)  # held-out blocks for baseline and finalist
    confirm_fresh: bool = False  # also a finalist that was probed on a static start
    repeats: bool = True  # measuring the same block again gives new information
    prompts_per_block: int = Field(default=8, ge=1)  # at least; never fewer than 2 x concurrency
    greedy_prompts: int = Field(default=4, ge=0)  # outputs compared with the baseline at batch 1
    tie_margin: float = Field(default=0.01, ge=0.0)
    drift_margin: float = Field(default=0.05, gt=0.0)
    confidence: float = Field(default=0.95, gt=0.5, lt=1.0)
    budget_seconds: float | None = Field(default=None, gt=0.0)
    live_n: bool = True
    seed: int = 0
    limits: Limits | None = None  # only what keeps them may be recommended for a load
    limits_share: float = Field(default=0.95, gt=0.0, le=1.0)  # of requests that must keep them all
    schedule: bool = True  # try N by batch size where the loads want different N
    sampler: SamplerName = "spectune"  # who chooses the next candidate; the others, to compare
    max_candidates: int | None = Field(default=None, ge=1)  # candidates to try at most; None: all


class Plan(Record):
    """Everything that decides what is measured. Equal plans resume the same study."""

    engine: str
    target: Target
    workload: Workload
    spaces: tuple[MethodSpace, ...]
    skipped: tuple[Skipped, ...] = ()
    concurrencies: tuple[int | None, ...] = Field(min_length=1)  # None: the source does not say
    settings: Settings = Settings()
    environment: Environment = Environment()
    engine_options: dict[str, Any] = Field(default_factory=dict)  # recording digest, simulator, ...
    sends_prompts: bool = True  # False: a recording or a simulation, the prompts stand for nothing
    variables: dict[str, str] | None = None  # of the engine's environment: variables.py
    warnings: tuple[str, ...] = ()  # found while planning, repeated in the recommendation

    def is_live(self, space: MethodSpace) -> bool:
        """Whether one start shall serve all N of this method."""
        return self.settings.live_n and space.live_n and len(space.lengths) > 1

    @property
    def sha256(self) -> str:
        """Identity of a study, limits left out: a resumed run may get more time and candidates."""
        # reasons for skipping may depend on the network; the spaces hold what matters
        left_out = {"workload", "warnings", "skipped", "variables"}
        content = self.model_dump(mode="json", exclude=left_out)
        for space in content["spaces"]:
            space.pop("prior")  # it guides the search and changes no figure
            space.pop("next_length")  # what could be tried beside them changes nothing
        content["settings"].pop("budget_seconds")
        content["settings"].pop("max_candidates")
        content["environment"] = self.environment.identity
        return digest({**content, "workload": self.workload.sha256})


# ------------------------------------------------------------------------------ what is run


class Arm(Record):
    """One engine start: the baseline, one method with live N, or one static candidate."""

    method: str = BASELINE
    num_speculative_tokens: int = 0  # static N; for a live arm the largest N it can switch to
    live: bool = False  # N is switched at run time
    instrumented: bool = False  # our scheduler and step timing are loaded
    speculative_config: dict[str, Any] | None = None
    generation: int = 0  # counts fresh starts of an otherwise equal arm (drift, confirmation)
    lengths: tuple[int, ...] = ()  # live: the N that will be asked for; empty: all up to it
    schedule: tuple[Tier, ...] = ()  # N by batch size; num_speculative_tokens is the largest

    @property
    def key(self) -> str:
        kind = "live" if self.live else "static"
        if self.schedule:
            kind = f"{SCHEDULED}{digest(self.schedule)[:8]}"
        return f"{self.method}:{self.num_speculative_tokens}:{kind}:{self.generation}"


class BlockRole(StrEnum):
    WARMUP = "warmup"
    SEARCH = "search"
    CONFIRM = "confirm"
    REFERENCE = "reference"
    GREEDY = "greedy"


class Block(Record):
    """A batch of prompts sent as one closed loop with `concurrency` requests in flight."""

    role: BlockRole
    index: int
    concurrency: int | None
    prompts: tuple[Prompt, ...]
    sampling: Sampling

    @property
    def key(self) -> str:
        load = "any" if self.concurrency is None else str(self.concurrency)
        return f"{self.role.value}:{self.index}:c{load}"


class Quantiles(Record):
    """Seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


class SpecCounters(Record):
    """Differences of vLLM's speculative counters over one window, summed over engines."""

    num_drafts: int = Field(ge=0)
    num_draft_tokens: int = Field(ge=0)
    num_accepted_tokens: int = Field(ge=0)
    accepted_per_pos: tuple[int, ...] = ()

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted / drafts: the bonus token included (vLLM's definition)."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None

    @property
    def per_position_rates(self) -> tuple[float, ...] | None:
        if not self.num_drafts:
            return None
        return tuple(count / self.num_drafts for count in self.accepted_per_pos)


class BatchSteps(Record):
    """The decode steps of one window that held the same number of requests; means over them."""

    requests: int = Field(ge=1)
    num_steps: int = Field(ge=1)
    verified_tokens_per_step: float  # of all requests: each one's next token and its drafts
    context_tokens_per_request: float | None  # in the KV cache before the step
    draft_seconds_per_step: float | None  # None where nothing is drafted, or it was not timed
    verify_seconds_per_step: float
    step_seconds: float  # start to start, gaps included


class StepTimes(Record):
    """Decode steps of one window as the engine's worker saw them."""

    num_steps: int = Field(ge=0)
    draft_seconds_per_step: float | None  # None where nothing is drafted
    verify_seconds_per_step: float
    step_seconds: float  # start to start, gaps included
    coverage: float  # (draft + verify) / step
    tokens_per_step: float  # committed
    requests_per_step: float
    verified_tokens_per_step: float | None = None
    by_batch: tuple[BatchSteps, ...] = ()  # ascending; the same steps, apart by requests


class RequestDrafts(Record):
    """What became of one request's drafts. Index i: draft position i + 1, as far as any reached."""

    num_drafts: int = Field(ge=0)
    num_draft_tokens: int = Field(ge=0)
    accepted_per_pos: tuple[int, ...] = ()  # drafts of which at least i + 1 tokens were accepted
    drafted_per_pos: tuple[int, ...] | None = None  # drafts of at least i + 1 tokens

    @property
    def num_accepted_tokens(self) -> int:
        return sum(self.accepted_per_pos)


class RequestResult(Record):
    """One request as the client saw it. Latencies are None when the request failed."""

    prompt_id: str
    completion_tokens: int | None = None  # from the server's usage, never from chunks
    prompt_tokens: int | None = None
    ttft_seconds: float | None = None
    end_to_end_seconds: float | None = None
    finish_reason: str | None = None
    text: str | None = None
    error: str | None = None
    drafts: RequestDrafts | None = None  # None: the engine does not say


class Window(Record):
    """One block measured on one arm at one N. The unit that is stored as soon as it exists."""

    method: str
    num_speculative_tokens: int
    live: bool
    block: str  # Block.key
    concurrency: int | None
    started_at: float | None = None  # Unix time
    duration_seconds: float | None = None  # what it cost; None where the source does not say
    output_tokens: int | None = None
    output_tokens_per_second: float = Field(gt=0)
    acceptance_length: float | None = None
    per_position_acceptance_rates: tuple[float, ...] | None = None
    counters: SpecCounters | None = None
    steps: StepTimes | None = None
    ttft: Quantiles | None = None
    tpot: Quantiles | None = None
    itl: Quantiles | None = None
    end_to_end: Quantiles | None = None
    requests: tuple[RequestResult, ...] = ()
    flags: tuple[str, ...] = ()


# --------------------------------------------------------------------------- what is learned


class Measurement(Record):
    """All windows of one candidate at one load, pooled."""

    method: str
    num_speculative_tokens: int
    concurrency: int | None
    live: bool
    windows: int
    output_tokens_per_second: float
    log_speedup: float  # mean over paired blocks of ln(throughput / baseline throughput)
    log_speedup_se: float | None  # None with a single block
    acceptance_length: float | None = None
    per_position_acceptance_rates: tuple[float, ...] | None = None
    counters: SpecCounters | None = None
    draft_seconds_per_step: float | None = None
    verify_seconds_per_step: float | None = None
    step_seconds: float | None = None


class Prediction(Record):
    """The cost model's view of one candidate at one load: ln(speedup) is about normal."""

    method: str
    num_speculative_tokens: int
    concurrency: int | None
    log_speedup: float
    log_speedup_sd: float


class GreedyCheck(Record):
    """Outputs of the finalist against the baseline's, same prompts, temperature 0, batch 1."""

    compared: int = Field(ge=0)
    equal: int = Field(ge=0)
    first_difference: str | None = None  # prompt id and character position


class Confirmation(Record):
    """The finalist on a fresh static start, on prompts that the search never saw."""

    method: str
    num_speculative_tokens: int
    log_ratios: dict[int | None, tuple[float, ...]]  # by load, one per held-out block
    windows: dict[int | None, tuple[Window, ...]]
    baseline: dict[int | None, tuple[Window, ...]]  # the same blocks without speculation
    references: dict[int | None, tuple[Window, ...]]  # search block 0 on the fresh start, timed
    drift: dict[int | None, float]  # ln(reference block now / when it was probed)
    baseline_generation: int  # 1: drift made a fresh baseline start necessary
    greedy: GreedyCheck | None = None
    # held-out windows at loads that the plan does not name: beside the thresholds of a schedule
    beside: dict[int, tuple[Window, ...]] = Field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        return self.method, self.num_speculative_tokens


class Stopped(Record):
    """Why a search ended; `exhausted`: nothing unmeasured could still win."""

    reason: str
    exhausted: bool


class Interval(Record):
    """A ratio, rate or mean with its confidence interval."""

    value: float
    low: float
    high: float
    confidence: float


class Status(StrEnum):
    CONFIRMED = "confirmed"  # measured on a static start
    PROBED = "probed"  # measured live
    PREDICTED = "predicted"  # never run
    FAILED = "failed"
    SKIPPED = "skipped"


class PromptDrafts(Record):
    """Drafts of one prompt's answers, summed: what two measurements can be paired by."""

    prompt_id: str
    num_drafts: int = Field(ge=1)
    accepted_per_pos: tuple[Annotated[int, Field(ge=0)], ...]


class CandidateResult(Record):
    method: str
    num_speculative_tokens: int | None
    concurrency: int | None
    status: Status
    predicted_output_tokens_per_second: float | None = None  # before it was measured
    predicted_speedup: Interval | None = None  # likewise
    output_tokens_per_second: float | None = None
    baseline_output_tokens_per_second: float | None = None  # on the same prompts
    speedup: Interval | None = None
    acceptance_length: float | None = None
    acceptance_length_interval: Interval | None = None
    per_position_acceptance_rates: tuple[float, ...] | None = None
    per_position_acceptance_intervals: tuple[Interval, ...] | None = None
    # of the drafts that reached the position, as far as any did; None: their lengths are not known
    conditional_acceptance_rates: tuple[float, ...] | None = None
    draft_seconds_per_step: float | None = None
    verify_seconds_per_step: float | None = None
    tpot_p50_seconds: float | None = None
    ttft_p50_seconds: float | None = None
    share_within_limits: float | None = None  # of requests; None without limits
    goodput_requests_per_second: float | None = None  # requests within the limits, as vLLM counts
    flags: tuple[str, ...] = ()  # what to know about the acceptance figures: acceptance_flags.py
    # of the interval of a confirmed speed-up, which is Student's t; None: it is normal
    speedup_freedom: int | None = None
    prompts: tuple[PromptDrafts, ...] = ()  # of a confirmed one: a later check is paired by them
    error: str | None = None
    reason: str | None = None


class LoadChoice(Record):
    """The choice for one load; `method` is "none" where not speculating wins."""

    concurrency: int | None
    decision: Literal["speculate", "do_not_speculate", "inconclusive"]
    method: str
    num_speculative_tokens: int
    speedup: Interval | None
    status: Status | None  # of the choice's evidence; None where there is none
    meets_limits: bool | None = None  # None without limits


class BaselineResult(Record):
    concurrency: int | None
    output_tokens_per_second: float
    tpot_p50_seconds: float | None = None
    ttft_p50_seconds: float | None = None
    share_within_limits: float | None = None
    goodput_requests_per_second: float | None = None


class ParetoPoint(Record):
    """A measured point that no other one beats in throughput and in latency at once."""

    method: str  # "none": no speculation
    num_speculative_tokens: int
    concurrency: int | None
    output_tokens_per_second: float  # of the whole engine
    tpot_p50_seconds: float  # of one request


class ScheduleLoad(Record):
    """A schedule at one load, on the held-out blocks on which the static N was measured too."""

    concurrency: int
    num_speculative_tokens: int  # that the schedule picks there
    beside_threshold: bool  # not a load of the plan: measured since a tier begins or ends there
    output_tokens_per_second: float
    static_output_tokens_per_second: float
    baseline_output_tokens_per_second: float | None  # None: not measured beside thresholds
    versus_static: Interval
    speedup: Interval | None
    worse: bool  # than the static N by more than the noise allows
    share_within_limits: float | None = None
    meets_limits: bool | None = None


class ScheduleTrial(Record):
    """N by batch size against the one static N: what was tried, what came out."""

    method: str
    tiers: tuple[Tier, ...]  # num_speculative_tokens_per_batch_size
    static_num_speculative_tokens: int
    predicted_versus_static: float  # geometric mean over the loads, by the cost model
    outcome: Literal["won", "lost", "failed", "not_tried"]
    reason: str
    versus_static: Interval | None = None  # geometric mean over the plan's loads
    speedup: Interval | None = None  # over no speculation, likewise
    loads: tuple[ScheduleLoad, ...] = ()


class PredictionQuality(Record):
    """Speed-ups predicted before a candidate was first measured, against the search's figures.

    `covered`: inside the prediction's interval, the noise of the measurement included.
    """

    count: int
    median_error: float | None  # relative; None without a prediction
    covered: int
    confidence: float


class Cost(Record):
    engine_starts: int
    probes: int
    probe_seconds: float
    total_seconds: float


class WorkloadSummary(Record):
    """The prompts that were used; None where a recording does not say."""

    name: str
    sha256: str
    num_prompts: int | None
    temperature: float | None
    max_tokens: int | None


class Recommendation(Record):
    """The document `spectune.recommendation/1`; docs/ keeps its JSON Schema."""

    schema_: Literal["spectune.recommendation/1"] = Field(
        default="spectune.recommendation/1", alias="schema"
    )
    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), populate_by_name=True
    )
    study: str
    engine: str
    created_at: str
    model: str
    workload: WorkloadSummary
    environment: Environment
    decision: Literal["speculate", "do_not_speculate", "inconclusive"]
    method: str
    num_speculative_tokens: int
    speculative_config: dict[str, Any] | None
    speedup: Interval | None
    per_concurrency: tuple[LoadChoice, ...]
    # N by batch size: only one that was measured and won; speculative_config then holds it, and
    # num_speculative_tokens is its largest N
    schedule: list[Tier] | None = None
    schedule_trial: ScheduleTrial | None = None  # None: not wanted, or switched off
    limits: Limits | None = None
    limits_share: float | None = None  # of requests that must keep all limits
    pareto: tuple[ParetoPoint, ...] = ()  # by rising throughput; rows of candidates and baseline
    candidates: tuple[CandidateResult, ...]
    baseline: tuple[BaselineResult, ...]
    predictions: PredictionQuality | None = None
    cost: Cost
    stopped_because: str
    exhausted: bool  # False: more time or more engine starts could still change the answer
    vllm_serve_args: tuple[str, ...]
    engine_args: tuple[str, ...] = ()
    variables: dict[str, str] | None = None  # set for the engine; None: no engine, or not recorded
    warnings: tuple[str, ...] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def serve_command(self) -> str | None:
        """The ready command line, shell-quoted; None where the drafter's config is not known."""
        import shlex

        from autotune.export.serve_args import served_engine_args

        if self.method != BASELINE and self.speculative_config is None:
            return None
        engine_args, _ = served_engine_args(self)
        return shlex.join(["vllm", "serve", self.model, *engine_args, *self.vllm_serve_args])
