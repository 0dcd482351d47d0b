"""What a check asks: one question per metric and load, each with its effect."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from autotune.check import pairs as check_pairs
from autotune.check.records import CheckRow, CheckSide, Figure
from autotune.check.verdicts import METRICS, Effect, effect, kind_of, welch
from autotune.records import BASELINE, GreedyCheck

LIKELY = 0.45  # p value beyond which nothing more is told: at .5 no finite error has this tail
FLIPS = 0.05  # of greedy answers that near-equal logits may turn without any fault


class Question(NamedTuple):
    """`effect` None: one of the two sides has no answer, and `note` says why."""

    metric: str  # "tpot_p50": its settings are those of "tpot"
    load: int | None
    subject: str
    reference: float | None
    measured: float | None
    effect: Effect | None
    note: str = ""
    all_loads: bool = False

    @property
    def kind(self) -> str:
        return kind_of(self.metric)


def questions(reference: CheckSide, measured: CheckSide, same_machine: bool) -> list[Question]:
    """Everything that both sides can answer about the reference's choices."""
    rows = {row.key: row for row in measured.rows}
    chosen = [row for row in reference.rows if row.chosen]
    asked: list[Question] = []
    for row in chosen:
        asked += _of_row(row, rows.get(row.key), measured, same_machine)
    asked += _over_loads(asked)
    groups = [[row] for row in chosen] if reference.per_load or not chosen else [chosen]
    for group in groups:
        asked += _best(group, reference, measured)
    return asked


def _of_row(
    row: CheckRow, now: CheckRow | None, side: CheckSide, same_machine: bool
) -> Iterator[Question]:
    subject = name(row.method, row.num_speculative_tokens)
    if now is None:
        note = f"{side.source} holds no measurement of {subject} there"
        yield Question("speedup", row.concurrency, subject, _value(row.speedup), None, None, note)
        return
    if row.method != BASELINE:
        yield from _figure("speedup", subject, row.concurrency, row.speedup, now.speedup)
    if same_machine:
        yield from _figure("throughput", subject, row.concurrency, row.throughput, now.throughput)
        for quantile in sorted(row.latencies.keys() & now.latencies.keys()):
            pair = row.latencies[quantile], now.latencies[quantile]
            yield from _figure(quantile, subject, row.concurrency, *pair)
    yield from _acceptance(subject, row, now)
    if now.greedy is not None and now.greedy.compared:
        yield _greedy(subject, row, now.greedy)


def name(method: str, n: int) -> str:
    return "no speculation" if method == BASELINE else f"{method} N={n}"


def _value(figure: Figure | None) -> float | None:
    return None if figure is None else figure.value


def _figure(
    metric: str, subject: str, load: int | None, one: Figure | None, other: Figure | None
) -> Iterator[Question]:
    """Of what decides, a question stays open where a side has no figure: it must not just pass."""
    settings = METRICS[kind_of(metric)]
    if one is not None and other is not None:
        change = effect(one, other, settings)
        yield Question(metric, load, subject, one.value, other.value, change)
    elif settings.gates and (one is not None or metric == "speedup"):
        note = f"the {'measurement' if one is not None else 'reference'} holds no such figure"
        yield Question(metric, load, subject, _value(one), _value(other), None, note)


def _acceptance(subject: str, row: CheckRow, now: CheckRow) -> Iterator[Question]:
    """From the intervals of both sides, or paired by prompt: whichever is sharper.

    On the same prompts that is pairing, by far. Where few prompts are common it may not be.
    """
    load, paired = row.concurrency, check_pairs.paired(row.prompts, now.prompts)
    alone = [*_figure("acceptance_length", subject, load, row.acceptance_length,
                      now.acceptance_length)]  # fmt: skip
    for i, pair in enumerate(zip(row.position_rates, now.position_rates, strict=False), start=1):
        alone += _figure(f"position_p{i}", subject, load, *pair)
    known = alone[0].effect if alone else None
    if paired is None or (known is not None and known.sd < paired.length.sd):
        yield from alone
        return
    note = f"paired by {paired.prompts} prompts"
    yield Question("acceptance_length", load, subject, *paired.lengths, paired.length, note)
    for i in range(min(row.num_speculative_tokens, len(paired.positions))):
        yield Question(
            f"position_p{i + 1}", load, subject, *paired.rates[i], paired.positions[i], note
        )


