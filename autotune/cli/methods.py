"""`spectune methods`: the drafting methods and what each needs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from autotune.cli.options import as_json as as_json_option


def table(rows: Iterable[Sequence[str]]) -> str:
    """Plain columns, two blanks apart; the first row is the heading."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
    return "\n".join(lines)


def lengths_text(lengths: Sequence[int]) -> str:
    """(1, 2, 3, 5) -> "1-3,5"."""
    runs: list[list[int]] = []
    for n in lengths:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


@click.command("methods")
@as_json_option()
def command(as_json: bool) -> None:
    """List the drafting methods: what each needs and which N it allows."""
    from autotune.methods import all_methods

    if as_json:
        click.echo(
            json.dumps({"methods": [describe(method) for method in all_methods()]}, indent=2)
        )
        return
    heading = ("METHOD", "DRAFTS", "LIVE N", "N TRIED", "NEEDS")
    rows = [
        (m.name, "parallel" if m.parallel else "sequential", "yes" if m.live_n else "no",
         "-" if m.refused else lengths_text(m.default_lengths), m.needs)
        for m in all_methods()
    ]  # fmt: skip
    click.echo(table([heading, *rows]))
    click.echo("\nWhat applies to a model: spectune models NAME")


def describe(method: Any) -> dict[str, Any]:
    """The JSON form of a Method."""
    keys = ("name", "vllm_method", "summary", "needs", "allows", "needs_drafter", "parallel",
            "live_n", "live_note", "package", "refused")  # fmt: skip
    facts = {key: getattr(method, key) for key in keys}
    lengths = list(method.default_lengths)
    return {**facts, "default_lengths": lengths, "config": dict(method.config)}
