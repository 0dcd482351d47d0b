"""`spectune studies`: what is in the study database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli import removal
from autotune.cli.options import STDOUT, option, storage
from autotune.cli.options import as_json as as_json_option

if TYPE_CHECKING:
    from autotune.store import StoredStudy, StudyInfo


@click.group("studies")
def command() -> None:
    """List, show and remove stored studies."""


@command.command("list")
@storage()
@as_json_option()
def list_command(storage: str | None, as_json: bool) -> None:
    """List all studies, oldest first."""
    from autotune.cli.terminal import table
    from autotune.store import list_studies, resolve_storage, shown

    studies = list_studies(storage)
    if as_json:
        click.echo(_json({"studies": [info.model_dump(mode="json") for info in studies]}))
    elif studies:
        header = ("ID", "STATE", "CREATED", "ENGINE", "MODEL", "WORKLOAD", "WINDOWS", "RESULT")
        click.echo(table([header, *map(_line, studies)]))
    else:
        click.echo(f"no studies in {shown(resolve_storage(storage, create=False))}", err=True)


@command.command("show")
@click.argument("study_id", metavar="[ID]", required=False)
@click.argument("other_id", metavar="[ID]", required=False)
@storage()
@as_json_option()
@option(
    "--recording", is_flag=True, variable="SPECTUNE_AS_RECORDING",
    help="Give the measurements as a recording instead.",
)  # fmt: skip
@option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    variable="SPECTUNE_SHOW_OUTPUT",
    help="Write the JSON document to this file; - is stdout.",
)  # fmt: skip
def show_command(
    study_id: str | None,
    other_id: str | None,
    storage: str | None,
    as_json: bool,
    recording: bool,
    output: Path | None,
) -> None:
    """Show one study, or two side by side; ID may be shortened, and defaults to the newest.

    With --json: its recommendation. With --recording: a document for `--engine replay`. Two
    studies: what differs in what was asked and where it ran, each load's choice, and every
    candidate that both measured. There is no verdict in it: that is `spectune check`.
    """
    from autotune.export import recommendation_of
    from autotune.store import as_recording, load_study

    study = load_study(storage, study_id)
    if other_id is not None:
        if recording:
            raise click.UsageError("--recording is of one study")
        _show_both(study, load_study(storage, other_id), as_json=as_json, output=output)
        return
    if recording:
        document = as_recording(study.plan, study.windows)
    elif as_json or output:
        document = recommendation_of(study).model_dump(mode="json", by_alias=True)
    else:
        _print_summary(study)
        return
    _give(document, output)


@command.command("path")
@storage()
@as_json_option()
def path_command(storage: str | None, as_json: bool) -> None:
    """Print where studies are kept."""
    from autotune.store import resolve_storage, shown

    place = shown(resolve_storage(storage, create=False))
    click.echo(_json({"path": place}) if as_json else place)


command.add_command(removal.command)


def _show_both(
    first: StoredStudy, second: StoredStudy, *, as_json: bool, output: Path | None
) -> None:
    from autotune.cli.side_by_side import comparison_parts
    from autotune.cli.terminal import show
    from autotune.study_comparison import compare

    comparison = compare(first, second)
    if as_json or output:
        _give(comparison.model_dump(mode="json"), output)
    else:
        show(comparison_parts(comparison))


def _give(document: dict[str, Any], output: Path | None) -> None:
    """One JSON document, on stdout or in a file."""
    from autotune.documents import save

    if output is None or output == STDOUT:
        click.echo(_json(document))
    else:
        save(_json(document) + "\n", output)
        click.echo(f"wrote {output}", err=True)


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def _line(info: StudyInfo) -> tuple[str, ...]:
    created = info.created[:16].replace("T", " ")
    names = (info.engine, info.model, info.workload)
    return (info.id, info.state, created, *names, str(info.windows), _result(info))


def _result(info: StudyInfo) -> str:
    if info.decision != "speculate":
        return (info.decision or "").replace("_", " ")
    speedup = "" if info.speedup is None else f" {info.speedup:.2f}x"
    return f"{info.method} N={info.num_speculative_tokens}{speedup}"


def _print_summary(study: StoredStudy) -> None:
    from autotune.cli.render import recommendation_parts
    from autotune.cli.terminal import show
    from autotune.wording import candidate_text, counted, duration

    info, plan = study.info, study.plan
    prompts = f", {len(plan.workload.prompts)} prompts" if plan.sends_prompts else ""
    lines = [
        f"study {info.id}: {_result(info) or 'no recommendation'} ({info.state})",
        f"created {info.created}, engine {info.engine}",
        f"{info.model} on {info.workload}{prompts}",
        f"{counted(info.windows, 'window')}, {counted(len(study.engine_starts), 'engine start')}, "
        + duration(info.total_seconds),
    ]
    for failure in study.failures:
        candidate = candidate_text(failure.method, failure.num_speculative_tokens)
        lines.append(f"failed {candidate}: {failure.error}")
    click.echo("\n".join([*lines, ""]))
    if study.recommendation is None:
        click.echo("the same `spectune run` command continues it")
    else:
        show(recommendation_parts(study.recommendation))
