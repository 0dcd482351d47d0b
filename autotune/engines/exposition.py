"""One scrape of vLLM's `/metrics` (Prometheus text) as a typed record.

Family names are compared whole, never as substrings: every counter has a `_created` twin that
holds a Unix time, and the per-position family begins with the name of the total.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from pydantic import Field

from autotune.errors import UnusableMeasurementError
from autotune.records import Record, SpecCounters

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

Key = TypeVar("Key", str, int)  # counters go by name, positions by number

COUNTERS = {  # family without `_total` -> our name
    "vllm:spec_decode_num_drafts": "num_drafts",
    "vllm:spec_decode_num_draft_tokens": "num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "num_accepted_tokens",
    "vllm:generation_tokens": "generation_tokens",
    "vllm:prompt_tokens": "prompt_tokens",
    "vllm:num_preemptions": "preemptions",
}
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
START_TIME = "process_start_time_seconds"
OLD_ENGINE = {  # only the V0 engine has these
    "vllm:spec_decode_draft_acceptance_rate",
    "vllm:spec_decode_efficiency",
    "vllm:spec_decode_num_emitted_tokens",
    "vllm:spec_decode_num_emitted_tokens_total",
}
_WANTED = {RUNNING, WAITING, START_TIME, *OLD_ENGINE}
_WANTED |= {f + end for f in (*COUNTERS, PER_POSITION) for end in ("", "_total", "_created")}
_SAMPLE_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})?\s+[-+.\dIN]")


class EngineSeries(Record):
    """The series of one engine (data parallel rank). A series that is absent has no key."""

    counters: dict[str, int] = Field(default_factory=dict)  # by the names of COUNTERS
    accepted_per_pos: dict[int, int] = Field(default_factory=dict)
    requests_running: int | None = None
    requests_waiting: int | None = None
    created: dict[str, float] = Field(default_factory=dict)  # Unix time each counter began


class Snapshot(Record):
    """One scrape, by engine label; counters are totals since the server started."""

    engines: dict[str, EngineSeries] = Field(default_factory=dict)
    process_start_time_seconds: float | None = None
    damaged_lines: int = 0

    @property
    def requests_in_flight(self) -> int:
        """Running and waiting requests; a window may only begin and end when there are none."""
        return sum(
            (series.requests_running or 0) + (series.requests_waiting or 0)
            for series in self.engines.values()
        )

    @property
    def counters(self) -> SpecCounters | None:
        """The speculative totals since the server started, summed over engines."""
        return spec_counters(
            pooled(series.counters for series in self.engines.values()),
            pooled(series.accepted_per_pos for series in self.engines.values()),
        )


def pooled(parts: Iterable[Mapping[Key, int]]) -> Counter[Key]:
    """Sum over engines, key by key."""
    total: Counter[Key] = Counter()
    for part in parts:
        total.update(part)
    return total


def spec_counters(counters: Mapping[str, int], per_pos: Mapping[int, int]) -> SpecCounters | None:
    """The typed speculative counters; None where the server does not speculate.

    Positions without a series below the highest one that has one are 0.
    """
    if "num_drafts" not in counters:
        return None
    return SpecCounters(
        num_drafts=counters["num_drafts"],
        num_draft_tokens=counters.get("num_draft_tokens", 0),
        num_accepted_tokens=counters.get("num_accepted_tokens", 0),
        accepted_per_pos=tuple(per_pos.get(i, 0) for i in range(max(per_pos, default=-1) + 1)),
    )


def parse_metrics(text: str) -> Snapshot:
    """Read one scrape. Damaged lines are skipped and counted, never guessed at.

    Raises UnusableMeasurementError for an engine too old to count drafts.
    """
    samples, damaged = _read_samples(text)
    names = {sample.name for sample in samples}
    _refuse_old_engine(names)
    start_time: float | None = None
    by_engine: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.name == START_TIME:
            start_time = sample.value
        elif f"{sample.name}_total" not in names:  # where both spellings exist, `_total` counts
            by_engine[sample.labels.get("engine", "0")].append(sample)
    return Snapshot(
        engines={label: _engine_series(series) for label, series in by_engine.items()},
        process_start_time_seconds=start_time,
        damaged_lines=damaged,
    )


def _read_samples(text: str) -> tuple[list[Sample], int]:
    """The samples of the families we know, and how many lines could not be read."""
    from prometheus_client.parser import text_string_to_metric_families

    samples: list[Sample] = []
    damaged = 0
    for line in map(str.rstrip, text.split("\n")):
        if not line or line.startswith("#"):
            continue
        start = _SAMPLE_LINE.match(line)
        if start is None:
            damaged += 1
        elif start[1] in _WANTED:
            try:
                (family,) = text_string_to_metric_families(line)
                samples.append(_sound(family.samples[0]))
            except ValueError:
                damaged += 1
    return samples, damaged


def _sound(sample: Sample) -> Sample:
    position = sample.labels.get("position", "0")
    if not math.isfinite(sample.value) or sample.value < 0 or not position.isdecimal():
        raise ValueError(f"{sample.name} cannot be {sample.value} at position {position}")
    return sample


def _refuse_old_engine(names: set[str]) -> None:
    drafts, tokens = (
        {f"vllm:spec_decode_num_{what}", f"vllm:spec_decode_num_{what}_total"} & names
        for what in ("drafts", "draft_tokens")
    )
    if names & OLD_ENGINE or (tokens and not drafts):
        raise UnusableMeasurementError(
            "this vLLM is too old: its metrics do not count drafts and accepted positions",
            hint="vLLM 0.19 or newer has the counters that are needed",
        )


def _engine_series(samples: list[Sample]) -> EngineSeries:
    """Collect one engine's samples; the models of one engine are summed."""
    totals: Counter[str] = Counter()
    per_pos: Counter[int] = Counter()
    created: dict[str, float] = {}
    for sample in samples:
        name, position = sample.name.removesuffix("_total"), sample.labels.get("position", "")
        if name.endswith("_created"):
            created[f"{name}{{{position}}}" if position else name] = sample.value
        elif name == PER_POSITION:
            per_pos[int(position or 0)] += round(sample.value)
        else:
            totals[COUNTERS.get(name, name)] += round(sample.value)
    running, waiting = totals.pop(RUNNING, None), totals.pop(WAITING, None)
    return EngineSeries(
        counters=dict(totals),
        accepted_per_pos=dict(per_pos),
        requests_running=running,
        requests_waiting=waiting,
        created=created,
    )
