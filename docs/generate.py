"""Writes the generated documents: `python docs/generate.py`. A test fails when one is stale."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from autotune.cli import VERBS, cli
from autotune.recording import Recording
from autotune.records import Recommendation

FOLDER = Path(__file__).parent
DIALECT = "https://json-schema.org/draft/2020-12/schema"
WIDTH = 88

ABOUT = """\
# Command line

`spectune VERB ...`, or `python -m autotune VERB ...`. This file is generated: `make docs`.

The result goes to stdout, progress and logs to stderr. `--json` prints exactly one JSON document.
Every long option of `run` also reads a variable: `--max-concurrency` is
`SPECTUNE_MAX_CONCURRENCY`, a switch takes 1 or 0 (`SPECTUNE_LIVE_N=0`). The command line wins.

| exit | meaning |
|---|---|
| 0 | done |
| 2 | usage or configuration: unknown model, bad file, bad option |
| 3 | the engine could not do it: did not start, died, no usable measurement |
| 4 | inconclusive: noise, too few repeats, too little time |
| 130 | interrupted; what was measured is kept and the same command resumes |
"""


def documents() -> dict[str, str]:
    """Text by file name."""
    return {
        "cli.md": command_line(),
        "recommendation.schema.json": as_text(recommendation_schema()),
        "recording.schema.json": as_text(recording_schema()),
    }


def command_line() -> str:
    """The --help of every verb."""
    parts = [ABOUT]
    for name, text in helps():
        heading = "#" * (len(name.split()) + 1)
        parts.append(f"{heading} {name}\n\n```\n{text}\n```\n")
    return "\n".join(parts)


def helps() -> Iterator[tuple[str, str]]:
    """(full name, help) of the program, its verbs and their verbs."""
    root = click.Context(cli, info_name="spectune", terminal_width=WIDTH)
    yield "spectune", cli.get_help(root)
    for verb in VERBS:
        command = cli.get_command(root, verb)
        if command is None:
            raise LookupError(verb)
        context = click.Context(command, info_name=verb, parent=root)
        yield f"spectune {verb}", command.get_help(context)
        for name, below in getattr(command, "commands", {}).items():
            inner = click.Context(below, info_name=name, parent=context)
            yield f"spectune {verb} {name}", below.get_help(inner)


def recommendation_schema() -> dict[str, Any]:
    """What `run --json`, `run -o` and `studies show --json` give."""
    return {"$schema": DIALECT, **Recommendation.model_json_schema(mode="serialization")}


def recording_schema() -> dict[str, Any]:
    """What `run --engine replay --recording` reads. `schema` must be there."""
    schema = Recording.model_json_schema(mode="validation")
    return {"$schema": DIALECT, **schema, "required": ["schema", *schema["required"]]}


def as_text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for file_name, content in documents().items():
        (FOLDER / file_name).write_text(content, encoding="utf-8")
        print(FOLDER / file_name)
