"""The tables of a report; HTML and Markdown print the same ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune import wording
from autotune.records import LoadChoice, Recommendation, Record, Status
from autotune.report.data import Report, Row, Span, best_row, span
from autotune.wording import choice_text, load_text

NOT_MEASURED = "–"  # in a cell
FLAGS = "Flags"  # the one column of words at the end of a table of numbers
MOST_POSITIONS = 32  # of acceptance in a table; the figure has them all


class Table(Record):
    """Cells as text. The first `text` columns and the last `tail` are words, the others numbers."""

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text: int = 1
    tail: int = 0
    caption: str | None = None

    def is_number(self, column: int) -> bool:
        return self.text <= column < len(self.heading) - self.tail


# ---------------------------------------------------------------------------------- tables


def load_table(report: Report) -> Table:
    """What to do at each load."""
    r = report.recommendation
    if r is not None:
        return _choices(report, r)
    rows = []
    for base in report.baseline:
        best = best_row(report, base.concurrency)
        rows.append(
            (
                load_text(base.concurrency),
                f"{best.method} N={best.n}" if best else "no speculation",
                factor(best.speedup if best else None),
                number(best.rate if best else None, ",.1f"),
                number(base.output_tokens_per_second, ",.1f"),
                best.status if best else NOT_MEASURED,
            )
        )
    heading = ("Load", "Fastest", "Speed-up", "tok/s", "Baseline tok/s", "Evidence")
    return Table(heading=heading, rows=tuple(rows), text=2, tail=1)


def _choices(report: Report, r: Recommendation) -> Table:
    rates = {b.concurrency: b.output_tokens_per_second for b in r.baseline}
    chosen = {(row.method, row.n, row.load): row for row in report.rows}

    def row(c: LoadChoice) -> tuple[str, ...]:
        at = chosen.get((c.method, c.num_speculative_tokens, c.concurrency))
        kept = {True: "kept", False: "missed", None: NOT_MEASURED}[c.meets_limits]
        return (
            load_text(c.concurrency),
            choice_text(c),
            factor(span(c.speedup)),
            number(at.rate if at else None, ",.1f"),
            number(rates.get(c.concurrency), ",.1f"),
            c.status.value if c.status else NOT_MEASURED,
            *((kept,) if r.limits else ()),
        )

    heading = ("Load", "Choice", "Speed-up", "tok/s", "Baseline tok/s", "Evidence")
    limits = ("Limits",) if r.limits else ()
    rows = tuple(row(c) for c in r.per_concurrency)
    return Table(heading=(*heading, *limits), rows=rows, text=2, tail=1 + len(limits))


def measured_table(report: Report) -> Table | None:
    """Every measured candidate, with whatever was measured of it."""
    rows = [row for row in report.rows if row.measured]
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("Method", lambda r: r.method),
        ("N", lambda r: str(r.n)),
        ("Load", lambda r: load_text(r.load)),
        ("Evidence", lambda r: r.status),
        ("tok/s", lambda r: number(r.rate, ",.1f")),
        ("Speed-up", lambda r: factor(r.speedup)),
        ("Predicted", lambda r: factor(r.predicted, interval=False)),
        ("Tokens/round", _length),
        ("Draft ms", lambda r: number(r.draft_seconds, ".2f", 1e3)),
        ("Verify ms", lambda r: number(r.verify_seconds, ".2f", 1e3)),
        ("Rest ms", lambda r: number(r.rest_seconds, ".2f", 1e3)),
        ("TPOT ms", lambda r: number(r.tpot_seconds, ".2f", 1e3)),
        ("TTFT ms", lambda r: number(r.ttft_seconds, ".1f", 1e3)),
        ("Within limits", lambda r: number(r.share_within_limits, ".0%")),
        (FLAGS, lambda r: ", ".join(flag.replace("_", " ") for flag in r.flags) or NOT_MEASURED),
    ]
    return _table(rows, columns, text=4)


def acceptance_table(report: Report) -> Table | None:
    """Acceptance rates by position."""
    rows = [row for row in report.rows if row.measured and row.acceptance]
    width = min(MOST_POSITIONS, max((len(row.acceptance) for row in rows), default=0))

    def at(i: int) -> Callable[[Row], str]:
        return lambda r: number(r.acceptance[i].value, ".3f") if i < len(r.acceptance) else ""

    return _table(
        rows,
        [
            ("Method", lambda r: r.method),
            ("N", lambda r: str(r.n)),
            ("Load", lambda r: load_text(r.load)),
            ("Length", _length),
            *((str(i + 1), at(i)) for i in range(width)),
        ],
        text=1,
    )


def trial_table(r: Recommendation) -> Table | None:
    """N by batch size against the one static N."""
    trial = r.schedule_trial
    if trial is None or not trial.loads:
        return None
    rows = []
    for at in trial.loads:
        notes = [("beside a threshold", at.beside_threshold), ("worse", at.worse)]
        rows.append(
            (
                load_text(at.concurrency),
                str(at.num_speculative_tokens),
                number(at.output_tokens_per_second, ",.1f"),
                number(at.static_output_tokens_per_second, ",.1f"),
                factor(span(at.versus_static)),
                factor(span(at.speedup)),
                ", ".join(text for text, holds in notes if holds) or NOT_MEASURED,
            )
        )
    static = f"N={trial.static_num_speculative_tokens}"
    heading = ("Load", "N", "tok/s", f"tok/s, {static}", f"Against {static}", "Speed-up", "Note")
    return Table(heading=heading, rows=tuple(rows), text=1, tail=1)


def left_out_table(report: Report) -> Table | None:
    """Every failed or skipped candidate with its reason; equal reasons of a method in one row."""
    groups: dict[tuple[str, str, str], list[int | None]] = {}
    for row in report.rows:
        if row.status in (Status.FAILED.value, Status.SKIPPED.value):
            lengths = groups.setdefault((row.method, row.status, row.why or "no reason given"), [])
            lengths += [] if row.n in lengths else [row.n]
    rows = tuple(
        (method, lengths_text(lengths), status, why)
        for (method, status, why), lengths in groups.items()
    )
    if not rows:
        return None
    return Table(heading=("Method", "N", "What", "Reason"), rows=rows, text=4)


def predicted_table(report: Report) -> Table | None:
    """What was never run, with the cost model's view of it."""
    rows = [row for row in report.rows if row.status == Status.PREDICTED.value]
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("Method", lambda r: r.method),
        ("N", lambda r: str(r.n)),
        ("Load", lambda r: load_text(r.load)),
        ("Predicted speed-up", lambda r: factor(r.predicted)),
    ]
    return _table(rows, columns, text=1)


