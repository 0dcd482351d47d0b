"""A simulated engine with a known optimum, for trying the tuner without a GPU.

Step times come from the roofline, counters are drawn prompt by prompt, speed wobbles as the
scenario says. Throughput follows the expected acceptance, b (1 + sum p_i) / T, not the one drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.engines import Capabilities, EngineOptions, Offer, Progress
from autotune.engines.scenario import Fault, Scenario, StepSplit, load_scenario
from autotune.engines.virtual import Calls, describe, generator, require_noise, require_switch
from autotune.errors import (
    ConfigurationError,
    EngineDiedError,
    EngineStartError,
    LiveSwitchError,
    UnusableMeasurementError,
)
from autotune.records import (
    BASELINE,
    Arm,
    BatchSteps,
    Block,
    BlockRole,
    Environment,
    MethodSpace,
    Quantiles,
    RequestDrafts,
    RequestResult,
    SpecCounters,
    StepTimes,
    Target,
    Window,
    digest,
    scheduled_length,
)


class SimulatedSession:
    """One simulated engine start."""

    def __init__(
        self,
        scenario: Scenario,
        arm: Arm,
        capabilities: Capabilities,
        noise: float,
        seed: int,
        clock: Iterator[int],
    ) -> None:
        self.capabilities = capabilities
        self.start_seconds = scenario.start_seconds
        self._scenario = scenario
        self._arm = arm
        self._fault = scenario.faults.get(arm.method, Fault())
        self._n = 0 if arm.method == BASELINE else arm.num_speculative_tokens
        self._noise = noise
        self._seed = seed
        self._clock = clock
        self._calls = Calls(seed, arm)
        self._windows = 0
        self._dead = ""

    def set_num_speculative_tokens(self, n: int) -> None:
        """Switch N; raises LiveSwitchError on a static start and outside 0..the arm's N."""
        require_switch(self._arm, n, self.capabilities.live_n)
        self._n = n

    def run(self, block: Block) -> Window:
        """Simulate one block. The scenario's faults raise what a real engine would raise."""
        self._fail_if_due(block)
        rng = self._calls.generator(self._n, block)
        requests = block.concurrency or 1  # None was refused above
        tiers = self._arm.schedule
        n = scheduled_length(tiers, requests) if tiers else self._n
        drafted = 0 if self._fault.no_drafts else n
        split = self._scenario.step(self._arm.method, drafted, requests, tiers)
        slowdown = 1 / self._speed(block, rng)
        rates = self._scenario.acceptance_rates(self._arm.method, drafted)
        tokens_per_step = requests * (1 + sum(rates))
        step_seconds = split.seconds * slowdown
        throughput = tokens_per_step / step_seconds
        decoded = max(block.sampling.max_tokens - 1, 1)  # the prefill yields the first token
        rounds = draw_rounds(rates, len(block.prompts), decoded, rng)
        output_tokens = len(block.prompts) * (decoded + 1)
        counters = _counters(rounds, drafted) if self._arm.method != BASELINE else None
        decode_seconds = (rounds >= 0).sum(axis=1) * step_seconds
        ttft_seconds = self._scenario.ttft_seconds() * slowdown
        self._windows += 1
        return Window(
            method=self._arm.method,
            num_speculative_tokens=self._n,
            live=self._arm.live,
            block=block.key,
            concurrency=block.concurrency,
            duration_seconds=output_tokens / throughput,
            output_tokens=output_tokens,
            output_tokens_per_second=throughput,
            acceptance_length=counters.acceptance_length if counters else None,
            per_position_acceptance_rates=counters.per_position_rates if counters else None,
            counters=counters,
            steps=_steps(split, slowdown, tokens_per_step, requests, drafted, output_tokens),
            ttft=_constant(ttft_seconds),
            tpot=_quantiles(decode_seconds / decoded),
            end_to_end=_quantiles(ttft_seconds + decode_seconds),
            requests=_requests(
                block,
                rounds,
                None if counters is None else drafted,
                decoded + 1,
                ttft_seconds,
                decode_seconds,
            ),
        )

    def close(self) -> None:
        self._dead = self._dead or "this session is closed"

    def _fail_if_due(self, block: Block) -> None:
        if self._dead:
            raise EngineDiedError(self._dead)
        if block.concurrency is None or not block.prompts:
            raise UnusableMeasurementError("the simulator needs a concurrency and prompts")
        if self._windows == self._fault.dies_after:
            self._dead = f"{self._arm.method} died after {self._windows} windows"
            raise EngineDiedError(self._dead, last_words="simulated fault: dies_after")
        if self._fault.live_switch_ignored and self._n != self._arm.num_speculative_tokens:
            raise LiveSwitchError(
                f"N={self._n} was set, but {self._arm.method} still drafts "
                f"{self._arm.num_speculative_tokens} tokens"
            )

    def _speed(self, block: Block, rng: np.random.Generator) -> float:
        """This window's speed: machine drift, difficulty of the block, noise."""
        window, drift = next(self._clock), self._scenario.drift
        speed = drift.speed(window) if drift else 1.0
        if self._scenario.block_sd:
            repeated = block.model_copy(update={"role": BlockRole.SEARCH})
            same = repeated if block.role == BlockRole.REFERENCE else block  # prompts of search 0
            shared = generator(self._seed, "block", same.key).standard_normal()
            speed *= math.exp(self._scenario.block_sd * shared)
        if self._noise:
            speed *= math.exp(self._noise * rng.standard_normal())
        return speed


