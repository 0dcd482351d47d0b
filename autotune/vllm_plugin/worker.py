"""`--worker-extension-cls autotune.vllm_plugin.worker.StepTimer`: drafting and verification apart.

Called over vLLM's collective RPC: `spectune_about`, `spectune_start`, `spectune_drain`,
`spectune_stop`. Outside of start and stop nothing is patched. Patches are instance attributes of
this worker's model runner:

- `execute_model` (start of a step) and `sample_tokens` (end of a step);
- `speculator.propose` (V2 runner) or `propose_draft_token_ids` (V1 runner): drafting.

verify = step - draft: target forward, sampling, rejection and bookkeeping of that step.
On an accelerator times are events recorded on the current stream and read later, because
synchronising would destroy the overlap that is being measured; on CPU the host clock.
"""

from __future__ import annotations

import time
from typing import Any

V2_RUNNER = "vllm.v1.worker.gpu.model_runner"  # module of the V2 runner, also the CPU's base class
# One row per step, as lists because they travel as JSON.
# `context`: tokens of all requests in the KV cache before the step; None where vLLM does not say.
COLUMNS = ("start", "step", "draft", "requests", "tokens", "drafted", "decode", "context")


class _HostClock:
    """perf_counter: right on CPU, where a call returns when its work is done."""

    def now(self) -> Any:
        return time.perf_counter()

    def seconds(self, begin: Any, end: Any) -> float:
        return float(end - begin)

    def settle(self) -> None:
        """Nothing to wait for."""


class _EventClock:
    """Accelerator events on the current stream (torch.cuda also stands for ROCm)."""

    def __init__(self, device_module: Any) -> None:
        self._device = device_module

    def now(self) -> Any:
        event = self._device.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1e3

    def settle(self) -> None:
        self._device.synchronize()


def _drafter(runner: Any) -> Any:
    """What drafts on this worker; None without speculation and before the last pipeline stage."""
    return getattr(runner, "speculator", None) or getattr(runner, "drafter", None)


def _drafting(runner: Any) -> tuple[Any, str]:
    """Where drafting happens: (owner, name of the method). V2 asks its speculator, V1 itself."""
    speculator = getattr(runner, "speculator", None)
    return (speculator, "propose") if speculator else (runner, "propose_draft_token_ids")


def _context_tokens(scheduler_output: Any) -> int | None:
    """Tokens that the step's running requests hold in the KV cache before it.

    With asynchronous scheduling vLLM counts drafts as accepted until it knows better, which makes
    it up to N tokens a request too many.
    """
    running = getattr(scheduler_output, "scheduled_cached_reqs", None)
    lengths = getattr(running, "num_computed_tokens", None)
    return None if lengths is None else sum(lengths)


class _Recorder:
    """Holds the open step and the finished ones of one model runner."""

    def __init__(self, runner: Any, clock: Any) -> None:
        self.clock = clock
        self.open: dict[str, Any] | None = None
        self.done: list[dict[str, Any]] = []
        self._patched: list[tuple[Any, str]] = []
        self.drafter = _drafter(runner)
        try:
            self._patch(runner, "execute_model", self._wrap_execute)
            self._patch(runner, "sample_tokens", self._wrap_sample)
            if self.drafter is not None:
                self._patch(*_drafting(runner), self._wrap_draft)
        except BaseException:
            self.remove()
            raise

    def _patch(self, owner: Any, name: str, wrap: Any) -> None:
        setattr(owner, name, wrap(getattr(owner, name)))  # shadows the class's method
        self._patched.append((owner, name))

    def remove(self) -> None:
        """Take all patches back: the class's own methods are visible again."""
        for owner, name in self._patched:
            delattr(owner, name)
        self._patched.clear()

    def _wrap_execute(self, original: Any) -> Any:
        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dummy_run") or not scheduler_output.total_num_scheduled_tokens:
                return original(scheduler_output, *args, **kwargs)
            scheduled = scheduler_output.num_scheduled_tokens
            drafts = scheduler_output.scheduled_spec_decode_tokens
            self.open = {
                "host": time.perf_counter(),
                "begin": self.clock.now(),
                "drafting": [],
                "requests": len(scheduled),
                "tokens": scheduler_output.total_num_scheduled_tokens,
                "drafted": sum(len(tokens) for tokens in drafts.values()),
                # a decode step gives each request one token plus its drafts to verify
                "decode": not scheduler_output.scheduled_new_reqs
                and all(n <= 1 + len(drafts.get(r, ())) for r, n in scheduled.items()),
                "context": _context_tokens(scheduler_output),
            }
            return original(scheduler_output, *args, **kwargs)

        return execute_model

    def _wrap_sample(self, original: Any) -> Any:
        def sample_tokens(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            step, self.open = self.open, None
            if step is not None:
                step["end"] = self.clock.now()
                self.done.append(step)
            return output

        return sample_tokens

    def _wrap_draft(self, original: Any) -> Any:
        def propose(*args: Any, **kwargs: Any) -> Any:
            step = self.open
            if step is None:
                return original(*args, **kwargs)
            begin = self.clock.now()
            output = original(*args, **kwargs)
            step["drafting"].append((begin, self.clock.now()))
            return output

        return propose

    def drain(self) -> list[list[float | None]]:
        """Rows of COLUMNS for the steps since the last drain; seconds; `start` is host time."""
        self.clock.settle()
        steps, self.done = self.done, []
        return [self._row(step) for step in steps]

    def _row(self, step: dict[str, Any]) -> list[float | None]:
        draft = sum(self.clock.seconds(begin, end) for begin, end in step["drafting"])
        return [
            step["host"],
            self.clock.seconds(step["begin"], step["end"]),
            draft,
            step["requests"],
            step["tokens"],
            step["drafted"],
            float(step["decode"]),
            step["context"],
        ]


class StepTimer:
    """Mixed into vLLM's worker class; `self` is the worker."""

    def spectune_about(self) -> dict[str, Any]:
        """Which model runner this worker has, and what drafts here (None: nothing does)."""
        runner = self.model_runner  # type: ignore[attr-defined]
        drafter = _drafter(runner)
        return {
            "name": f"{type(runner).__module__}.{type(runner).__qualname__}",
            "v2": any(kind.__module__ == V2_RUNNER for kind in type(runner).__mro__),
            "drafter": None if drafter is None else type(drafter).__name__,
        }

    def spectune_start(self) -> dict[str, bool]:
        """Begin timing; a second call starts over. Says whether anything drafts here."""
        import torch

        worker: Any = self
        runner = worker.model_runner
        if not hasattr(runner, "_spectune"):
            device = worker.device.type
            clock = _HostClock() if device == "cpu" else _EventClock(getattr(torch, device))
            runner._spectune = _Recorder(runner, clock)
        runner._spectune.drain()
        return {"drafter": runner._spectune.drafter is not None}

    def spectune_stop(self) -> dict[str, bool]:
        """Stop timing and remove every patch. Says whether there was anything to stop."""
        runner = self.model_runner  # type: ignore[attr-defined]
        recorder = getattr(runner, "_spectune", None)
        if recorder is not None:
            recorder.remove()
            del runner._spectune
        return {"stopped": recorder is not None}

    def spectune_drain(self) -> dict[str, Any]:
        """The steps since the last call, and whether drafting was timed among them.

        Empty when timing was never started.
        """
        recorder = getattr(self.model_runner, "_spectune", None)  # type: ignore[attr-defined]
        if recorder is None:
            return {"steps": [], "drafter": False}
        return {"steps": recorder.drain(), "drafter": recorder.drafter is not None}
