"""`--scheduler-cls autotune.vllm_plugin.scheduler.LiveScheduler`: N follows the control file.

vLLM (0.24 and later) picks the number of drafted tokens of each step from
`dynamic_sd_lookup[batch size]` when the engine was started with
`num_speculative_tokens_per_batch_size`. We overwrite that table when another N is asked for and
change nothing else, so scheduling, sampling and greedy output stay vLLM's own.
"""

from __future__ import annotations

import logging
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from autotune.vllm_plugin.control import AS_CONFIGURED, ControlReader

logger = logging.getLogger("vllm.spectune")


class _LiveMixin:
    """Re-reads the requested N before each step."""

    dynamic_sd_lookup: list[int] | None
    num_spec_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._spectune_control = ControlReader.from_environment()
        self._spectune_n = AS_CONFIGURED
        self._spectune_configured = getattr(self, "dynamic_sd_lookup", None)
        if self._spectune_configured is None:
            self._spectune_control = None  # no schedule to steer: behave as the parent class
        logger.info("spectune: live N %s", "on" if self._spectune_control else "off")

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        if self._spectune_control is not None:
            n = self._spectune_control.requested()
            if n != self._spectune_n:
                self._apply(n)
        return super().schedule(*args, **kwargs)  # type: ignore[misc]

    def _apply(self, n: int) -> None:
        table = self._spectune_configured
        if table is not None and n != AS_CONFIGURED:
            table = [min(n, self.num_spec_tokens)] * len(table)
        self.dynamic_sd_lookup = table
        self._spectune_n = n


class _LiveSync(_LiveMixin, Scheduler):  # type: ignore[misc]
    pass


class _LiveAsync(_LiveMixin, AsyncScheduler):  # type: ignore[misc]
    pass


def LiveScheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    """What vLLM calls in place of its scheduler class: the variant its configuration needs."""
    chosen = _LiveAsync if vllm_config.scheduler_config.async_scheduling else _LiveSync
    return chosen(vllm_config, *args, **kwargs)
