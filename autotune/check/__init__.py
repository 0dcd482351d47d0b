"""`spectune check`: two sides, a verdict for every metric and load, and one outcome.

documents (check/documents.py) or windows (check/measure.py) -> CheckSide
-> comparable.py: may they be compared? -> check/questions.py -> verdicts.py -> CheckReport
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from autotune.check.comparable import BROKEN, differences, refused, same_machine
from autotune.check.questions import Question, questions
from autotune.check.recommendation import at
from autotune.check.records import CheckReport, CheckSide, Difference, Verdict
from autotune.check.verdicts import (
    ALPHA,
    BETA,
    METRICS,
    SHOWN,
    Judged,
    as_change,
    distance,
    judge,
    kind_of,
    label,
    margin_text,
    reach,
)
from autotune.errors import ConfigurationError

Outcome = Literal["no regression", "regression", "inconclusive", "not comparable"]
EXIT: dict[Outcome, int] = {
    "no regression": 0,
    "regression": 1,
    "inconclusive": 4,
    "not comparable": 4,
}


class Rules(NamedTuple):
    """How strict a check is."""

    margins: Mapping[str, float]
    allowed: frozenset[str] = frozenset()
    strict: bool = False  # inconclusive fails


def check_sides(reference: CheckSide, measured: CheckSide, rules: Rules) -> CheckReport:
    """Compare two documents. Nothing is measured."""
    found = differences(reference, measured, rules.allowed)
    if refused(found):
        return not_comparable(reference, measured, found)
    absolute = same_machine(found, reference, measured)
    verdicts = judged(reference, measured, absolute, rules.margins)
    return report(reference, measured, verdicts, found, rules)


def judged(
    reference: CheckSide,
    measured: CheckSide,
    absolute: bool,
    margins: Mapping[str, float],
    alpha: float = ALPHA,
    beta: float = BETA,
) -> tuple[Verdict, ...]:
    """Every verdict. `absolute`: the machine is the same, so are absolute figures' meanings."""
    asked = questions(reference, measured, absolute)
    if _is_same(reference, measured):
        asked = [_of_itself(question) for question in asked]
    if not asked:
        raise ConfigurationError(
            f"{reference.source} names no measured choice: there is nothing to check",
            hint="a document of a study that ended, or a recording",
        )
    answered = [(q, q.effect) for q in asked if q.effect is not None]
    words = judge(
        [e for _, e in answered],
        [METRICS[q.kind] for q, _ in answered],
        [margins[q.kind] for q, _ in answered],
        alpha=alpha,
        beta=beta,
    )
    by_question = {id(q): word for (q, _), word in zip(answered, words, strict=True)}
    return tuple(_verdict(q, by_question.get(id(q)), margins[q.kind]) for q in asked)


def _is_same(reference: CheckSide, measured: CheckSide) -> bool:
    """One measurement twice; counts by prompt aside, of which a stored study has more."""
    before, now = (
        [row.model_copy(update={"prompts": ()}) for row in side.rows]
        for side in (reference, measured)
    )
    return before == now


def _of_itself(q: Question) -> Question:
    """One and the same measurement on both sides: its errors are common to both, and cancel."""
    return q._replace(effect=q.effect and q.effect._replace(change=0.0, sd=0.0, freedom=None))


def _verdict(q: Question, found: Judged | None, margin: float) -> Verdict:
    metric = METRICS[q.kind]
    low = high = change = None
    if q.effect is not None:
        half = reach(q.effect, (1 - SHOWN) / 2)
        ends = sorted(metric.better * (q.effect.change + sign * half) for sign in (-1, 1))
        low, high = (as_change(end, metric) for end in ends)
        change = as_change(metric.better * q.effect.change, metric)
    return Verdict(
        metric=q.metric,
        concurrency=q.load,
        all_loads=q.all_loads,
        subject=q.subject,
        word=found.word if found else "inconclusive",
        reference=q.reference,
        measured=q.measured,
        change=change,
        low=low,
        high=high,
        margin=margin,
        p_worse=found.p_worse if found else None,
        p_better=found.p_better if found else None,
        gates=metric.gates and not q.all_loads,
        ruled_out=found.ruled_out if found else False,
        assumed=q.effect.assumed if q.effect else False,
        note=q.note or _within(q, margin),
    )


