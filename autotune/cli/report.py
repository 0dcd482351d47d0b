"""`spectune report`: a study or a recording as an HTML file, as Markdown or as text."""

from __future__ import annotations

import json
from pathlib import Path

import click

from autotune.cli.options import as_json as as_json_option
from autotune.cli.options import option, storage
from autotune.report import FORMS, Form


@click.command("report")
@click.argument("study", metavar="[STUDY]", required=False)
@storage()
@option(
    "--recording", type=click.Path(), metavar="FILE", variable="SPECTUNE_REPORT_RECORDING",
    help="Report on this recording instead of a study.",
)  # fmt: skip
@option(
    "--format", "form", type=click.Choice(FORMS), default="html", show_default=True,
    variable="SPECTUNE_REPORT_FORMAT",
    help="A page for a browser, Markdown for a pull request, or text for a terminal.",
)  # fmt: skip
@option(
    "-o", "--output", type=click.Path(dir_okay=False, allow_dash=True), metavar="FILE",
    variable="SPECTUNE_REPORT_OUTPUT",
    help="Write it here; - is stdout [spectune-STUDY.html; text: stdout].",
)  # fmt: skip
@as_json_option()
@click.pass_context
def command(
    ctx: click.Context, study: str | None, storage: str | None, recording: str | None,
    form: Form, output: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Write a report on a study: one file with plots that needs no network.

    STUDY may be shortened, and defaults to the newest. Prints the name of the file; with --json:
    what was written where.
    """
    from autotune.report import default_name, recording_report, render, save, study_report
    from autotune.store import load_study

    if recording is not None and study is not None:
        raise click.UsageError("a study and --recording exclude each other", ctx)
    if output is None and form == "text":
        output = "-"
    if as_json and output == "-":
        raise click.UsageError("--json leaves no room for the report on stdout: use -o FILE", ctx)
    if recording is not None:
        report = recording_report(recording)
    else:
        report = study_report(load_study(storage, study))
    text = render(report, form)
    if output == "-":
        click.echo(text.encode("utf-8", "backslashreplace"), nl=False)
        return
    path = Path(output or default_name(report, form))
    save(text, path)
    written = {"report": str(path), "format": form, report.kind: report.name}
    click.echo(json.dumps({**written, "bytes": path.stat().st_size}) if as_json else str(path))
