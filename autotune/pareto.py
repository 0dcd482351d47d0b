"""Throughput against latency: the measured points that no other measured one beats in both."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.records import BASELINE, BaselineResult, CandidateResult, ParetoPoint


def pareto_front(
    candidates: Iterable[CandidateResult], baseline: Iterable[BaselineResult]
) -> tuple[ParetoPoint, ...]:
    """The non-dominated rows of a recommendation, by rising throughput (tokens/s, whole engine).

    Latency is the median TPOT of a request (seconds), which rises along the front. Rows without a
    measured latency take no part; of rows that are equal in both figures the first one stays.
    """
    rows: list[tuple[str, int, CandidateResult | BaselineResult]] = [
        (BASELINE, 0, row) for row in baseline
    ]
    rows += [(row.method, row.num_speculative_tokens or 0, row) for row in candidates]
    points = [
        ParetoPoint(
            method=method,
            num_speculative_tokens=n,
            concurrency=row.concurrency,
            output_tokens_per_second=row.output_tokens_per_second,
            tpot_p50_seconds=row.tpot_p50_seconds,
        )
        for method, n, row in rows
        if row.output_tokens_per_second is not None and row.tpot_p50_seconds is not None
    ]
    # from the fastest down, what has a lower latency than everything faster is on the front
    points.sort(key=lambda point: (-point.output_tokens_per_second, point.tpot_p50_seconds))
    front: list[ParetoPoint] = []
    for point in points:
        if not front or point.tpot_p50_seconds < front[-1].tpot_p50_seconds:
            front.append(point)
    return tuple(reversed(front))
