"""Two stored studies side by side: what was asked, where it ran, what was measured. No verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune.records import CandidateResult, Interval, LoadChoice, Plan, Record
from autotune.storage.stored import StoredStudy, StudyInfo


class Difference(Record):
    """One setting that the two studies do not share; None: there is no such thing."""

    field: str  # "target.engine_args", "environment.gpu", "methods.mtp.lengths"
    first: Any
    second: Any


class LoadPair(Record):
    """What each study chose at one load; None: it did not measure there, or has no answer yet."""

    concurrency: int | None
    first: LoadChoice | None
    second: LoadChoice | None
    first_baseline_tokens_per_second: float | None
    second_baseline_tokens_per_second: float | None


class CandidatePair(Record):
    """A candidate that both studies measured at the same load."""

    method: str
    num_speculative_tokens: int
    concurrency: int | None
    first_tokens_per_second: float
    second_tokens_per_second: float
    ratio: float  # second over first
    first_speedup: Interval | None
    second_speedup: Interval | None
    first_acceptance_length: float | None
    second_acceptance_length: float | None


class StudyComparison(Record):
    studies: tuple[StudyInfo, StudyInfo]
    differences: tuple[Difference, ...]
    loads: tuple[LoadPair, ...]
    candidates: tuple[CandidatePair, ...]
    only_first: int  # candidates at a load that the second study did not measure
    only_second: int


def compare(first: StoredStudy, second: StoredStudy) -> StudyComparison:
    """Nothing is judged: that is what `spectune check` is for."""
    ours, theirs = _measured(first), _measured(second)
    shared = [key for key in ours if key in theirs]
    return StudyComparison(
        studies=(first.info, second.info),
        differences=tuple(differences(first.plan, second.plan)),
        loads=_loads(first, second),
        candidates=tuple(_pair(ours[key], theirs[key]) for key in shared),
        only_first=len(ours) - len(shared),
        only_second=len(theirs) - len(shared),
    )


def differences(first: Plan, second: Plan) -> Iterator[Difference]:
    """Field by field; prompts count by their hash."""
    ours, theirs = _facts(first), _facts(second)
    for field in dict.fromkeys([*ours, *theirs]):
        if ours.get(field) != theirs.get(field):
            yield Difference(field=field, first=ours.get(field), second=theirs.get(field))


def _facts(plan: Plan) -> dict[str, Any]:
    content = plan.model_dump(mode="json", exclude={"skipped", "warnings", "spaces"})
    prompts = content["workload"].pop("prompts")
    content["workload"] |= {"sha256": plan.workload.sha256, "num_prompts": len(prompts)}
    content["methods"] = {
        space.method: space.model_dump(mode="json", include={"drafter", "lengths", "config"})
        for space in plan.spaces
    }
    return dict(_flat(content, ""))


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _flat(below, f"{path}.{name}" if path else name)
    else:
        yield path, value


Key = tuple[str, int, int | None]


def _measured(study: StoredStudy) -> dict[Key, CandidateResult]:
    r = study.recommendation
    return {
        (c.method, c.num_speculative_tokens, c.concurrency): c
        for c in (r.candidates if r else ())
        if c.output_tokens_per_second is not None and c.num_speculative_tokens is not None
    }


def _pair(first: CandidateResult, second: CandidateResult) -> CandidatePair:
    rates = first.output_tokens_per_second, second.output_tokens_per_second
    if rates[0] is None or rates[1] is None or first.num_speculative_tokens is None:
        raise ValueError("only candidates that were measured can be paired")
    return CandidatePair(
        method=first.method,
        num_speculative_tokens=first.num_speculative_tokens,
        concurrency=first.concurrency,
        first_tokens_per_second=rates[0],
        second_tokens_per_second=rates[1],
        ratio=rates[1] / rates[0],
        first_speedup=first.speedup,
        second_speedup=second.speedup,
        first_acceptance_length=first.acceptance_length,
        second_acceptance_length=second.acceptance_length,
    )


def _loads(first: StoredStudy, second: StoredStudy) -> tuple[LoadPair, ...]:
    loads = {*first.plan.concurrencies, *second.plan.concurrencies}
    return tuple(
        LoadPair(
            concurrency=load,
            first=_choice(first, load),
            second=_choice(second, load),
            first_baseline_tokens_per_second=_baseline(first, load),
            second_baseline_tokens_per_second=_baseline(second, load),
        )
        for load in sorted(loads, key=lambda load: load or 0)
    )


def _choice(study: StoredStudy, load: int | None) -> LoadChoice | None:
    choices = study.recommendation.per_concurrency if study.recommendation else ()
    return next((choice for choice in choices if choice.concurrency == load), None)


def _baseline(study: StoredStudy, load: int | None) -> float | None:
    rows = study.recommendation.baseline if study.recommendation else ()
    return next((b.output_tokens_per_second for b in rows if b.concurrency == load), None)
