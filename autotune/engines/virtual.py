"""What the engines without hardware (replay, simulate) share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autotune.errors import ConfigurationError, LiveSwitchError
from autotune.records import BASELINE, Arm, Block, digest


def generator(*identity: Any) -> np.random.Generator:
    """A generator that depends on `identity` (JSON-able) alone, not on what was drawn before."""
    return np.random.default_rng(int(digest(list(identity)), 16))


def require_noise(noise: float | None) -> float:
    """The relative standard deviation to use; raises ConfigurationError for an impossible one."""
    if noise is None:
        return 0.0
    if not (math.isfinite(noise) and 0 <= noise <= 1):
        raise ConfigurationError(f"noise {noise} is not a relative standard deviation, 0 to 1")
    return noise


def require_switch(arm: Arm, n: int, live_n: bool) -> None:
    """Raise LiveSwitchError unless this session can run with `n` drafted tokens."""
    if not live_n:
        raise LiveSwitchError(
            f"{arm.method} was started with a fixed N={arm.num_speculative_tokens}",
            hint="N can be switched on a live start only",
        )
    if not 0 <= n <= arm.num_speculative_tokens:
        raise LiveSwitchError(
            f"N={n} is outside 0..{arm.num_speculative_tokens}, for which {arm.method} was started"
        )


def describe(arm: Arm) -> str:
    """`mtp N=0..7 live`, `mtp N=3`, `no speculation`."""
    if arm.method == BASELINE:
        return "no speculation"
    if arm.live:
        return f"{arm.method} N=0..{arm.num_speculative_tokens} live"
    if arm.schedule:
        tiers = ", ".join(f"{n} to batch size {last}" for _, last, n in arm.schedule)
        return f"{arm.method} N={tiers}"
    return f"{arm.method} N={arm.num_speculative_tokens}"


class Calls:
    """Counts equal calls of one session, so that a repeated block gets fresh noise."""

    def __init__(self, seed: int, arm: Arm) -> None:
        self._seed = seed
        self._arm = arm
        self._seen: dict[tuple[int, str], int] = {}

    def generator(self, n: int, block: Block) -> np.random.Generator:
        """Generator of this call. It depends on (seed, arm, N, block, how often asked) alone."""
        call = (n, block.key)
        repeat = self._seen[call] = self._seen.get(call, -1) + 1
        return generator(self._seed, self._arm.key, n, block.key, repeat)
