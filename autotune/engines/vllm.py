"""The real engine: a managed `vllm serve` process on the loopback interface."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import tempfile
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import autotune
from autotune.engines import EngineOptions, Offer, Progress
from autotune.engines.last_words import reason
from autotune.engines.process import ManagedProcess, cleanup_stale, describe_exit, free_port
from autotune.engines.server import Server
from autotune.engines.vllm_session import VllmSession
from autotune.environment import EngineInfo, probe_engine
from autotune.errors import ConfigurationError, EngineStartError, LiveSwitchError
from autotune.records import BASELINE, Arm, Target
from autotune.vllm_plugin.control import ENVIRONMENT_VARIABLE, ControlFile

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
START_ESTIMATE_SECONDS = {"cpu": 45.0}  # others: 180
LIVE_SINCE = (0, 24)  # first vLLM with num_speculative_tokens_per_batch_size
SCHEDULER = "autotune.vllm_plugin.scheduler.LiveScheduler"
STEP_TIMER = "autotune.vllm_plugin.worker.StepTimer"
OWNED_FLAGS = (
    "--host",
    "--port",
    "--uds",
    "--speculative-config",
    "--spec-method",
    "--spec-model",
    "--spec-tokens",
    "--scheduler-cls",
    "--worker-extension-cls",
)
# On a CPU that others share, numba's thread pool makes the n-gram drafter many times slower and
# pinned OpenMP threads fight for one core.
CPU_ENVIRONMENT = {"NUMBA_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


class VllmEngine:
    """Starts vLLM servers, one at a time, from one interpreter."""

    name = "vllm"

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.log_dir = Path(options.log_dir or "studies/engine-logs").absolute()
        self._starts = 0

    @cached_property
    def info(self) -> EngineInfo:
        """What the interpreter has. Raises EngineStartError when vLLM is not among it."""
        info = probe_engine(self.options.vllm_python)
        if info.vllm is None:
            raise EngineStartError(
                f"vLLM is not installed for {info.python}",
                hint="install vLLM there, or name the interpreter that has it: --vllm-python PATH",
            )
        return info

    def open(self, target: Target, arm: Arm, progress: Progress) -> VllmSession:
        check_engine_args(target)
        if arm.method != BASELINE and not arm.speculative_config:
            raise EngineStartError(f"there is no speculative config for {arm.method}")
        self._check_live(target, arm)
        for cleaned in cleanup_stale(self.log_dir / "state"):
            logger.warning("ended an engine that an earlier run had left behind: %s", cleaned)
        began = time.monotonic()
        run_dir = Path(tempfile.mkdtemp(prefix="spectune-"))
        port = free_port(HOST)
        control = ControlFile(run_dir / "control") if arm.live else None
        process = ManagedProcess.start(
            self.argv(target, arm, port),
            {**os.environ, **self.environment(run_dir, arm, control)},
            log_path=self._log_path(arm),
            state_dir=self.log_dir / "state",
        )
        server = Server(f"http://{HOST}:{port}", self.options.request_timeout_seconds)
        session = VllmSession(process, server, arm, control, run_dir)
        try:
            self._wait_until_ready(process, server, progress, arm)
            session.prepare()
        except BaseException:
            session.close()
            raise
        session.start_seconds = time.monotonic() - began
        return session

    def _check_live(self, target: Target, arm: Arm) -> None:
        """Refuse a live start that cannot work, before it costs anything."""
        if not arm.live:
            return
        version = tuple(int(part) for part in re.findall(r"\d+", self.info.vllm or "")[:2])
        if version < LIVE_SINCE:
            raise LiveSwitchError(f"vLLM {self.info.vllm} cannot switch N while it runs")
        if data_parallel_size(target.engine_args) > 1:
            raise LiveSwitchError("vLLM drops the schedule under data parallelism")

    def argv(self, target: Target, arm: Arm, port: int) -> list[str]:
        """The server's command line."""
        info = self.info
        start = (
            [info.vllm_command, "serve", target.model]
            if info.vllm_command
            else [info.python, "-m", "vllm.entrypoints.openai.api_server", "--model", target.model]
        )
        argv = [*start, "--host", HOST, "--port", str(port), *target.engine_args]
        if arm.speculative_config is not None:
            argv += ["--speculative-config", json.dumps(_config(arm), separators=(",", ":"))]
        if arm.live:
            argv += ["--scheduler-cls", SCHEDULER]
        if arm.instrumented:
            argv += ["--worker-extension-cls", STEP_TIMER]
        return argv

    def environment(self, run_dir: Path, arm: Arm, control: ControlFile | None) -> dict[str, str]:
        """What we add to the user's environment, and nothing of it when not needed."""
        added = {"VLLM_NO_USAGE_STATS": os.environ.get("VLLM_NO_USAGE_STATS", "1")}
        if self.info.platform == "cpu":
            added |= {k: v for k, v in CPU_ENVIRONMENT.items() if k not in os.environ}
        if arm.instrumented or arm.live:
            plugin = _copy_plugin(run_dir)
            paths = [str(plugin), *filter(None, [os.environ.get("PYTHONPATH")])]
            added["PYTHONPATH"] = os.pathsep.join(paths)
        if arm.instrumented:
            added["VLLM_SERVER_DEV_MODE"] = "1"  # opens collective RPC, on loopback only
        if control is not None:
            added[ENVIRONMENT_VARIABLE] = str(control.path)
        return added

    def _log_path(self, arm: Arm) -> Path:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._starts += 1
        stamp = time.strftime("%Y%m%d-%H%M%S")
        return self.log_dir / f"{stamp}-{self._starts}-{arm.key.replace(':', '-')}.log"

    def _wait_until_ready(
        self, process: ManagedProcess, server: Server, progress: Progress, arm: Arm
    ) -> None:
        began = time.monotonic()
        while not server.healthy():
            code, waited = process.poll(), time.monotonic() - began
            if code is not None:
                words = process.last_words()
                why = reason(words) or "it said nothing"
                raise EngineStartError(
                    f"vLLM did not start ({describe_exit(code)}): {why}", last_words=words
                )
            if waited > self.options.start_timeout_seconds:
                raise EngineStartError(
                    f"vLLM was not ready after {waited:.0f} s", last_words=process.last_words(5)
                )
            name = "no speculation" if arm.method == BASELINE else arm.method
            progress(f"starting vLLM for {name} ({waited:.0f} s)")
            time.sleep(0.5)

    def command(self, target: Target, arm: Arm) -> str:
        check_engine_args(target)
        shown = {k: v for k, v in CPU_ENVIRONMENT.items() if k not in os.environ}
        prefix = [f"{k}={v}" for k, v in shown.items()] if self.info.platform == "cpu" else []
        argv = shlex.join(self.argv(target, arm, 0)).replace("--port 0", "--port PORT")
        return " ".join([*prefix, argv])

    def estimated_start_seconds(self) -> float:
        return START_ESTIMATE_SECONDS.get(self.info.platform or "", 180.0)

    def offer(self) -> Offer | None:
        return None

    def identity(self) -> dict[str, Any]:
        return {"distribution": self.info.distribution}


