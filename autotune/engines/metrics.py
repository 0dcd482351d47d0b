"""What happened between two scrapes of vLLM's `/metrics`, and whether it may be ranked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from autotune.engines.exposition import (
    EngineSeries,
    Key,
    Snapshot,
    parse_metrics,
    spec_counters,
)
from autotune.errors import LiveSwitchError, UnusableMeasurementError
from autotune.records import Record, SpecCounters

__all__ = ["MetricsDelta", "Snapshot", "check_window", "difference", "parse_metrics"]

WORKING_ACCEPTANCE = 0.10  # at position 0; certainly below it a model drafter is broken, not slow
TOKEN_TOLERANCE = 0.01  # client and engine may differ by this share of the tokens
_MOVED_SECONDS = 0.001  # a restart moves the times of creation by seconds, nothing else does


class MetricsDelta(Record):
    """What happened between two scrapes, summed over engines. None: the series is not there."""

    counters: SpecCounters | None = None
    generation_tokens: int | None = None
    prompt_tokens: int | None = None
    preemptions: int | None = None
    damaged_lines: int = 0


def difference(before: Snapshot, after: Snapshot) -> MetricsDelta:
    """What happened between two scrapes of one server: engines are summed first.

    An engine or a position that only `after` has counts from 0.
    Raises UnusableMeasurementError when the server was restarted or a counter was reset in
    between, when series are missing, and when requests were in flight at either end.
    """
    _refuse_traffic("before", before)
    _refuse_traffic("after", after)
    _refuse_restart(before, after)
    counters: Counter[str] = Counter()
    per_pos: Counter[int] = Counter()
    for label, new in after.engines.items():
        old = before.engines.get(label)
        if old is not None and new.counters.keys() - old.counters.keys():
            raise _void(f"engine {label}: counters appeared that were not there before")
        old = old or EngineSeries()
        counters.update(_growth(label, old.counters, new.counters))
        per_pos.update(_growth(label, old.accepted_per_pos, new.accepted_per_pos))
    rest = {name: counters[name] for name in counters if name in MetricsDelta.model_fields}
    return MetricsDelta(
        counters=spec_counters(counters, per_pos),
        damaged_lines=before.damaged_lines + after.damaged_lines,
        **rest,
    )


def _refuse_traffic(when: str, snapshot: Snapshot) -> None:
    if snapshot.requests_in_flight:
        raise UnusableMeasurementError(
            f"{snapshot.requests_in_flight} requests were still in flight when the counters were "
            f"read {when} the window, so its counts belong to other requests too",
            hint="nothing else may use the server during a measurement",
        )


def _refuse_restart(before: Snapshot, after: Snapshot) -> None:
    if not before.engines and before.damaged_lines:
        raise _void("the metrics before the window could not be read")
    started = before.process_start_time_seconds, after.process_start_time_seconds
    if None not in started and _moved(*started):
        raise _void("the server's process start time moved: it was restarted")
    for label, old in before.engines.items():
        if label not in after.engines:
            raise _void(f"engine {label} disappeared")
        new = after.engines[label]
        for name in old.created.keys() & new.created.keys():
            if _moved(old.created[name], new.created[name]):
                raise _void(f"{name} of engine {label} moved: the engine was restarted")


def _moved(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and abs(after - before) > _MOVED_SECONDS


def _growth(label: str, old: Mapping[Key, int], new: Mapping[Key, int]) -> dict[Key, int]:
    for name, value in old.items():
        if name not in new:
            raise _void(f"engine {label}: the series {name} disappeared")
        if new[name] < value:
            raise _void(f"engine {label}: {name} fell from {value} to {new[name]}")
    return {name: value - old.get(name, 0) for name, value in new.items()}


def _void(reason: str) -> UnusableMeasurementError:
    return UnusableMeasurementError(
        f"this window's counters mean nothing: {reason}",
        hint="measure the block again; see the engine's log if it was restarted",
    )


def check_window(
    delta: MetricsDelta,
    *,
    n: int,
    output_tokens_by_usage: int,
    num_requests: int,
    weak_drafts_ok: bool = False,
) -> tuple[str, ...]:
    """Judge one window measured at `n` speculative tokens; returns informational flags.

    `weak_drafts_ok` is for drafters without a model (ngram, suffix), which may honestly miss.
    Flags: `damaged_metrics`, `preempted`, `engine_tokens_unknown`, `positions_missing` (the
    per-position series do not add up to the accepted tokens), `weak_drafts`.
    Raises LiveSwitchError when another N was in force, UnusableMeasurementError when speculation
    was off or bypassed, the drafter is broken or the token counts of both sides disagree.
    """
    flags = ["damaged_metrics"] if delta.damaged_lines else []
    if delta.preemptions:
        flags.append("preempted")
    flags += _check_tokens(delta, output_tokens_by_usage, num_requests)
    spec = delta.counters
    if spec is not None:
        _check_length(spec, n)
        if sum(spec.accepted_per_pos) != spec.num_accepted_tokens:
            flags.append("positions_missing")
    if n > 0:
        _check_active(spec, max(delta.generation_tokens or 0, output_tokens_by_usage), num_requests)
    if spec is not None and spec.num_drafts:
        flags += _check_drafter(spec, weak_drafts_ok)
    return tuple(flags)


def _check_tokens(delta: MetricsDelta, by_usage: int, num_requests: int) -> list[str]:
    """The engine may count a token or so a request that the client never gets."""
    if delta.generation_tokens is None:
        return ["engine_tokens_unknown"]
    gap = abs(delta.generation_tokens - by_usage)
    if gap > TOKEN_TOLERANCE * delta.generation_tokens and gap > num_requests:
        raise UnusableMeasurementError(
            f"the engine generated {delta.generation_tokens} tokens, the answers report {by_usage}",
            hint="failed requests, or something else uses the server",
        )
    return []


def _check_length(spec: SpecCounters, n: int) -> None:
    above = sum(spec.accepted_per_pos[n:])
    if spec.num_draft_tokens > n * spec.num_drafts or above:
        raise LiveSwitchError(
            f"N={n} is not in force: {spec.num_draft_tokens} tokens in {spec.num_drafts} drafts, "
            f"{above} accepted above position {n}"
        )


def _check_active(spec: SpecCounters | None, tokens: int, num_requests: int) -> None:
    if spec is None:
        raise UnusableMeasurementError(
            "speculation is not active on this server: its metrics have no draft counters",
            hint="the launch line needs --speculative-config",
        )
    if spec.num_drafts == 0 and tokens > num_requests:  # a first token needs no draft
        raise UnusableMeasurementError(
            f"{tokens} tokens generated, zero drafts: speculation was bypassed",
            hint="check logprobs/penalties/min_p in the requests and the model's generation "
            "config; an n-gram drafter that never finds a match looks the same",
        )


def _check_drafter(spec: SpecCounters, weak_drafts_ok: bool) -> list[str]:
    if not spec.accepted_per_pos:
        return []
    accepted = spec.accepted_per_pos[0]
    if upper_bound(accepted, spec.num_drafts) >= WORKING_ACCEPTANCE:
        return []
    if weak_drafts_ok:
        return ["weak_drafts"]
    raise UnusableMeasurementError(
        f"only {accepted} of {spec.num_drafts} drafts had their first token accepted: a broken "
        "drafter, not a slow one",
        hint="usual causes: a drafter trained for another model or revision, N above its block "
        "size, an attention backend that does not suit it, temperature above 0 on a CPU",
    )


def upper_bound(successes: int, trials: int, confidence: float = 0.95) -> float:
    """One-sided exact upper confidence bound of a share (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv

    if successes >= trials:
        return 1.0
    return float(betaincinv(successes + 1, trials - successes, confidence))
