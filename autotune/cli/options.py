"""Options that several verbs share; every option has its SPECTUNE_* variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])


def option(*names: str, **settings: Any) -> Callable[[Function], Function]:
    """click.option with the environment variable named after the long option."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    variable = "SPECTUNE_" + long.removeprefix("--").upper().replace("-", "_")
    return click.option(*names, envvar=variable, show_envvar=False, **settings)


storage = option("--storage", metavar="URL", help="Study database [studies/spectune.db].")
as_json = option("--json", "as_json", is_flag=True, help="Print exactly one JSON document.")
output = option(
    "-o", "--output", type=click.Path(dir_okay=False, writable=True), metavar="FILE",
    help="Write the recommendation JSON here.",
)  # fmt: skip