class SimulateEngine:
    """Opens sessions in one scenario. Its clock, which drives drift, counts all their windows."""

    name = "simulate"

    def __init__(self, options: EngineOptions) -> None:
        self.scenario = load_scenario(options.simulation)
        given = options.noise
        self._noise = self.scenario.noise_sd if given is None else require_noise(given)
        self._seed = options.seed
        self._live_n = options.live_n
        self._clock = count()

    def open(self, target: Target, arm: Arm, progress: Progress) -> SimulatedSession:
        """Raises EngineStartError for an unknown method, an N it does not allow, or a fault."""
        self._refuse(arm)
        capabilities = Capabilities(
            live_n=self._can_switch(arm),
            step_timing=True,
            counters=True,
            outputs=False,
            warmup=False,
        )
        return SimulatedSession(
            self.scenario, arm, capabilities, self._noise, self._seed, self._clock
        )

    def command(self, target: Target, arm: Arm) -> str:
        """A line for people: nothing is started."""
        return f"simulate {self.scenario.name} ({target.model}): {describe(arm)}"

    def why_not_live(self, target: Target, space: MethodSpace) -> None:
        """Nothing beyond what `MethodSpace.live_n` says."""

    def estimated_start_seconds(self) -> float:
        return self.scenario.start_seconds

    def offer(self) -> Offer:
        scenario = self.scenario
        return Offer(
            model=scenario.model.name,
            workload=scenario.workload,
            environment=Environment(
                gpu=scenario.machine.gpu.name, gpu_count=scenario.gpu_count, runtime="simulation"
            ),
            spaces=tuple(
                MethodSpace(
                    method=method.method,
                    lengths=method.lengths,
                    parallel=method.drafting.style == "parallel",
                    live_n=self._live_n and method.live_n,
                )
                for method in scenario.methods
            ),
            concurrencies=scenario.concurrencies,
            repeats=self._noise > 0 or scenario.drift is not None,
        )

    def identity(self) -> dict[str, Any]:
        content = self.scenario.model_dump(mode="json", by_alias=True)
        return {"scenario": digest(content), "noise": self._noise, "seed": self._seed}

    def truth(self, method: str, n: int, concurrency: int) -> float:
        """Noise-free output tokens per second."""
        return self.scenario.truth(method, n, concurrency)

    def best(self, concurrency: int) -> tuple[str, int, float]:
        """The true (method, N, throughput), ("none", 0, ...) where nothing beats the baseline."""
        return self.scenario.best(concurrency)

    def _can_switch(self, arm: Arm) -> bool:
        method = self.scenario.method(arm.method)
        return bool(method and method.live_n and arm.live and self._live_n)

    def _refuse(self, arm: Arm) -> None:
        try:
            method = self.scenario.method(arm.method)
        except ConfigurationError as error:
            raise EngineStartError(error.message, hint=error.hint) from error
        fault = self.scenario.faults.get(arm.method, Fault())
        if fault.start_error is not None:
            raise EngineStartError(f"{arm.method} did not start", last_words=fault.start_error)
        if method and arm.num_speculative_tokens not in method.lengths:
            raise EngineStartError(
                f"{arm.method} does not allow N={arm.num_speculative_tokens}",
                hint=f"allowed: {', '.join(map(str, method.lengths))}",
            )


