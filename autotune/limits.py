"""Latency limits (`--goodput`): which requests keep them, and who may be recommended for a load.

As in vLLM a request is good when it keeps every limit. A candidate, or not speculating, may be
recommended for a load when at least `Settings.limits_share` of its requests there are good. What
was never run is ruled out only when even its fastest prediction would leave the median request
outside: at a fixed number of requests in flight, time per token falls as throughput rises. At a
load where the limits are out of reach the search goes by throughput alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from autotune.errors import ConfigurationError
from autotune.records import BASELINE, Limits, RequestResult, Window

if TYPE_CHECKING:
    from autotune.knowledge import Key, Knowledge, Load

FIELDS = {"ttft": "ttft_seconds", "tpot": "tpot_seconds", "e2el": "e2el_seconds"}
HINT = "write tpot:30,ttft:500 (milliseconds); known: " + ", ".join(FIELDS)
NO_SPECULATION = (BASELINE, 0)


def parse_goodput(text: str) -> Limits:
    """ "tpot:30,ttft:500", in milliseconds as `vllm bench serve --goodput` takes them; blanks also
    separate. Raises ConfigurationError for anything else.
    """
    found: dict[str, float] = {}
    for pair in text.replace(",", " ").split():
        name, _, value = pair.partition(":")
        if name not in FIELDS:
            raise ConfigurationError(f"--goodput {pair!r} names no latency", hint=HINT)
        if FIELDS[name] in found:
            raise ConfigurationError(f"--goodput limits {name} twice", hint=HINT)
        found[FIELDS[name]] = _milliseconds(pair, value) / 1000
    if not found:
        raise ConfigurationError("--goodput sets no limit", hint=HINT)
    return Limits.model_validate(found)


def _milliseconds(pair: str, value: str) -> float:
    try:
        limit = float(value)
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise ConfigurationError(
            f"--goodput {pair!r} is not a positive number of milliseconds", hint=HINT
        )
    return limit


def describe(limits: Limits) -> str:
    """ "tpot 30 ms, ttft 500 ms"."""
    given = ((name, getattr(limits, field)) for name, field in FIELDS.items())
    return ", ".join(f"{name} {seconds * 1000:g} ms" for name, seconds in given if seconds)


# ------------------------------------------------------------------------------- what was measured


def is_good(limits: Limits, request: RequestResult) -> bool | None:
    """Whether a request keeps every limit; a failed one does not. None: it was not timed."""
    if request.error is not None:
        return False
    times = _times(request)
    if times is None:
        return None
    ttft, tpot, decode = times
    total = ttft + decode
    pairs = ((ttft, limits.ttft_seconds), (tpot, limits.tpot_seconds), (total, limits.e2el_seconds))
    return all(limit is None or value <= limit for value, limit in pairs)


def _times(request: RequestResult) -> tuple[float, float, float] | None:
    """TTFT, TPOT and the time after the first token, in seconds; None where it was not timed.

    An answer without text has its first token with its end. As in vLLM an answer of one token has
    a TPOT of 0.
    """
    total, tokens = request.end_to_end_seconds, request.completion_tokens or 1
    if total is None:
        return None
    ttft = total if request.ttft_seconds is None else request.ttft_seconds
    return ttft, (total - ttft) / (tokens - 1) if tokens > 1 else 0.0, total - ttft


def share_within(limits: Limits | None, windows: Iterable[Window]) -> float | None:
    """Share of all timed requests of these windows that are good; None without any."""
    if limits is None:
        return None
    judged = [is_good(limits, request) for window in windows for request in window.requests]
    timed = [good for good in judged if good is not None]
    return sum(timed) / len(timed) if timed else None


def goodput(limits: Limits | None, windows: Sequence[Window]) -> float | None:
    """Good requests per second, as vLLM's benchmark counts them; None where it was not timed."""
    share = share_within(limits, windows)
    seconds = [window.duration_seconds for window in windows]
    known = [value for value in seconds if value is not None]
    if limits is None or share is None or len(known) < len(seconds):
        return None
    good = sum(bool(is_good(limits, r)) for window in windows for r in window.requests)
    return good / math.fsum(known)


