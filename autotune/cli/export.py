"""`spectune export`: a recommendation in a form vLLM and its surroundings take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli.options import STDOUT, on_command_line, option, storage

if TYPE_CHECKING:
    from autotune.records import Recommendation

FORMS = ("json", "command", "speculative-config", "config", "env", "helm", "kubernetes", "recipe")


@click.command("export")
@click.argument("source", metavar="[STUDY | FILE.json]", required=False)
@storage()
@option(
    "--format", "form", type=click.Choice(FORMS), default="json", show_default=True,
    help="command: vllm serve ...; config: a YAML file for vllm serve --config; env: a shell"
    " script with the variables that were set; helm: values of vLLM's production-stack;"
    " kubernetes: a Deployment; recipe: parts for vllm-project/recipes.",
)  # fmt: skip
@option("--json", "as_json", is_flag=True, help="The same as --format json.")
@option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    variable="SPECTUNE_EXPORT_OUTPUT",
    help="Write to this file; - is stdout.",
)  # fmt: skip
@click.pass_context
def command(
    ctx: click.Context,
    source: str | None,
    storage: str | None,
    form: str,
    as_json: bool,
    output: Path | None,
) -> None:
    """Print a recommendation (default: the newest study's) in a form vLLM takes.

    STUDY is an id, maybe shortened; FILE.json is what `run -o` wrote. A form that cannot say what
    was measured is refused.
    """
    from autotune.documents import save
    from autotune.errors import ConfigurationError
    from autotune.export import export, remarks

    if as_json and form != "json":
        both = [on_command_line(ctx, name) for name in ("form", "as_json")]
        if all(both):
            raise click.UsageError(f"--json and --format {form} exclude each other", ctx)
        form = form if both[0] else "json"  # the command line wins over a variable
    if output == STDOUT:
        output = None
    if form == "config" and output is not None and output.suffix not in (".yaml", ".yml"):
        raise ConfigurationError(f"vLLM takes a --config file only as .yaml or .yml, not {output}")
    recommendation = find(source, storage)
    text = export(recommendation, form)
    for remark in remarks(recommendation, form):
        click.echo(f"warning: {remark}", err=True)
    if output is None:
        click.echo(text)
    else:
        save(text + "\n", output)
        click.echo(f"wrote {output}", err=True)


def find(source: str | None, storage: str | None) -> Recommendation:
    """Of a file, or of a stored study."""
    from autotune.documents import load_recommendation
    from autotune.export import recommendation_of
    from autotune.store import load_study

    if source is not None and (source.endswith(".json") or Path(source).is_file()):
        return load_recommendation(source)
    return recommendation_of(load_study(storage, source))
