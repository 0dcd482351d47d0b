"""Values in words, the same on a terminal, in reports and in tables."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.records import Tier


def duration(seconds: float) -> str:
    """ "1 h 5 min", "3 min 20 s", "12 s"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def tiers_text(tiers: Sequence[Tier]) -> str:
    """ "1-13: 7, from 14: 3": vLLM carries the last N on. `tiers` not empty."""
    *closed, (first, _, n) = tiers
    return ", ".join([*(f"{a}-{b}: {k}" for a, b, k in closed), f"from {first}: {n}"])
