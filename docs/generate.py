"""Writes the generated documents: `python docs/generate.py`. A test fails when one is stale."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from autotune.cli import VERBS, cli
from autotune.recording import Recording
from autotune.records import CheckReport, Recommendation

FOLDER = Path(__file__).parent.resolve()
README = FOLDER.parent / "README.md"
START = "<!-- what the command prints is written by `make docs` -->"
EXAMPLE = re.compile(rf"{re.escape(START)}\n```\n(\$ spectune .+)\n\n((?:.*\n)*?)```\n")
DIALECT = "https://json-schema.org/draft/2020-12/schema"
WIDTH = 88

ABOUT = """\
# Command line

`spectune VERB ...`, or `python -m autotune VERB ...`. This file is generated: `make docs`.

The result goes to stdout, progress and logs to stderr. `--json` prints exactly one JSON document.
Every option also reads a variable named after it: `--max-concurrency` is
`SPECTUNE_MAX_CONCURRENCY`, a switch takes 1 or 0 (`SPECTUNE_LIVE_N=0`), several drafters are
separated by blanks. The one exception: `studies show --recording` is `SPECTUNE_AS_RECORDING`,
because `SPECTUNE_RECORDING` is the file that `run` plays. The command line wins.

`--engine replay` and `--engine simulate` bring their own model and workload. An option that the
chosen engine would ignore is an error on the command line; a variable may stand.

| exit | meaning |
|---|---|
| 0 | done |
| 1 | `check`: a regression; with `--strict` also what is inconclusive |
| 2 | usage or configuration: unknown model, bad file, bad option; a question answered with no |
| 3 | the engine could not do it: did not start, died, no usable measurement |
| 4 | inconclusive: noise, too few repeats, too little time, results that may not be compared |
| 70 | a fault in spectune itself; the traceback is on stderr |
| 130 | interrupted; what was measured is kept and the same command resumes |
| 141 | the reader of stdout went away before the end |
"""


def documents() -> dict[str, str]:
    """Text by file name."""
    return {
        "cli.md": command_line(),
        "recommendation.schema.json": as_text(recommendation_schema()),
        "recording.schema.json": as_text(recording_schema()),
        "check.schema.json": as_text(check_schema()),
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


def check_schema() -> dict[str, Any]:
    """What `check --json` and `check -o` give."""
    return {"$schema": DIALECT, **CheckReport.model_json_schema(mode="serialization")}


def as_text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def readme() -> str:
    """README.md with what its example command prints now."""
    text = README.read_text(encoding="utf-8")
    before, command, printed, after = EXAMPLE.split(text, maxsplit=1)
    now = output_of(shlex.split(command.removeprefix("$ ")))
    shown = printed if stable(printed) == stable(now) else now
    return f"{before}{START}\n```\n{command}\n\n{shown}```\n{after}"


def output_of(command: list[str]) -> str:
    """stdout of a `spectune ...` command, run in this process on a database of its own."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(FOLDER.parent):
        arguments = [*command[1:], "--storage", f"sqlite:///{folder}/study.db"]
        with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()),
        ):
            cli.main(arguments, prog_name="spectune", standalone_mode=False)
    return out.getvalue()


def stable(text: str) -> str:
    """Without what differs from run to run: how long it took."""
    return re.sub(r"\d+ s;", "SECONDS;", text)


if __name__ == "__main__":
    for file_name, content in {**documents(), "../README.md": readme()}.items():
        path = (FOLDER / file_name).resolve()
        path.write_text(content, encoding="utf-8")
        print(path.relative_to(FOLDER.parent))
