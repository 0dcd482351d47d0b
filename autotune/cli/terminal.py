"""Lines and tables on stdout: with rich on a terminal, plain elsewhere; the same words."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = tuple[str, ...]
Part = tuple[str, str | list[Row]]  # rich's style; a line, or a table that begins with its heading


def show(parts: Iterable[Part]) -> None:
    """rich honours NO_COLOR."""
    if sys.stdout is not None and sys.stdout.isatty():  # None: it was closed
        from rich.console import Console

        print_rich(parts, Console())
    else:
        click.echo(plain(parts))


def plain(parts: Iterable[Part]) -> str:
    return "\n".join(part if isinstance(part, str) else table(part) for _, part in parts)


def table(rows: Iterable[Sequence[str]]) -> str:
    """Plain columns, two blanks apart; the first row is the heading."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
    return "\n".join(lines)


def print_rich(parts: Iterable[Part], console: Console) -> None:
    """Lines are not wrapped, so that a command can be copied; cells are folded, never cut."""
    from rich.text import Text

    for style, part in parts:
        if isinstance(part, str):
            console.print(Text(part, style), soft_wrap=True)
        else:
            console.print(_rich_table(part))


def _rich_table(rows: list[Row]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
    )
    for name in rows[0]:
        drawn.add_column(name, overflow="fold")
    for row in rows[1:]:
        drawn.add_row(*map(Text, row))  # an engine's words are not markup
    return drawn