def start_table(report: Report) -> Table | None:
    """Engine starts that failed."""
    from autotune.report.events import START, arm_label

    rows = tuple(
        (arm_label(event.arm), event.error, number(event.seconds, ".1f"))
        for event in report.events
        if event.kind == START and event.error is not None
    )
    if not rows:
        return None
    return Table(heading=("Engine start", "Error", "Seconds"), rows=rows, text=2)


def facts_table(report: Report) -> Table:
    """What is known, and the names of what is not."""
    rows = [(name, value) for name, value in report.facts if value is not None]
    unknown = [name for name, value in report.facts if value is None]
    rows += [("Not known", ", ".join(unknown))] if unknown else []
    return Table(heading=("", ""), rows=tuple(rows), text=2)


def _table(
    rows: Sequence[Row], columns: Sequence[tuple[str, Callable[[Row], str]]], text: int
) -> Table | None:
    """Columns in which nothing was measured are left out; None without rows."""
    if not rows:
        return None
    cells = [(name, [cell(row) for row in rows]) for name, cell in columns]
    kept = [(name, column) for name, column in cells if set(column) != {NOT_MEASURED}]
    return Table(
        heading=tuple(name for name, _ in kept),
        rows=tuple(zip(*(column for _, column in kept), strict=True)),
        text=text,
        tail=int(kept[-1][0] == FLAGS),
    )


def _length(row: Row) -> str:
    return number(row.acceptance_length.value if row.acceptance_length else None)


# ---------------------------------------------------------------------------------- words


def number(value: float | None, form: str = ".2f", scale: float = 1.0) -> str:
    return NOT_MEASURED if value is None else format(value * scale, form)


def factor(found: Span | None, *, interval: bool = True) -> str:
    """ "2.34x [2.22, 2.48]"."""
    if found is None:
        return NOT_MEASURED
    if not interval or found.low is None or found.high is None:
        return f"{found.value:.2f}x"
    return f"{found.value:.2f}x [{found.low:.2f}, {found.high:.2f}]"


def lengths_text(lengths: Sequence[int | None]) -> str:
    """ "1-3, 7" of N in ascending order; "all" for the whole method."""
    if None in lengths:
        return "all"
    return wording.lengths_text(sorted(n for n in lengths if n is not None), ", ")
