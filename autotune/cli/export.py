"""`spectune export`: a stored recommendation in a form vLLM takes."""

from __future__ import annotations

import click

from autotune.cli.options import on_command_line, option, storage
from autotune.export import FORMS


@click.command("export")
@click.argument("study", required=False)
@storage()
@option("--format", "form", type=click.Choice(FORMS), default="json", show_default=True)
@option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.pass_context
def command(
    ctx: click.Context, study: str | None, storage: str | None, form: str, as_json: bool
) -> None:
    """Print a stored recommendation (default: the newest) in a form vLLM takes."""
    from autotune.export import export
    from autotune.store import load_study

    if as_json and form != "json":
        both = [on_command_line(ctx, name) for name in ("form", "as_json")]
        if all(both):
            raise click.UsageError(f"--json and --format {form} exclude each other", ctx)
        form = form if both[0] else "json"  # the command line wins over a variable
    click.echo(export(load_study(storage, study), form))
