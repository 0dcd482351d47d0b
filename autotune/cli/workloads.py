"""`spectune workloads`: the workloads that have a name."""

from __future__ import annotations

import json

import click

from autotune.cli.options import as_json as as_json_option
from autotune.cli.terminal import table


@click.command("workloads")
@as_json_option()
def command(as_json: bool) -> None:
    """List the workloads that have a name; a JSONL file of your own is one as well."""
    from autotune.workload_sources import known_workloads

    workloads = known_workloads()
    if as_json:
        document = {"workloads": [info.model_dump(mode="json") for info in workloads]}
        click.echo(json.dumps(document, indent=2))
        return
    heading = ("NAME", "KIND", "PROMPTS", "MAX TOKENS", "WHAT IT IS", "NEEDS")
    rows = [
        (info.name, info.kind, "-" if info.num_prompts is None else str(info.num_prompts),
         str(info.max_tokens), info.description, info.needs or "-")
        for info in workloads
    ]  # fmt: skip
    click.echo(table([heading, *rows]))
    click.echo("\nYour own prompts: spectune run --workload FILE.jsonl ...")
