"""Looks at the answers themselves: broken text can be fast, so nothing is ranked before this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from autotune.errors import UnusableMeasurementError
from autotune.records import Record, RequestResult

MAX_PERIOD = 60  # characters of the longest phrase whose repetition is called degenerate
MIN_REPEATS = 8
MIN_CHARACTERS = 24  # shorter answers are not judged
MAX_CHARACTERS = 4000  # as much of an answer as is looked at
REPEATED_SHARE = 0.9  # of the characters equal to the one a period before
SHOWN = 10  # differing prompts that are named
BROKEN = {  # flags of answers that must not be ranked
    "degenerate_output": "repeat one phrase over and over",
    "empty_output": "hold tokens but no text",
}


class GreedyDifference(Record):
    """Where two greedy answers to one prompt part: the first character that is not equal."""

    prompt_id: str
    position: int


class GreedyComparison(Record):
    """Greedy answers of two arms. `compared` counts prompts that both answered."""

    compared: int
    equal: int
    first_differences: tuple[GreedyDifference, ...] = ()  # at most SHOWN, in prompt order


def degenerate(text: str) -> bool:
    """Whether the text is one token, word or short phrase over and over."""
    text = " ".join(text.split())[:MAX_CHARACTERS]
    if len(text) < MIN_CHARACTERS:
        return False
    longest = min(MAX_PERIOD, len(text) // MIN_REPEATS)
    return any(_repeated_share(text, period) >= REPEATED_SHARE for period in range(1, longest + 1))


def _repeated_share(text: str, period: int) -> float:
    pairs = zip(text, text[period:], strict=False)
    return sum(a == b for a, b in pairs) / (len(text) - period)


def quality_flags(results: Sequence[RequestResult]) -> tuple[str, ...]:
    """Flags over the answers that came.

    `degenerate_output` and `empty_output` (tokens but no text): half of the answers or more, or
    with `some_` before it, fewer. `all_length_capped` is information only.
    """
    answers = [result for result in results if result.error is None and result.text is not None]
    if not answers:
        return ()
    counts = {
        "degenerate_output": sum(degenerate(answer.text or "") for answer in answers),
        "empty_output": sum(
            not (answer.text or "").strip() and bool(answer.completion_tokens) for answer in answers
        ),
    }
    flags = [
        name if 2 * count >= len(answers) else f"some_{name}"
        for name, count in counts.items()
        if count
    ]
    if all(answer.finish_reason == "length" for answer in answers):
        flags.append("all_length_capped")
    return tuple(flags)


def judge_quality(flags: Iterable[str], baseline_flags: Iterable[str]) -> None:
    """Raise UnusableMeasurementError where half of the answers are broken by speculation.

    Flags of two windows with the same prompts. A model whose answers are sometimes broken without
    speculation (also `some_degenerate_output`) is not judged: that is the model, not the method.
    """
    ours, base = set(flags), set(baseline_flags)
    for flag, what in BROKEN.items():
        if flag in ours and not base & {flag, f"some_{flag}"}:
            raise UnusableMeasurementError(
                f"half of the answers or more {what}; without speculation none does",
                hint="a broken drafter, kernel or attention backend: fast, and useless",
            )


def failure_summary(results: Sequence[RequestResult]) -> str | None:
    """One line for a person: how many requests failed and why; None when none did."""
    errors = Counter(result.error for result in results if result.error is not None)
    if not errors:
        return None
    kinds = [f"{count} x {error}" for error, count in errors.most_common(3)]
    if len(errors) > len(kinds):
        kinds.append(f"{len(errors) - len(kinds)} other kinds")
    return f"{errors.total()} of {len(results)} requests failed: {'; '.join(kinds)}"


def compare_greedy(
    base: Sequence[RequestResult], other: Sequence[RequestResult]
) -> GreedyComparison:
    """Compare the texts prompt by prompt; failed or missing answers are left out."""
    texts = _texts(other)
    pairs = [(key[0], text, texts[key]) for key, text in _texts(base).items() if key in texts]
    differences = [
        GreedyDifference(prompt_id=prompt_id, position=_first_difference(text, changed))
        for prompt_id, text, changed in pairs
        if text != changed
    ]
    return GreedyComparison(
        compared=len(pairs),
        equal=len(pairs) - len(differences),
        first_differences=tuple(differences[:SHOWN]),
    )


def _texts(results: Iterable[RequestResult]) -> dict[tuple[str, int], str]:
    """Answers by prompt and how often that prompt came before (a block may repeat prompts)."""
    seen: Counter[str] = Counter()
    texts = {}
    for result in results:
        if result.error is None and result.text is not None:
            texts[result.prompt_id, seen[result.prompt_id]] = result.text
        seen[result.prompt_id] += 1
    return texts


def _first_difference(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    unequal = (index for index, (a, b) in enumerate(pairs) if a != b)
    return next(unequal, min(len(one), len(other)))
