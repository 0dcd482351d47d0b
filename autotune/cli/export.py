"""`spectune export`: a stored recommendation in a form vLLM takes."""

from __future__ import annotations

import click

from autotune.cli.options import option, storage
from autotune.export import FORMS


@click.command("export")
@click.argument("study", required=False)
@storage
@option("--format", "form", type=click.Choice(FORMS), default="json", show_default=True)
def command(study: str | None, storage: str | None, form: str) -> None:
    """Print a stored recommendation (default: the newest) in a form vLLM takes."""
    from autotune.export import export
    from autotune.store import load_study

    click.echo(export(load_study(storage, study), form))
