"""The real engine: a managed `vllm serve` process on the loopback interface."""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import tempfile
import time
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import autotune
from autotune.engines import EngineOptions, Offer, Progress
from autotune.engines.arguments import check_engine_args, data_parallel_size
from autotune.engines.drafts import drafts_arguments
from autotune.engines.last_words import reason, with_log
from autotune.engines.live import why_not_live, why_not_switched
from autotune.engines.process import (
    ManagedProcess,
    cleanup_stale,
    describe_exit,
    free_port,
    state_dir,
)
from autotune.engines.server import Server
from autotune.engines.vllm_session import VllmSession
from autotune.errors import EngineDiedError, EngineStartError, LiveSwitchError
from autotune.machine.environment import EngineInfo, probe_engine
from autotune.machine.variables import missing_on_cpu
from autotune.preflight.client import Validator, ValidatorError
from autotune.records import BASELINE, Arm, MethodSpace, Target
from autotune.vllm_plugin.control import ENVIRONMENT_VARIABLE, ControlFile

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
START_ESTIMATE_SECONDS = {"cpu": 45.0}  # others: 180
GRACE_SECONDS = 20.0  # for a polite end: with several GPUs vLLM needs a while
SCHEDULER = "autotune.vllm_plugin.scheduler.LiveScheduler"
STEP_TIMER = "autotune.vllm_plugin.worker.StepTimer"
HIDDEN = ("VLLM_API_KEY",)  # of the user's environment: our requests carry no key


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
        check_engine_args(target.engine_args)
        if arm.method != BASELINE and not arm.speculative_config:
            raise EngineStartError(f"there is no speculative config for {arm.method}")
        _refuse(why_not_live(self.info, target.engine_args, arm.method) if arm.live else None)
        for cleaned in cleanup_stale(state_dir()):
            logger.warning("ended an engine that an earlier run had left behind: %s", cleaned)
        began = time.monotonic()
        with ExitStack() as on_failure:
            session, process, server = self._start(target, arm, on_failure)
            self._wait_until_ready(process, server, progress, arm)
            try:
                session.prepare()
            except EngineDiedError as error:
                raise session.obituary(error) from error
            if arm.live:
                _refuse(why_not_switched(self.info, session.runner, arm.method))
            on_failure.pop_all()
        session.start_seconds = time.monotonic() - began
        return session

    def _start(
        self, target: Target, arm: Arm, on_failure: ExitStack
    ) -> tuple[VllmSession, ManagedProcess, Server]:
        """Start the process; `on_failure` undoes it."""
        try:
            run_dir = Path(tempfile.mkdtemp(prefix="spectune-"))
            on_failure.callback(shutil.rmtree, run_dir, ignore_errors=True)
            if arm.live or arm.instrumented:
                _copy_plugin(run_dir)
            control = ControlFile(_control(run_dir)) if arm.live else None
            port = free_port(HOST)
        except OSError as error:
            raise EngineStartError(f"cannot prepare an engine start: {error}") from error
        inherited = {k: v for k, v in os.environ.items() if k not in HIDDEN}
        process = ManagedProcess.start(
            self.argv(target, arm, port),
            {**inherited, **self.environment(run_dir, arm)},
            log_path=self._log_path(arm),
            state_dir=state_dir(),
            grace_seconds=GRACE_SECONDS,
        )
        server = Server(f"http://{HOST}:{port}", self.options.request_timeout_seconds)
        one_engine = data_parallel_size(target.engine_args) == 1
        session = VllmSession(process, server, arm, control, run_dir, one_engine)
        on_failure.callback(session.close)
        return session, process, server

    def validator(self, progress: Progress) -> Validator:
        """vLLM's own validators, in the interpreter and environment of its servers.

        Raises ValidatorError where they cannot be had.
        """
        try:
            python = self.info.python
        except EngineStartError as error:
            raise ValidatorError(error.message) from error
        inherited = {k: v for k, v in os.environ.items() if k not in HIDDEN}
        environment = {**inherited, **self.environment(Path(), Arm())}
        return Validator(python, environment, progress)

    def why_not_live(self, target: Target, space: MethodSpace) -> str | None:
        return why_not_live(self.info, target.engine_args, space.method)

    def argv(self, target: Target, arm: Arm, port: int) -> list[str]:
        """The server's command line."""
        info = self.info
        start = (
            [info.vllm_command, "serve", target.model]
            if info.vllm_command
            else [info.python, "-m", "vllm.entrypoints.openai.api_server", "--model", target.model]
        )
        return [*start, *self.serve_arguments(target, arm, port)]

    def serve_arguments(self, target: Target, arm: Arm, port: int = 0) -> list[str]:
        """What follows the model on that line; what comes last counts, so ours comes last."""
        info = self.info
        argv = [*target.engine_args, "--host", HOST, "--port", str(port)]
        speculating = arm.speculative_config is not None
        if speculating:
            argv += ["--speculative-config", json.dumps(_config(arm), separators=(",", ":"))]
        argv += drafts_arguments(info, target.engine_args, speculating=speculating)
        if arm.live:
            argv += ["--scheduler-cls", SCHEDULER]
        if arm.instrumented:
            argv += ["--worker-extension-cls", STEP_TIMER]
        return argv

    def environment(self, run_dir: Path, arm: Arm) -> dict[str, str]:
        """What we add to the user's environment, and nothing of it when not needed."""
        added = {"VLLM_NO_USAGE_STATS": os.environ.get("VLLM_NO_USAGE_STATS", "1")}
        if self.info.platform == "cpu":
            added |= missing_on_cpu(os.environ)
        if arm.instrumented or arm.live:
            paths = [str(_plugin(run_dir)), *filter(None, [os.environ.get("PYTHONPATH")])]
            added["PYTHONPATH"] = os.pathsep.join(paths)
        if arm.instrumented:
            added["VLLM_SERVER_DEV_MODE"] = "1"  # opens collective RPC, on loopback only
        if arm.live:
            added[ENVIRONMENT_VARIABLE] = str(_control(run_dir))
        return added

    def _log_path(self, arm: Arm) -> Path:
        self._starts += 1
        stamp = time.strftime("%Y%m%d-%H%M%S")
        return self.log_dir / f"{stamp}-{self._starts}-{arm.key.replace(':', '-')}.log"

    def _wait_until_ready(
        self, process: ManagedProcess, server: Server, progress: Progress, arm: Arm
    ) -> None:
        began = time.monotonic()
        while not server.healthy():
            code, waited = process.poll(), time.monotonic() - began
            if code is not None or waited > self.options.start_timeout_seconds:
                raise _start_error(process, code, waited)
            name = "no speculation" if arm.method == BASELINE else arm.method
            progress(f"starting vLLM for {name} ({waited:.0f} s)")
            time.sleep(0.5)

    def command(self, target: Target, arm: Arm) -> str:
        """For --dry-run. RUN_DIR is a temporary folder, PORT a free port."""
        check_engine_args(target.engine_args)
        argv = shlex.join(self.argv(target, arm, 0)).replace("--port 0", "--port PORT")
        added = self.environment(Path("RUN_DIR"), arm)
        variables = [f"{name}={shlex.quote(value)}" for name, value in added.items()]
        hidden = [f"-u {name}" for name in HIDDEN if name in os.environ]
        return " ".join([*(["env", *hidden] if hidden else []), *variables, argv])

    def estimated_start_seconds(self) -> float:
        return START_ESTIMATE_SECONDS.get(self.info.platform or "", 180.0)

    def offer(self) -> Offer | None:
        return None

    def identity(self) -> dict[str, Any]:
        return {"distribution": self.info.distribution}


