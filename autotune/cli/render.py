"""Records as text: the answer first, then the table, warnings and the next command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import click
from pydantic import BaseModel

from autotune.cli.several_loads import load_parts, short
from autotune.cli.terminal import Part, Row, table
from autotune.dryrun import Preview
from autotune.records import (
    BASELINE,
    CandidateResult,
    Interval,
    Recommendation,
    Status,
)
from autotune.wording import (
    choice_text,
    cost_text,
    counted,
    duration,
    lengths_text,
    load_text,
    over_text,
    setting_text,
)

KEPT = {True: "kept", False: "missed", None: "-"}  # the latency limits
SHOWN = (Status.CONFIRMED, Status.PROBED, Status.FAILED)


def print_json(record: BaseModel) -> None:
    """Exactly one JSON document on stdout."""
    click.echo(json.dumps(record.model_dump(mode="json", by_alias=True), indent=2))


def recommendation_parts(r: Recommendation, log_dir: Path | None = None) -> list[Part]:
    """The answer first. `log_dir` is named where a candidate failed."""
    parts: list[Part] = [("bold", _answer(r)), ("", ""), ("", _loads(r)), ("", "")]
    parts += [("", _candidates(r)), *(("dim", note) for note in _notes(r))]
    parts += load_parts(r)
    if log_dir is not None and any(c.status == Status.FAILED for c in r.candidates):
        parts.append(("", f"engine logs are in {log_dir}"))
    if r.warnings:
        parts += [("", ""), *(("yellow", f"warning: {warning}") for warning in r.warnings)]
    cost = f"{cost_text(r.cost)}; stopped because {r.stopped_because}"
    return [*parts, ("", ""), ("dim", cost), ("", ""), *_next(r)]


def _answer(r: Recommendation) -> str:
    subject = f"{r.model} on {r.workload.name}"
    if r.decision == "do_not_speculate":
        best = f" (best measured: {_interval(r.speedup)})" if r.speedup else ""
        within = " within the latency limits" if r.limits else ""
        return f"{subject}: do not speculate, nothing measured is faster{within}{best}"
    if r.decision == "inconclusive" and r.method == BASELINE:
        return f"{subject}: inconclusive; no candidate could be confirmed"
    if r.decision == "inconclusive":
        return f"{subject}: inconclusive; {setting_text(r)} leads with {_interval(r.speedup)}"
    said = f"{_interval(r.speedup)} against no speculation{over_text(r)}"
    return f"{subject}: use {setting_text(r)}, {said}"


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    return (
        f"{interval.value:.2f}x [{interval.low:.2f}, {interval.high:.2f}] "
        f"at {interval.confidence:.0%}"
    )


def _loads(r: Recommendation) -> list[Row]:
    rates = {b.concurrency: b.output_tokens_per_second for b in r.baseline}
    rows = [
        (load_text(c.concurrency), choice_text(c), short(c.speedup),
         c.status.value if c.status else "-", f"{rates[c.concurrency]:.1f}",
         *([KEPT[c.meets_limits]] if r.limits else []))
        for c in r.per_concurrency
    ]  # fmt: skip
    heading = ("CONCURRENCY", "CHOICE", "SPEED-UP", "EVIDENCE", "BASELINE TOK/S")
    return [(*heading, *(["LIMITS"] if r.limits else [])), *rows]


def _candidates(r: Recommendation) -> list[Row]:
    shown = [c for c in r.candidates if c.status in SHOWN]
    heading = ("METHOD", "N", "CONC.", "TOK/S", "SPEED-UP", "PREDICTED",
               "TOKENS/ROUND", "DRAFT MS", "VERIFY MS",
               *(["WITHIN LIMITS", "GOOD REQ/S"] if r.limits else []), "STATUS")  # fmt: skip
    return [heading, *(_row(c, limited=r.limits is not None) for c in shown)]


def _notes(r: Recommendation) -> list[str]:
    """What the table leaves out."""
    notes = []
    quality = r.predictions
    if quality is not None and quality.median_error is not None:
        notes.append(
            f"predicted before measuring: {quality.count}, median error {quality.median_error:.1%},"
            f" {quality.covered} within the {quality.confidence:.0%} interval"
        )
    predicted = sum(c.status == Status.PREDICTED for c in r.candidates)
    if predicted:
        notes.append(f"{predicted} more predicted only, see --json")
    skipped = (c for c in r.candidates if c.status == Status.SKIPPED)
    return notes + skipped_lines((c.method, c.num_speculative_tokens, c.reason) for c in skipped)


def skipped_lines(skipped: Iterable[tuple[str, int | None, str | None]]) -> list[str]:
    """One line a method and reason; N (None or 0: the whole method) are collected."""
    lengths: dict[tuple[str, str | None], list[int]] = {}
    for method, n, reason in skipped:
        lengths.setdefault((method, reason), []).extend([n] if n else [])
    return [
        f"skipped {method}{f' N={lengths_text(found)}' if found else ''}: {reason}"
        for (method, reason), found in lengths.items()
    ]


def _row(c: CandidateResult, *, limited: bool) -> Row:
    within = (
        _number(c.share_within_limits, "{:.0%}"),
        _number(c.goodput_requests_per_second, "{:.2f}"),
    )
    return (
        c.method,
        str(c.num_speculative_tokens),
        load_text(c.concurrency),
        _number(c.output_tokens_per_second, "{:.1f}"),
        short(c.speedup),
        _number(c.predicted_speedup.value if c.predicted_speedup else None, "{:.2f}x"),
        _number(c.acceptance_length, "{:.2f}"),
        _number(c.draft_seconds_per_step, "{:.2f}", 1e3),
        _number(c.verify_seconds_per_step, "{:.2f}", 1e3),
        *(within if limited else ()),
        c.status.value if c.error is None else f"failed: {c.error}"[: _width()],
    )


def _width() -> int:
    return max(40, shutil.get_terminal_size((160, 24)).columns - 60)


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else form.format(value * scale)


def _next(r: Recommendation) -> list[Part]:
    serve = [("", "serve it:"), ("bold", f"  {r.serve_command}")]
    if r.serve_command is None:
        serve = [("", f"no command to serve it: engine {r.engine} names no drafter")]
    return [*serve, ("", f"study {r.study}; a page with plots: spectune report {r.study}")]


def dry_run_text(preview: Preview) -> str:
    """What would be run, most promising candidate first."""
    loads = ", ".join(load_text(c) for c in preview.concurrencies)
    rows = [
        (c.method, str(c.num_speculative_tokens), f"{c.expected_speedup:.2f}x")
        for c in preview.candidates
    ]
    lines = [
        f"{preview.model} on {preview.workload}, concurrency {loads}",
        f"about {counted(preview.engine_starts, 'engine start')}"
        + (f", {duration(preview.estimated_seconds)}" if preview.estimated_seconds else ""),
        "",
        table([("METHOD", "N", "EXPECTED"), *rows]),
        "expected: guessed by method, from published sweeps if there are any; nothing was measured",
        *skipped_lines((s.method, s.num_speculative_tokens, s.reason) for s in preview.skipped),
        "",
        "engine commands (the confirmation then starts the winner with a static N):",
        *(f"  {command}" for command in preview.commands),
    ]
    return "\n".join([*lines, *(f"warning: {warning}" for warning in preview.warnings)])
