"""`spectune studies rm`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from autotune.cli.options import as_json as as_json_option
from autotune.cli.options import option, storage
from autotune.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from autotune.store import StudyInfo

AGES = {"h": 3600.0, "d": 86400.0, "w": 604800.0}


@click.command("rm")
@click.argument("study_ids", metavar="[ID]...", nargs=-1)
@storage()
@as_json_option()
@option("--older-than", metavar="TIME", help="Also all that were begun before: 30d, 12h, 4w.")
@option("--yes", "-y", is_flag=True, help="Do not ask.")
def command(
    study_ids: tuple[str, ...],
    storage: str | None,
    as_json: bool,
    older_than: str | None,
    yes: bool,
) -> None:
    """Remove studies and everything measured in them. A study that is being run stays."""
    from autotune.store import find_studies, list_studies, remove_study

    if not study_ids and older_than is None:
        raise click.UsageError("name a study, or say --older-than TIME")
    chosen = {info.id: info for info in find_studies(storage, study_ids)}
    if running := [info.id for info in chosen.values() if info.state == "running"]:
        raise StorageError(
            f"study {', '.join(running)} is being run: nothing was removed",
            hint="end that run, or leave the study out",
        )
    if older_than is not None:
        old = begun_before(list_studies(storage), parse_age(older_than))
        for info in old:
            if info.state == "running":
                click.echo(f"study {info.id} is being run and stays", err=True)
            else:
                chosen[info.id] = info
    if chosen and not yes:
        click.confirm(_question(list(chosen.values())), abort=True, err=True)
    removed = [remove_study(storage, name) for name in chosen]
    if as_json:
        document = {"removed": [info.model_dump(mode="json") for info in removed]}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    elif removed:
        click.echo("\n".join(f"removed {info.id}" for info in removed))
    else:
        click.echo("there was nothing to remove", err=True)


def parse_age(text: str) -> float:
    """ "30d", "12h", "4w" -> seconds. Raises ConfigurationError for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([hdw])\s*", text)
    if found is None:
        raise ConfigurationError(
            f"--older-than {text!r} is not an age", hint="write 12h, 30d or 4w"
        )
    return float(found[1]) * AGES[found[2]]


def begun_before(studies: Sequence[StudyInfo], age_seconds: float) -> list[StudyInfo]:
    """Those that were created longer ago than this."""
    now = datetime.now(UTC)
    return [
        info
        for info in studies
        if (now - datetime.fromisoformat(info.created)).total_seconds() > age_seconds
    ]


def _question(chosen: Sequence[StudyInfo]) -> str:
    if len(chosen) == 1:
        (info,) = chosen
        return f"Remove study {info.id} ({info.model or info.state}, {info.windows} windows)?"
    names, windows = ", ".join(info.id for info in chosen), sum(info.windows for info in chosen)
    return f"Remove {len(chosen)} studies ({names}; {windows} windows)?"
