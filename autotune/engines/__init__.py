"""Engines: where measurements come from. One file an engine; each defines `ENGINE`.

The tuner only ever sees `Engine` and `Session`; the same tuner code runs on all of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

from pydantic import Field

from autotune.errors import ConfigurationError
from autotune.records import (
    Arm,
    Block,
    Environment,
    MethodSpace,
    Record,
    Skipped,
    Target,
    Window,
)

Progress = Callable[[str], None]  # one line for a person, e.g. "starting vLLM (12 s)"


class Capabilities(Record):
    """What a session can do; the tuner adapts instead of asking for what cannot be had."""

    live_n: bool  # set_num_speculative_tokens works
    step_timing: bool  # windows carry `steps`
    counters: bool  # windows carry `counters`
    outputs: bool  # windows carry the requests' texts: quality can be checked
    warmup: bool  # first windows of a start must be discarded


class EngineOptions(Record):
    """Every engine's options in one place; an engine reads the ones it knows."""

    seed: int = 0
    live_n: bool = True
    recording: str | None = None  # replay: the file to play back
    noise: float | None = None  # replay, simulate: relative standard deviation of each answer
    simulation: str | None = None  # simulate: name of a packaged scenario, or a JSON file
    vllm_python: str | None = None  # vllm: interpreter that has vLLM; None: our own
    log_dir: str | None = None  # vllm: where engine logs go
    start_timeout_seconds: float = Field(default=1800.0, gt=0)
    request_timeout_seconds: float = Field(default=600.0, gt=0)


class Offer(Record):
    """What a closed engine (recording, simulation) can be asked: there is nothing else to try."""

    model: str
    workload: str
    environment: Environment
    spaces: tuple[MethodSpace, ...]
    concurrencies: tuple[int | None, ...]
    skipped: tuple[Skipped, ...] = ()
    repeats: bool = True  # measuring the same block again gives new information
    latencies: bool = True  # windows carry the times of single requests
    schedules: bool = True  # N may follow the batch size


class Session(Protocol):
    """One running engine. `run` may be called until `close`, which is always called."""

    capabilities: Capabilities
    start_seconds: float  # what this start cost

    def set_num_speculative_tokens(self, n: int) -> None:
        """Switch N on the running engine, 0..arm.num_speculative_tokens.

        Raises LiveSwitchError where the engine cannot or did not switch.
        """

    def run(self, block: Block) -> Window:
        """Send one block as a closed loop and measure it.

        Raises EngineDiedError when the engine is gone or hangs, LiveSwitchError when counters
        show another N than the one set, UnusableMeasurementError when nothing can be ranked.
        """

    def close(self) -> None:
        """Stop the engine and prove that nothing of it is left. Never raises for a dead engine."""


class Engine(Protocol):
    """Opens sessions. `name` is what `--engine` takes."""

    name: str

    def open(self, target: Target, arm: Arm, progress: Progress) -> Session:
        """Start the engine for one arm and wait until it is ready.

        Raises EngineStartError (with the engine's last words) when it cannot be started, and
        LiveSwitchError for a live arm where N cannot be switched.
        """

    def command(self, target: Target, arm: Arm) -> str:
        """The exact command `open` would run, for --dry-run."""

    def why_not_live(self, target: Target, space: MethodSpace) -> str | None:
        """What speaks against one start for all N of a method, before it; None: nothing known.

        `open` of a live arm may still raise LiveSwitchError: the running engine knows more.
        """

    def estimated_start_seconds(self) -> float:
        """What one start will roughly cost, for the search and for --dry-run."""

    def offer(self) -> Offer | None:
        """What can be measured, where the engine itself limits it; None for a real engine."""

    def identity(self) -> dict[str, Any]:
        """JSON-able facts that make two runs of this engine comparable (recording digest, ...)."""


ENGINES = ("vllm", "replay", "simulate")


def load_engine(name: str, options: EngineOptions) -> Engine:
    """Build the engine called `name` from the module of that name, which defines ENGINE.

    Raises ConfigurationError for an unknown name.
    """
    if name not in ENGINES:
        raise ConfigurationError(
            f"unknown engine {name!r}", hint=f"choose one of: {', '.join(ENGINES)}"
        )
    module = importlib.import_module(f"autotune.engines.{name}")
    factory: Callable[[EngineOptions], Engine] = module.ENGINE
    return factory(options)
