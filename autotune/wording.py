"""Values in words, the same on a terminal, in reports and in tables."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.records import BASELINE, Cost, LoadChoice, Recommendation, Tier


def duration(seconds: float) -> str:
    """ "1 h 5 min", "3 min 20 s", "12 s"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def counted(number: int, noun: str) -> str:
    """ "1 engine start", "2 engine starts"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def cost_text(c: Cost) -> str:
    """ "6 engine starts, 9 measurements, 3 s"."""
    starts, probes = counted(c.engine_starts, "engine start"), counted(c.probes, "measurement")
    return f"{starts}, {probes}, {duration(c.total_seconds)}"


def tiers_text(tiers: Sequence[Tier]) -> str:
    """ "1-13: 7, from 14: 3": vLLM carries the last N on. `tiers` not empty."""
    *closed, (first, _, n) = tiers
    return ", ".join([*(f"{a}-{b}: {k}" for a, b, k in closed), f"from {first}: {n}"])


def over_text(r: Recommendation) -> str:
    """What a speed-up over several loads is; "" for a single load."""
    return ": one setting for all loads, geometric mean" if len(r.per_concurrency) > 1 else ""


def keeps_limits(r: Recommendation) -> bool:
    """Whether the overall choice was seen to keep the latency limits at every load."""
    key = (r.method, r.num_speculative_tokens)
    shares = {
        c.concurrency: c.share_within_limits
        for c in r.candidates
        if (c.method, c.num_speculative_tokens) == key and c.share_within_limits is not None
    }
    least = r.limits_share
    if r.limits is None or least is None or not r.per_concurrency:
        return False
    return all(shares.get(choice.concurrency, 0.0) >= least for choice in r.per_concurrency)


def load_text(concurrency: int | None) -> str:
    return "unstated" if concurrency is None else str(concurrency)


def lengths_text(lengths: Sequence[int], separator: str = ",") -> str:
    """(1, 2, 3, 5) -> "1-3,5". `lengths` ascending."""
    runs: list[list[int]] = []
    for n in lengths:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return separator.join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def candidate_text(method: str, n: int | None) -> str:
    """ "dflash N=7", "dflash" for the whole method, "no speculation"."""
    if method == BASELINE:
        return "no speculation"
    return method if n is None else f"{method} N={n}"


def choice_text(c: LoadChoice) -> str:
    """ "dflash N=7", "dflash N=7 leads (inconclusive)", "do not speculate", "inconclusive"."""
    if c.method == BASELINE:
        return "do not speculate" if c.decision == "do_not_speculate" else "inconclusive"
    lead = "" if c.decision == "speculate" else " leads (inconclusive)"
    return candidate_text(c.method, c.num_speculative_tokens) + lead


def setting_text(r: Recommendation) -> str:
    """ "dflash with 7 speculative tokens", "mtp with N by batch size (1-4: 5, from 5: 3)"."""
    if r.schedule:
        return f"{r.method} with N by batch size ({tiers_text(r.schedule)})"
    return f"{r.method} with {counted(r.num_speculative_tokens, 'speculative token')}"