ENGINE = VllmEngine


def _refuse(reason_against: str | None) -> None:
    if reason_against is not None:
        raise LiveSwitchError(reason_against)


def _start_error(process: ManagedProcess, code: int | None, waited: float) -> EngineStartError:
    """Why the server did not become ready; `code` None: it still runs."""
    words = process.last_words(20 if code is not None else 5)
    why = f"vLLM was not ready after {waited:.0f} s"
    if code is not None:
        said = reason(words) or "it said nothing"
        why = f"vLLM did not start ({describe_exit(code)}): {said}"
    return EngineStartError(why, last_words=with_log(words, process.log_path))


def _config(arm: Arm) -> dict[str, Any]:
    """The speculative config of this start; a live one names each N that will be asked for.

    Our scheduler overrides the schedule itself at run time, but vLLM's V2 runner captures graphs
    for the N that stand in it, at a batch size up to --max-num-seqs. The largest N stands first,
    to be there always, and last, since capture sizes follow the last one. With more lengths than
    --max-num-seqs those in between are captured in part only; the others run without graphs.
    """
    config = dict(arm.speculative_config or {})
    if arm.live:
        top = arm.num_speculative_tokens
        between = sorted(set(arm.lengths or range(1, top)) - {top})
        tiers = [top, *between, top] if between else [top]
        schedule = [[size, size, n] for size, n in enumerate(tiers, 1)]
        config["num_speculative_tokens_per_batch_size"] = schedule
    return config


def _plugin(run_dir: Path) -> Path:
    return run_dir / "plugin"


def _control(run_dir: Path) -> Path:
    return run_dir / "control"


def _copy_plugin(run_dir: Path) -> None:
    """Put the plugin alone on a folder, so that any interpreter can import it and nothing else."""
    source, target = Path(autotune.__file__).parent, _plugin(run_dir) / "autotune"
    shutil.copytree(
        source / "vllm_plugin",
        target / "vllm_plugin",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copy(source / "__init__.py", target / "__init__.py")