ENGINE = VllmEngine


def check_engine_args(target: Target) -> None:
    """Raises ConfigurationError for flags that spectune itself decides."""
    for argument in target.engine_args:
        flag = argument.split("=", 1)[0].replace("_", "-")
        if flag in OWNED_FLAGS or flag == "-sc":
            raise ConfigurationError(
                f"{flag} after -- is decided by spectune",
                hint="choose what to try with --methods, --drafter and --num-speculative-tokens",
            )


def data_parallel_size(engine_args: tuple[str, ...]) -> int:
    """The value of --data-parallel-size / -dp; 1 when absent. ConfigurationError if no number."""
    text = shlex.join(engine_args).replace("_", "-")
    found = re.search(r"(?:^|\s)(?:--data-parallel-size|-dp)[= ]+(\S+)", text)
    if found is None:
        return 1
    if not found[1].isdigit():
        raise ConfigurationError(f"--data-parallel-size {found[1]} is not a number")
    return int(found[1])


def _config(arm: Arm) -> dict[str, Any]:
    """The speculative config of this start; a live one names each N once.

    vLLM's V2 runner captures graphs for every N of the start schedule; our scheduler overrides
    the schedule itself at run time.
    """
    config = dict(arm.speculative_config or {})
    if arm.live:
        top = arm.num_speculative_tokens
        tiers = [[n + 1, n + 1, n] for n in range(top)]
        config["num_speculative_tokens_per_batch_size"] = [*tiers, [top + 1, top + 1, top]]
    return config


def _copy_plugin(run_dir: Path) -> Path:
    """Put the plugin alone on a folder, so that any interpreter can import it and nothing else."""
    source, target = Path(autotune.__file__).parent, run_dir / "plugin"
    if not target.exists():
        shutil.copytree(
            source / "vllm_plugin",
            target / "autotune" / "vllm_plugin",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        shutil.copy(source / "__init__.py", target / "autotune" / "__init__.py")
    return target
