"""A report as GitHub Markdown, for pull requests: the answer, a table per load, details folded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from autotune.report import tables
from autotune.report.answer import detail, headline
from autotune.report.data import Report
from autotune.report.run_sections import story
from autotune.report.section import Section
from autotune.report.sections import build
from autotune.report.tables import Table

# what begins a construct of Markdown or HTML in running text; @ and # would notify and link
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#@|~!&$])")
_LINES = re.compile(r"\s*[\r\n]+\s*")


def to_markdown(report: Report) -> str:
    """The whole text. What others wrote (names, errors) is inert: escaped, on one line."""
    return "\n".join(_parts(report)).rstrip() + "\n"


def _parts(report: Report) -> Iterator[str]:
    yield f"### {escaped(report.model)} on {escaped(report.workload)}: " + escaped(headline(report))
    yield ""
    yield escaped(detail(report))
    yield ""
    loads = tables.load_table(report)
    yield table_text(loads) if loads.rows else "Nothing has been measured yet."
    yield ""
    for warning in report.warnings:
        yield f"> **Warning:** {escaped(warning)}\n>"
    yield ""
    yield from _serving(report)
    if report.kind == "study":
        yield escaped(" ".join(story(report))) + "\n"
    for section in build(report).sections:
        yield from _section(section)
    source = "study" if report.kind == "study" else "recording"
    yield f"<sub>spectune, {source} {escaped(report.name)}; – was not measured</sub>"


def _serving(report: Report) -> Iterator[str]:
    r = report.recommendation
    if r is None:
        return
    if r.speculative_config is not None:
        yield from fenced(json.dumps(r.speculative_config, ensure_ascii=False, indent=2), "json")
    if r.serve_command is not None:
        yield from fenced(r.serve_command, "sh")


def _section(section: Section) -> Iterator[str]:
    """Folded; figures are not there, their tables are."""
    if not section.tables:
        return
    yield f"<details><summary>{escaped(section.title)}</summary>"
    yield ""
    if section.note and not section.figures:
        yield escaped(section.note) + "\n"
    for table in section.tables:
        if table.caption:
            yield escaped(table.caption) + "\n"
        yield table_text(table) + "\n"
    yield "</details>"
    yield ""


def table_text(table: Table) -> str:
    """Numbers are right-aligned. A cell is one line and holds no bare pipe."""
    rule = ["---:" if table.is_number(i) else ":---" for i in range(len(table.heading))]
    lines = [_line(table.heading), "|" + "|".join(rule) + "|", *map(_line, table.rows)]
    return "\n".join(lines)


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(escaped(cell) or " " for cell in cells) + " |"


def escaped(text: str) -> str:
    """Running text without any meaning in Markdown; line breaks become blanks."""
    return _SPECIAL.sub(r"\\\1", _LINES.sub(" ", text.strip()))


def fenced(text: str, language: str) -> Iterator[str]:
    """A code block; its fence is longer than any run of backticks within."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}{language}\n{text}\n{fence}"
    yield ""