def draw_rounds(
    rates: tuple[float, ...], prompts: int, tokens: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Accepted tokens of every draft round, shape (prompts, tokens); -1 after a request's end.

    A round of j accepted tokens has probability p_j - p_(j+1) and yields j + 1 tokens. A request
    ends with the round that reaches `tokens`; as in vLLM the counters see that round whole.
    """
    ascending = np.array(rates[::-1])
    accepted = len(rates) - np.searchsorted(ascending, rng.random((prompts, tokens)), side="right")
    before = np.cumsum(accepted + 1, axis=1) - (accepted + 1)
    return np.where(before < tokens, accepted, -1)


def _counters(rounds: NDArray[np.int64], n: int) -> SpecCounters:
    drafts = int((rounds >= 0).sum()) if n else 0
    accepted = tuple(int((rounds >= i).sum()) for i in range(1, n + 1))
    return SpecCounters(
        num_drafts=drafts,
        num_draft_tokens=drafts * n,
        num_accepted_tokens=sum(accepted),
        accepted_per_pos=accepted,
    )


def _requests(
    block: Block,
    rounds: NDArray[np.int64],
    n: int | None,
    tokens: int,
    ttft_seconds: float,
    decode_seconds: NDArray[np.float64],
) -> tuple[RequestResult, ...]:
    """One result a row of `rounds`; `n` None: no speculation.

    Each is drawn for itself, so each counts as a prompt of its own, whatever the block's are.
    Prefills delay their own request, never the decoding of the others.
    """
    return tuple(
        RequestResult(
            prompt_id=f"{block.key}/{i}",
            completion_tokens=tokens,
            ttft_seconds=ttft_seconds,
            end_to_end_seconds=ttft_seconds + float(decode_seconds[i]),
            finish_reason="length",
            drafts=None if n is None else _request_drafts(row, n),
        )
        for i, row in enumerate(rounds)
    )


def _request_drafts(row: NDArray[np.int64], n: int) -> RequestDrafts:
    drafts = int((row >= 0).sum()) if n else 0
    return RequestDrafts(
        num_drafts=drafts,
        num_draft_tokens=drafts * n,
        accepted_per_pos=tuple(int((row >= i).sum()) for i in range(1, n + 1)),
        drafted_per_pos=(drafts,) * n,
    )


def _steps(
    split: StepSplit,
    slowdown: float,
    tokens: float,
    requests: int,
    drafted: int,
    output_tokens: int,
) -> StepTimes:
    """All steps alike: the simulator has no tail in which requests run out."""
    verified = requests * (1 + drafted)
    batch = BatchSteps(
        requests=requests,
        num_steps=max(1, round(output_tokens / tokens)),
        verified_tokens_per_step=verified,
        context_tokens_per_request=None,
        draft_seconds_per_step=split.draft_seconds * slowdown or None,
        verify_seconds_per_step=split.verify_seconds * slowdown,
        step_seconds=split.seconds * slowdown,
    )
    return StepTimes(
        num_steps=batch.num_steps,
        draft_seconds_per_step=batch.draft_seconds_per_step,
        verify_seconds_per_step=batch.verify_seconds_per_step,
        step_seconds=batch.step_seconds,
        coverage=(split.draft_seconds + split.verify_seconds) / split.seconds,
        tokens_per_step=tokens,
        requests_per_step=float(requests),
        verified_tokens_per_step=verified,
        by_batch=(batch,),
    )


def _constant(seconds: float) -> Quantiles:
    return Quantiles(mean=seconds, p50=seconds, p90=seconds, p99=seconds)


def _quantiles(seconds: NDArray[np.float64]) -> Quantiles:
    p50, p90, p99 = (float(value) for value in np.quantile(seconds, (0.5, 0.9, 0.99)))
    return Quantiles(mean=float(seconds.mean()), p50=p50, p90=p90, p99=p99)


ENGINE = SimulateEngine
