"""One running vLLM server: switch N, send a block, read what the engine says about it."""

from __future__ import annotations

import logging
import secrets
import shutil
import time
from pathlib import Path
from typing import Any

from autotune.engines import Capabilities
from autotune.engines.client import BlockRun, Endpoint, run_block
from autotune.engines.drafts import drafts_flags
from autotune.engines.last_words import reason, with_log
from autotune.engines.live import Runner
from autotune.engines.metrics import MetricsDelta, check_window, difference
from autotune.engines.process import ManagedProcess, describe_exit
from autotune.engines.quality import failure_summary, quality_flags
from autotune.engines.server import RefusedError, Server
from autotune.engines.steps import request_step_tokens, summarize_steps, timed_worker
from autotune.errors import (
    EngineDiedError,
    EngineError,
    LiveSwitchError,
    UnusableMeasurementError,
)
from autotune.records import BASELINE, Arm, Block, BlockRole, StepTimes, Window
from autotune.vllm_plugin.control import ControlFile

logger = logging.getLogger(__name__)

DYING_SECONDS = 10.0  # the API server looks every 5 s whether its engine is still there
MODEL_FREE = ("ngram", "ngram_gpu", "suffix")  # drafters that may honestly find nothing


class VllmSession:
    """See `autotune.engines.Session`."""

    def __init__(
        self,
        process: ManagedProcess,
        server: Server,
        arm: Arm,
        control: ControlFile | None,
        run_dir: Path,
        one_engine: bool = True,
    ) -> None:
        """`one_engine` False: data parallelism; steps of several engines are not one sequence."""
        self.start_seconds = 0.0
        self.base_url = server.base_url
        self.runner: Runner | None = None  # known after `prepare` of an instrumented arm
        self._process, self._server, self._arm = process, server, arm
        self._control, self._run_dir = control, run_dir
        self._timing = arm.instrumented and one_engine
        self._n = arm.num_speculative_tokens
        self._model = ""
        self._endpoint: Endpoint = "chat"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            live_n=self._arm.live,
            step_timing=self._timing,
            counters=True,
            outputs=True,
            warmup=True,
        )

    def prepare(self) -> None:
        """After readiness: the served name, the endpoint, the model runner, step timing."""
        self._model = self._server.model_name()
        if not self._server.has_chat_template(self._model):
            self._endpoint = "completions"
            logger.warning("the model has no chat template: prompts go in as plain text")
        about = self._ask("spectune_about") if self._timing else []
        if about:
            self.runner = Runner(**timed_worker(about))
            self._ask("spectune_start")

    def set_num_speculative_tokens(self, n: int) -> None:
        if self._control is None:
            raise LiveSwitchError("this engine was started with a static N")
        if not 0 <= n <= self._arm.num_speculative_tokens:
            raise LiveSwitchError(
                f"N={n} is outside 0..{self._arm.num_speculative_tokens}, the range of this start"
            )
        self._control.set(n)
        self._n = n

    def run(self, block: Block) -> Window:
        try:
            return self._measure(block)
        except EngineDiedError as error:
            raise self.obituary(error) from error
        except EngineError as error:
            error.last_words = with_log(error.last_words, self._process.log_path)
            raise

    def _ask(self, call: str) -> list[dict[str, Any]]:
        """Answers of the worker extension; where it does not work, step times are given up."""
        try:
            return self._server.rpc(call)
        except RefusedError as error:
            logger.warning("no step times: %s", error.message)
            self._timing = False
            return []

    def _measure(self, block: Block) -> Window:
        # Held-out blocks are measured as the user will run the engine: without step timing.
        timed = self._timing and block.role != BlockRole.CONFIRM
        if timed:
            self._ask("spectune_start")
        elif self._timing:
            self._server.rpc("spectune_stop")  # refused: the windows would not be what they say
        before = self._server.quiet_snapshot()
        run = run_block(
            self._server.base_url,
            self._model,
            block,
            cache_salt=secrets.token_hex(8),  # nothing is reused from an earlier window
            timeout_seconds=self._server.request_timeout_seconds,
            endpoint=self._endpoint,
        )
        self._check_alive(run)
        delta = difference(before, self._server.quiet_snapshot())
        flags = self._judge(block, run, delta)
        steps = self._steps(run, delta) if timed else None
        return self._window(block, run, delta, flags, steps)

    def _judge(self, block: Block, run: BlockRun, delta: MetricsDelta) -> tuple[str, ...]:
        """Flags of the window; raises for what must not be ranked. A warm-up is thrown away."""
        if block.role == BlockRole.WARMUP:
            return ()
        flags = check_window(
            delta,
            n=self._n,
            output_tokens_by_usage=run.output_tokens,
            num_requests=len(run.requests),
            weak_drafts_ok=self._arm.method in MODEL_FREE,
        )
        told = drafts_flags(run.requests, delta.counters)
        return (*flags, *told, *quality_flags(run.requests))

    def _check_alive(self, run: BlockRun) -> None:
        """A request that failed voids the window; a dead or hanging engine is said to be so."""
        failures = failure_summary(run.requests)
        if failures is None:
            return
        if run.output_tokens == 0 or not self._server.healthy():
            raise EngineDiedError(f"vLLM answers no more: {failures}")
        raise UnusableMeasurementError(failures, last_words=self._process.last_words())

    def obituary(self, error: EngineDiedError) -> EngineDiedError:
        """The same error with the engine's own words; it gets a moment to write them and exit."""
        deadline = time.monotonic() + DYING_SECONDS
        while (code := self._process.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.1)
        words, message = self._process.last_words(), error.message
        if code:  # else the server hangs, or has ended by itself, having lost its engine
            message = f"vLLM died ({describe_exit(code)}): {reason(words) or message}"
        return EngineDiedError(message, last_words=with_log(words, self._process.log_path))

    def _steps(self, run: BlockRun, delta: MetricsDelta) -> StepTimes | None:
        answers = self._ask("spectune_drain") if self._timing else []
        if not answers:
            return None
        worker = timed_worker(answers)
        drafting = delta.counters if self._arm.method != BASELINE else None
        return summarize_steps(
            worker["steps"],
            drafter=worker["drafter"],
            tokens_per_request=request_step_tokens(drafting, run.output_tokens, len(run.requests)),
        )

    def _window(
        self,
        block: Block,
        run: BlockRun,
        delta: MetricsDelta,
        flags: tuple[str, ...],
        steps: StepTimes | None,
    ) -> Window:
        if not run.output_tokens_per_second:
            raise UnusableMeasurementError("the answers hold no tokens")
        speculating = delta.counters if self._arm.method != BASELINE else None
        keep_text = block.role == BlockRole.GREEDY  # elsewhere the text was judged and is dropped
        blank: dict[str, Any] = {} if keep_text else {"text": None}
        return Window(
            method=self._arm.method,
            num_speculative_tokens=self._n,
            live=self._arm.live,
            block=block.key,
            concurrency=block.concurrency,
            started_at=run.started_at,
            duration_seconds=run.duration_seconds,
            output_tokens=run.output_tokens,
            output_tokens_per_second=run.output_tokens_per_second,
            acceptance_length=speculating.acceptance_length if speculating else None,
            per_position_acceptance_rates=speculating.per_position_rates if speculating else None,
            counters=speculating,
            steps=steps,
            ttft=run.ttft,
            tpot=run.tpot,
            itl=run.itl,
            end_to_end=run.end_to_end,
            requests=tuple(result.model_copy(update=blank) for result in run.requests),
            flags=flags,
        )

    def close(self) -> None:
        self._process.stop()
        if self._control is not None:
            self._control.close()
        shutil.rmtree(self._run_dir, ignore_errors=True)
