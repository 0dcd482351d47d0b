"""`spectune studies show A B` as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.cli.several_loads import short
from autotune.cli.terminal import Part, Row
from autotune.records import BASELINE, LoadChoice
from autotune.storage.stored import StudyInfo
from autotune.study_comparison import CandidatePair, LoadPair, StudyComparison
from autotune.wording import choice_text, load_text

WIDEST = 60  # characters of one value; --json has all


def comparison_parts(c: StudyComparison) -> list[Part]:
    """Headings, then a table each; a table without rows is a sentence."""
    first, second = (info.id for info in c.studies)
    heading: Row = ("", "CREATED", "STATE", "MODEL", "WORKLOAD", "ENGINE")
    parts: list[Part] = [("", [heading, *map(_study, c.studies)]), ("", "")]
    if c.differences:
        rows = [(d.field, _value(d.first), _value(d.second)) for d in c.differences]
        parts.append(("", [("ASKED DIFFERENTLY", first, second), *rows]))
    else:
        parts.append(("", "both were asked the same, on machines that say the same of themselves"))
    heading = ("CONCURRENCY", f"CHOICE {first}", "BASELINE TOK/S",
               f"CHOICE {second}", "BASELINE TOK/S")  # fmt: skip
    parts += [("", ""), ("", [heading, *map(_load, c.loads)]), ("", "")]
    heading = ("METHOD", "N", "CONC.", f"TOK/S {first}", f"TOK/S {second}", "RATIO",
               f"SPEED-UP {first}", f"SPEED-UP {second}", "TOKENS/ROUND")  # fmt: skip
    if c.candidates:
        parts.append(("", [heading, *map(_candidate, c.candidates)]))
    else:
        parts.append(("", "no candidate was measured in both"))
    alone = f"measured in one only: {c.only_first} in {first}, {c.only_second} in {second}"
    return [*parts, ("dim", alone), ("dim", "for a verdict: spectune check")]


def _study(info: StudyInfo) -> Row:
    created = info.created[:16].replace("T", " ")
    return (info.id, created, info.state, info.model, info.workload, info.engine)


def _value(value: Any) -> str:
    if value is None:
        return "-"
    text = " ".join(map(_value, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."


def _load(pair: LoadPair) -> Row:
    return (
        load_text(pair.concurrency),
        _choice(pair.first),
        _number(pair.first_baseline_tokens_per_second, "{:.1f}"),
        _choice(pair.second),
        _number(pair.second_baseline_tokens_per_second, "{:.1f}"),
    )


def _choice(choice: LoadChoice | None) -> str:
    if choice is None:
        return "-"
    if choice.method == BASELINE:
        return choice_text(choice)
    return f"{choice_text(choice)} {short(choice.speedup)}"


def _candidate(pair: CandidatePair) -> Row:
    lengths = (pair.first_acceptance_length, pair.second_acceptance_length)
    return (
        pair.method,
        str(pair.num_speculative_tokens),
        load_text(pair.concurrency),
        f"{pair.first_tokens_per_second:.1f}",
        f"{pair.second_tokens_per_second:.1f}",
        f"{pair.ratio:.3f}",
        short(pair.first_speedup),
        short(pair.second_speedup),
        _both(lengths),
    )


def _both(values: Sequence[float | None]) -> str:
    return " / ".join(_number(value, "{:.2f}") for value in values)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