def _greedy(subject: str, row: CheckRow, now: GreedyCheck) -> Question:
    """Answers at batch 1 that differ from those without speculation, against chance.

    The p value is that of a binomial with the share that differed before, `FLIPS` at least; it is
    turned into the normal effect that has this tail.
    """
    from scipy.stats import binom, norm

    before = row.greedy
    equal = now.equal / now.compared
    was = before.equal / before.compared if before and before.compared else None
    chance = max(FLIPS, 1 - was if was is not None else 0.0)
    p = float(binom.sf(now.compared - now.equal - 1, now.compared, min(chance, 1.0)))
    reference = 1.0 if was is None else was
    change = min(0.0, equal - reference) if equal < reference else equal - reference
    z = float(norm.ppf(min(max(p, 1e-300), 1 - 1e-16)))
    sd = abs(change / z) if change < 0 and z < 0 else abs(change) or 0.0
    answer = Effect(change, sd, None, assumed=True)
    note = f"{now.equal} of {now.compared} answers equal those without speculation"
    if now.first_difference is not None and now.equal < now.compared:
        note += f", first difference: {now.first_difference}"
    return Question("greedy", row.concurrency, subject, reference, equal, answer, note)


def _best(chosen: Sequence[CheckRow], reference: CheckSide, side: CheckSide) -> Iterator[Question]:
    """Would another configuration now win? Over the loads of `chosen`, which are one choice.

    The best rival is taken, and the test corrected for its being picked as the best. What was
    behind it in the reference already (a tie, one choice for several loads) is no news.
    """
    loads = [row.concurrency for row in chosen]
    means = _means(side, loads)
    ours = (chosen[0].method, chosen[0].num_speculative_tokens) if chosen else None
    rivals = [key for key in means if key != ours]
    if ours is None or ours not in means or not rivals:
        return
    best = max(rivals, key=lambda key: (means[key].value, -key[1]))
    metric = METRICS["recommendation"]
    now = effect(means[best], means[ours], metric)._replace(assumed=True)
    before = _means(reference, loads)
    was = 0.0
    if ours in before and best in before:
        was = min(0.0, effect(before[best], before[ours], metric).change)
    if now.change < 0:
        note = f"{name(*best)} is {math.expm1(-now.change):.1%} faster now"
        if was < 0:
            note += f", {math.expm1(-was):.1%} before"
    elif {method for method, _ in rivals} == {BASELINE}:
        note = "still ahead of no speculation; no other N was measured"
    else:
        note = f"still ahead of {name(*best)}, the best of {len(rivals)} others"
    change = min(0.0, now.change - was)  # being further ahead is no news either
    yield Question(
        "recommendation",
        loads[0] if len(loads) == 1 else None,
        name(*ours),
        None,
        means[ours].value,
        _picked(now._replace(change=change), len(rivals)),
        note,
        all_loads=len(loads) > 1,
    )


def _means(side: CheckSide, loads: Sequence[int | None]) -> dict[tuple[str, int], Figure]:
    """Speed-ups of everything that was measured at all of the loads."""
    known = {row.key: row.speedup for row in side.rows if row.speedup is not None}
    return {
        key: _geometric([known[*key, load] for load in loads])
        for key in {(method, n) for method, n, _ in known}
        if all((*key, load) in known for load in loads)
    }


def _geometric(figures: Sequence[Figure]) -> Figure:
    """Geometric mean of independent figures."""
    errors = [(figure.sd / len(figures), figure.freedom) for figure in figures]
    return Figure(
        value=math.exp(math.fsum(math.log(f.value) for f in figures) / len(figures)),
        sd=math.hypot(*(sd for sd, _ in errors)),
        freedom=welch(errors),
        assumed=any(figure.assumed for figure in figures),
    )


def _picked(e: Effect, rivals: int) -> Effect:
    """Widened so that its tail is `rivals` times as likely: Bonferroni for the pick."""
    from scipy.stats import norm

    from autotune.check.verdicts import tail

    if e.change >= 0 or rivals < 2 or e.sd == 0:
        return e
    p = min(LIKELY, rivals * tail(e))
    return e._replace(sd=max(e.sd, e.change / float(norm.ppf(p))), freedom=None)


def _over_loads(asked: list[Question]) -> list[Question]:
    """The geometric mean of the speed-up over all loads: what moves all of them shows best."""
    single = [q for q in asked if q.metric == "speedup" and q.effect is not None]
    if len(single) < 2:
        return []
    count = len(single)
    effects = [q.effect for q in single if q.effect is not None]
    errors = [(e.sd / count, e.freedom) for e in effects]
    over = Effect(
        math.fsum(e.change for e in effects) / count,
        math.hypot(*(sd for sd, _ in errors)),
        welch(errors),
        any(e.assumed for e in effects),
    )
    one, other = (
        math.exp(math.fsum(math.log(value or 1.0) for value in values) / count)
        for values in ([q.reference for q in single], [q.measured for q in single])
    )
    note = f"geometric mean of {count} loads"
    subjects = {q.subject for q in single}
    subject = subjects.pop() if len(subjects) == 1 else "the choices"
    return [Question("speedup", None, subject, one, other, over, note, all_loads=True)]
