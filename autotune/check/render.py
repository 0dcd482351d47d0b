"""A check as text and as Markdown: the answer first, one line a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.check import change_text
from autotune.check.records import CheckReport, Verdict
from autotune.check.verdicts import METRICS, kind_of, label, margin_text
from autotune.wording import counted, load_text

HEADING = ("VERDICT", "METRIC", "CONC.", "OF", "BEFORE", "NOW", "CHANGE", "95% INTERVAL", "MARGIN")
MARKS = {"regression": "❌", "improvement": "✅", "no difference": "✅", "inconclusive": "❔"}
MAX_SUMMARY_BYTES = 1024 * 1024  # what GitHub takes of one step's summary
CUT = "\n\n(cut: a step summary holds 1 MiB)\n"
Row = tuple[str, ...]


def _loads(v: Verdict) -> str:
    return "all" if v.all_loads else load_text(v.concurrency)


def rows(report: CheckReport, *, short: bool = False) -> list[Row]:
    """Heading and one row a verdict, what matters first.

    `short` leaves out what has not changed and does not decide: it must fit on a screen.
    """
    order = ("regression", "inconclusive", "improvement", "no difference")
    found = sorted(report.verdicts, key=lambda v: (order.index(v.word), not v.gates))
    return [HEADING, *(_row(v) for v in found if not short or _is_shown(v))]


def _is_shown(v: Verdict) -> bool:
    return v.word != "no difference" or v.metric in ("speedup", "acceptance_length")


def unchanged(report: CheckReport) -> str | None:
    """One line for the rows that the short table leaves out."""
    left = [kind_of(v.metric) for v in report.verdicts if not _is_shown(v)]
    names = ", ".join(f"{name} ({left.count(name)})" for name in dict.fromkeys(left))
    return f"no difference either: {names}" if left else None


def _row(v: Verdict) -> Row:
    points = not METRICS[kind_of(v.metric)].relative
    span = "-"
    if v.low is not None and v.high is not None:
        span = f"[{v.low:+.1%}, {v.high:+.1%}]"
        if points:
            span = f"[{100 * v.low:+.1f}, {100 * v.high:+.1f}]"
    return (
        v.word,
        label(v.metric),
        _loads(v),
        v.subject,
        value_text(v, v.reference),
        value_text(v, v.measured),
        change_text(v),
        span,
        margin_text(v.metric, v.margin),
    )


def value_text(v: Verdict, value: float | None) -> str:
    if value is None:
        return "-"
    name = kind_of(v.metric)
    if name in ("speedup", "recommendation"):
        return f"{value:.2f}x"
    if name in ("position", "greedy"):
        return f"{value:.1%}"
    if name in ("tpot", "ttft"):
        return f"{1e3 * value:.2f} ms"
    return f"{value:.2f}" if name == "acceptance_length" else f"{value:.1f} tok/s"


def notes(report: CheckReport) -> list[str]:
    """What the table leaves out."""
    found = [f"{label(v.metric)}: {v.note}" for v in report.verdicts if v.note and _worth_saying(v)]
    counts = {word: sum(v.word == word for v in report.verdicts) for word in MARKS}
    words = ", ".join(_counted(count, word) for word, count in counts.items() if count)
    lines = [f"{counted(len(report.verdicts), 'verdict')}: {words}"] if report.verdicts else []
    if report.repeats is not None:
        starts = report.cost.engine_starts if report.cost else 0
        lines.append(f"measured {report.repeats} pairs of windows a load in {starts} engine starts")
    if report.outcome == "inconclusive":
        lines.append(needed_text(report))
    return [*lines, *dict.fromkeys(found)]


def _counted(count: int, word: str) -> str:
    """ "1 regression", "3 regressions", "3 inconclusive"."""
    return counted(count, word) if word in ("regression", "improvement") else f"{count} {word}"


def _worth_saying(v: Verdict) -> bool:
    if v.metric in ("greedy", "recommendation") or v.change is None:
        return True
    return v.metric == "acceptance_length" or kind_of(v.metric) in ("throughput", "tpot", "ttft")


def needed_text(report: CheckReport) -> str:
    if report.reference.faults:
        return "tune again first: what was broken must not become the golden value"
    if report.repeats is None:
        return "more repeats on either side would settle it: `run --rigorous`, or check an engine"
    if report.repeats_needed is None:
        return (
            "no number of repeats settles it, the reference itself is too uncertain: "
            "keep the --json document of a check as the next reference"
        )
    if report.repeats_needed <= report.repeats:
        return f"{report.repeats} pairs should do: the machine was noisier than its windows show"
    return f"about {report.repeats_needed} pairs of windows a load would settle it"


def difference_lines(report: CheckReport) -> list[str]:
    """The fields that forbid the comparison."""
    hints = {
        "workload_sha256": " (other prompts, or sampling: --num-prompts, --max-tokens, --seed)"
    }
    return [
        f"{d.field}: {d.reference} (reference), {d.measured} (now){hints.get(d.field, '')}"
        for d in report.differences
        if d.refused
    ]


def markdown(report: CheckReport) -> str:
    """For a pull request or a step summary."""
    lines = [f"### spectune check: {report.outcome}", "", f"**{_escaped(report.summary)}**", ""]
    lines += [f"- {_escaped(line)}" for line in difference_lines(report)]
    if report.verdicts:
        heading, *body = rows(report)
        lines += [_table_row(heading), _table_row(["---"] * len(heading))]
        lines += [_table_row([f"{MARKS[row[0]]} {row[0]}", *row[1:]]) for row in body]
        lines.append("")
    lines += [f"- {_escaped(note)}" for note in notes(report)]
    lines += [f"- ⚠️ {_escaped(warning)}" for warning in report.warnings]
    return "\n".join(lines) + "\n"


def _table_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(text: str) -> str:
    """An engine's or a file's words must not become markup."""
    for sign in "\\|`*<[":
        text = text.replace(sign, f"\\{sign}" if sign != "<" else "&lt;")
    return " ".join(text.split())


def step_summary(text: str, used: int) -> str:
    """As much of the text as still fits into a step summary that holds `used` bytes."""
    room = MAX_SUMMARY_BYTES - used
    encoded = text.encode()
    if len(encoded) <= room:
        return text
    kept = encoded[: max(0, room - len(CUT.encode()))].decode(errors="ignore")
    return kept.rpartition("\n")[0] + CUT if kept else ""