def _within(q: Question, margin: float) -> str:
    """A change that is real and too small to be called one: said, not hidden."""
    e, metric = q.effect, METRICS[q.kind]
    if e is None or metric.gates:
        return ""
    beyond_noise = e.change < 0 and -e.change > reach(e, ALPHA)
    if beyond_noise and -e.change < distance(margin, metric):
        return f"worse by more than noise, within its margin of {margin_text(q.metric, margin)}"
    return ""


def report(
    reference: CheckSide,
    measured: CheckSide,
    verdicts: Sequence[Verdict],
    found: Sequence[Difference],
    rules: Rules,
) -> CheckReport:
    """Outcome, exit code and summary from the verdicts."""
    faults = () if BROKEN in rules.allowed else reference.faults
    outcome = _outcome(verdicts, faults)
    code = 1 if rules.strict and outcome == "inconclusive" else EXIT[outcome]
    return CheckReport(
        created_at=now(),
        outcome=outcome,
        exit_code=code,
        summary=_summary(outcome, verdicts, faults),
        reference=reference,
        measured=measured,
        verdicts=tuple(verdicts),
        differences=tuple(found),
        warnings=(*_warnings(reference, measured, verdicts), *_noted(found)),
    )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def not_comparable(
    reference: CheckSide, measured: CheckSide | None, found: Sequence[Difference]
) -> CheckReport:
    """Refused: the fields that differ, and how to say that they may."""
    names = [difference.field for difference in refused(found)]
    fields = ",".join(names)
    what = f"{', '.join(names)} {'differs' if len(names) == 1 else 'differ'}"
    return CheckReport(
        created_at=now(),
        outcome="not comparable",
        exit_code=EXIT["not comparable"],
        summary=f"not comparable: {what} (--allow {fields} compares all the same)",
        reference=reference,
        measured=measured,
        differences=tuple(found),
    )


def _outcome(verdicts: Sequence[Verdict], faults: Sequence[str]) -> Outcome:
    if any(v.word == "regression" for v in verdicts):
        return "regression"
    if faults or any(v.gates and not v.ruled_out for v in verdicts):
        return "inconclusive"
    return "no regression"


def _summary(outcome: Outcome, verdicts: Sequence[Verdict], faults: Sequence[str]) -> str:
    def named(word: str) -> list[str]:
        return [f"{label(v.metric)}{where(v)} {change_text(v)}" for v in verdicts if v.word == word]

    better = named("improvement")
    also = f"; improved: {', '.join(better)}" if better else ""
    if outcome == "regression":
        return f"regression: {', '.join(named('regression'))}{also}"
    if outcome == "no regression":
        same = "no difference in anything beyond its margin" if not better else "nothing is worse"
        return f"no regression: {same}{also}"
    if faults:
        return f"inconclusive: the reference is no golden value ({faults[0]}){also}"
    open_ones = [v for v in verdicts if v.gates and not v.ruled_out]
    names = ", ".join(f"{label(v.metric)}{where(v)}" for v in open_ones)
    return f"inconclusive: a loss beyond the margin is not ruled out for {names}{also}"


def where(v: Verdict) -> str:
    return " over all loads" if v.all_loads else at(v.concurrency)


def change_text(v: Verdict) -> str:
    """ "-5.1%" or, for rates, "-5.1 points"; nothing where there is no change to tell."""
    if v.change is None:
        return "not measured"
    if METRICS[kind_of(v.metric)].relative:
        return f"{v.change:+.1%}"
    return f"{100 * v.change:+.1f} points"


def _warnings(
    reference: CheckSide, measured: CheckSide, verdicts: Sequence[Verdict]
) -> tuple[str, ...]:
    found = [f"the reference is no golden value: {fault}" for fault in reference.faults]
    found += [f"what was measured is broken: {fault}" for fault in measured.faults]
    if _is_same(reference, measured):
        found.append("both hold one and the same measurement: nothing newer was compared")
    if any(v.assumed and v.metric in ("speedup", "acceptance_length") for v in verdicts):
        sources = [
            side.source
            for side in (reference, measured)
            if any(_has_assumed(side, metric) for metric in ("speedup", "acceptance_length"))
        ]
        found.append(
            f"{' and '.join(dict.fromkeys(sources))}: no spread of its own, noise is assumed "
            "(--assumed-noise)"
        )
    return tuple(found)


def _has_assumed(side: CheckSide, metric: str) -> bool:
    figures = [getattr(row, metric) for row in side.rows if row.chosen]
    return any(figure is not None and figure.assumed for figure in figures)


def _noted(found: Sequence[Difference]) -> tuple[str, ...]:
    return tuple(f"{d.field} differs: {d.reference} before, {d.measured} now" for d in found)