class Medians(NamedTuple):
    """Of the requests of some windows, in seconds."""

    ttft_seconds: float
    tpot_seconds: float
    decode_seconds: float  # from the first token to the last


def medians(windows: Iterable[Window]) -> Medians | None:
    """None where no request was timed."""
    times = [_times(request) for window in windows for request in window.requests]
    timed = [each for each in times if each is not None]
    if not timed:
        return None
    return Medians(*(statistics.median(column) for column in zip(*timed, strict=True)))


# -------------------------------------------------------------------------- who may be recommended


def keeps(knowledge: Knowledge, key: Key, load: Load) -> bool:
    """Whether a measured candidate, or not speculating, keeps the limits at a load.

    What was not timed has not been shown to keep anything.
    """
    if knowledge.plan.settings.limits is None:
        return True
    share = knowledge.share_within_limits(*key, load)
    return share is not None and share >= knowledge.plan.settings.limits_share


def eligible(knowledge: Knowledge, keys: Iterable[Key], loads: Sequence[Load]) -> list[Key]:
    """Those of `keys` that may be recommended for the loads: all of them without limits.

    Those that keep the limits at most of the loads; where none does at any, those with the
    largest mean share of good requests.
    """
    everyone = list(keys)
    if knowledge.plan.settings.limits is None or not everyone:
        return everyone
    kept = {key: sum(keeps(knowledge, key, load) for load in loads) for key in everyone}
    rank: dict[Key, float] = dict(kept)
    if not any(kept.values()):
        shares = {
            key: [knowledge.share_within_limits(*key, load) or 0.0 for load in loads]
            for key in everyone
        }
        rank = {key: statistics.fmean(values) for key, values in shares.items()}
    return [key for key in everyone if rank[key] == max(rank.values())]


def could_keep(knowledge: Knowledge, method: str, n: int, load: Load, z: float) -> bool:
    """Whether a candidate that was not measured may keep the limits at a load.

    Its median times after the first token are the baseline's divided by its speed-up; `z` standard
    deviations of optimism are granted. TTFT is not predicted.
    """
    limits = knowledge.plan.settings.limits
    base = None if limits is None else knowledge.baseline_medians(load)
    if limits is None or base is None:
        return True
    p = knowledge.predict(method, n, load)
    speedup = math.exp(p.log_speedup + z * p.log_speedup_sd)
    total = base.ttft_seconds + base.decode_seconds / speedup
    pairs = ((base.tpot_seconds / speedup, limits.tpot_seconds), (total, limits.e2el_seconds))
    return all(limit is None or value <= limit for value, limit in pairs)


def out_of_reach(knowledge: Knowledge, load: Load, z: float) -> bool:
    """Whether the limits cannot guide the search at a load: nothing keeps them, nor is expected to.

    Then throughput alone tells what to measure. So it is where TTFT alone stands in the way, which
    is not predicted and would rule out nothing, and where no request was timed.
    """
    limits = knowledge.plan.settings.limits
    if limits is None:
        return False
    known = [NO_SPECULATION, *(key for key in knowledge.candidates() if knowledge.measured(*key))]
    if any(keeps(knowledge, key, load) for key in known):
        return False
    if knowledge.baseline_medians(load) is None:
        return True
    if any(_keeps_but_for_ttft(knowledge, key, load) for key in known):
        return True
    unmeasured = [key for key in knowledge.candidates() if not knowledge.measured(*key)]
    return not any(could_keep(knowledge, *key, load, z) for key in unmeasured)


def _keeps_but_for_ttft(knowledge: Knowledge, key: Key, load: Load) -> bool:
    """Whether a measured candidate would keep the limits if there were none on TTFT."""
    settings = knowledge.plan.settings
    if settings.limits is None or settings.limits.ttft_seconds is None:
        return False
    rest = settings.limits.model_copy(update={"ttft_seconds": None})
    share = share_within(rest, knowledge.windows(*key, load))
    return share is not None and share >= settings.limits_share
