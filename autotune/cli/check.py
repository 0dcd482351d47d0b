"""`spectune check`: has it become slower? For CI: verdict, exit code, JUnit, Markdown."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.options import as_json, measuring, option, refuse_unread, storage
from autotune.cli.run import PassesThrough, require_writable, write
from autotune.errors import ConfigurationError

if TYPE_CHECKING:
    from autotune.check import Rules
    from autotune.check.records import CheckReport, CheckSide

new = partial(option, group="What is compared with REFERENCE (nothing: it is measured again)")
rule = partial(option, group="Verdicts")
engine = partial(option, group="Measuring again")
result = partial(option, group="Result and storage")
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
MEASURING = (
    "recording", "simulation", "replay_noise", "model", "workload", "max_concurrency",
    "num_prompts", "prompts_per_block", "max_tokens", "temperature", "budget", "cycles",
    "blocks", "all_cycles", "rivals", "vllm_python", "log_dir", "start_timeout", "request_timeout",
    "catalog", "top_p", "seed",
)  # fmt: skip


@click.command("check", cls=PassesThrough, options_metavar="[OPTIONS]")
@new("--against", type=click.Path(), metavar="FILE", help="A recommendation, recording or check.")
@new("--study", metavar="ID", help="A stored study; ID may be shortened.")
@rule(
    "--margin", "margins", multiple=True, metavar="METRIC=SHARE",
    help="Smallest loss that must be found, e.g. speedup=5% (repeatable)."
    " Also acceptance_length, position, throughput, tpot, ttft, greedy, recommendation.",
)  # fmt: skip
@rule(
    "--assumed-noise", default="2%", show_default=True, metavar="SHARE",
    help="Noise of one figure where a document carries no spread.",
)  # fmt: skip
@rule("--allow", metavar="FIELDS", help="Compare although these differ, e.g. gpu,vllm.")
@rule("--strict", is_flag=True, help="Inconclusive is a failure too: exit 1.")
@measuring("Measuring again")
@engine("--budget", metavar="TIME", default="1h", show_default=True, help="Longest time to take.")
@engine("--cycles", type=click.IntRange(1), default=8, show_default=True,
        help="Most cycles of baseline, configuration, configuration, baseline.")  # fmt: skip
@engine("--blocks", type=click.IntRange(2), default=8, show_default=True,
        help="Blocks of prompts in each of them.")  # fmt: skip
@engine("--all-cycles", is_flag=True,
        help="Measure on when all is sure: for a golden value (-o).")  # fmt: skip
@engine("--rivals", type=click.IntRange(0), default=0, show_default=True,
        help="Measure so many other N too: would one of them now win?")  # fmt: skip
@engine("--model", metavar="NAME", help="Hub id or path [the reference's].")
@engine("--workload", metavar="NAME", help="Name or JSONL file [the reference's].")
@engine("--max-concurrency", metavar="LIST", help="Only these of the reference's loads.")
@engine("--num-prompts", type=click.IntRange(2), help="First prompts [the reference's].")
@engine("--prompts-per-block", type=click.IntRange(1), help="Smallest window, in prompts [8].")
@engine("--temperature", type=click.FloatRange(0), help="Of sampling [the reference's].")
@engine("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Of sampling.")
@engine("--max-tokens", type=click.IntRange(1), help="Of one answer [the reference's].")
@engine("--seed", type=int, default=0, show_default=True, help="Of sampling.")
@engine("--catalog", type=click.Path(), metavar="FILE", help="Your own catalogue of drafters.")
@as_json("Result and storage")
@result("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE",
        variable="SPECTUNE_CHECK_OUTPUT",
        help="Write the check's JSON here: a reference for later checks.")  # fmt: skip
@result("--junit", type=click.Path(dir_okay=False), metavar="FILE", help="Write JUnit XML here.")
@result("--markdown", type=click.Path(dir_okay=False), metavar="FILE", help="Write Markdown here.")
@storage("Result and storage")
@click.argument("reference", type=click.Path(), metavar="REFERENCE")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Check a recommendation: measure it again, or compare it with a newer result.

    REFERENCE is a recommendation, a recording or an earlier check's JSON. Exit code 0: no
    regression, 1: regression, 4: inconclusive or not comparable. In GitHub Actions the Markdown is
    also appended to the step's summary. What follows -- replaces the reference's vLLM options.
    """
    from autotune.check import Rules
    from autotune.check.comparable import parse_allowed
    from autotune.check.documents import load_side
    from autotune.check.verdicts import parse_margins, parse_share

    noise = parse_share(options["assumed_noise"], "--assumed-noise")
    margins = parse_margins([part for text in options["margins"] for part in text.split(",")])
    rules = Rules(margins, parse_allowed(options["allow"]), options["strict"])
    _refuse_mixed(ctx, options)
    reference = load_side(_existing(options["reference"]), noise)
    files = _outputs(options)
    report = _compare(ctx, reference, rules, noise, options)
    _publish(report, files, options["as_json"])
    return report.exit_code


def _existing(reference: str) -> str:
    """The reference; a study's id is told how to become a file."""
    path = Path(reference)
    if path.exists() or path.suffix or path.name != reference:
        return reference
    raise ConfigurationError(
        f"there is no file {reference}: REFERENCE is a file",
        hint=f"a stored study becomes one: spectune export {reference} -o recommended.json",
    )


def _compare(
    ctx: click.Context, reference: CheckSide, rules: Rules, noise: float, options: dict[str, Any]
) -> CheckReport:
    """The one of the three forms that was asked for."""
    from autotune.check import check_sides
    from autotune.check.documents import load_side

    if options["against"]:
        return check_sides(reference, load_side(options["against"], noise), rules)
    if options["study"]:
        from autotune.check.study import study_side
        from autotune.store import load_study

        measured = study_side(load_study(options["storage"], options["study"]), noise)
        return check_sides(reference, measured, rules)
    return _measure(ctx, reference, rules, options)


def _measure(
    ctx: click.Context, reference: CheckSide, rules: Rules, options: dict[str, Any]
) -> CheckReport:
    from autotune.check.measure import Effort, check_engine
    from autotune.check.plan import CheckRequest, check_plan
    from autotune.cli import INTERRUPTED, say
    from autotune.cli.progress import Progress
    from autotune.cli.run import naming_logs, only_known, timeouts
    from autotune.engines import EngineOptions, load_engine
    from autotune.plan import parse_duration

    options = {**options, **timeouts(options), "engine_args": options["vllm_args"] or None}
    chosen = load_engine(
        options["engine"], only_known(EngineOptions, options, noise="replay_noise")
    )
    refuse_unread(ctx, chosen)
    plan, configuration = check_plan(reference, chosen, only_known(CheckRequest, options))
    budget = parse_duration(options["budget"], "--budget")
    effort = Effort(
        options["blocks"], options["cycles"], budget, options["all_cycles"], options["rivals"]
    )
    with naming_logs(chosen), Progress() as progress:
        try:
            return check_engine(reference, plan, configuration, chosen, rules, effort, progress)
        except KeyboardInterrupt as interrupt:
            say("interrupted: a check keeps nothing, the same command measures again")
            raise click.exceptions.Exit(INTERRUPTED) from interrupt


def _refuse_mixed(ctx: click.Context, options: dict[str, Any]) -> None:
    """Two things to compare with, or options of an engine that none would read."""
    from autotune.cli.options import on_command_line

    if options["against"] and options["study"]:
        raise click.UsageError("--against and --study exclude each other", ctx)
    if not (options["against"] or options["study"]):
        return
    unread = [name for name in ("engine", *MEASURING) if on_command_line(ctx, name)]
    if unread or options["vllm_args"]:
        longs = {p.name: p.opts[0] for p in ctx.command.params}
        names = ", ".join([longs[name] for name in unread] + ["--"] * bool(options["vllm_args"]))
        raise click.UsageError(f"two documents are compared without an engine: drop {names}", ctx)


def _outputs(options: dict[str, Any]) -> dict[str, Path]:
    """Files to write, found to be writable before anything is measured."""
    taken = [Path(options[n]) for n in ("reference", "against", "recording") if options[n]]
    files = {n: Path(options[n]) for n in ("output", "junit", "markdown") if options[n]}
    for name, file in files.items():
        if file.resolve() in [path.resolve() for path in taken]:
            raise ConfigurationError(f"--{name} {file} would replace a file that is in use")
        require_writable(file, ())
        taken.append(file)
    return files


def _publish(report: CheckReport, files: dict[str, Path], in_json: bool) -> None:
    """stdout first: whatever happens to the files, the verdict has been said."""
    from autotune.check.junit import junit
    from autotune.check.render import markdown
    from autotune.cli.render import print_json
    from autotune.cli.terminal import show

    print_json(report) if in_json else show(parts(report))
    texts = {
        "output": lambda: report.model_dump_json(by_alias=True, indent=2) + "\n",
        "junit": lambda: junit(report),
        "markdown": lambda: markdown(report),
    }
    for name, file in files.items():
        _write(file, texts[name](), report)
    if place := os.environ.get(STEP_SUMMARY):
        _append(Path(place), markdown(report))


def _write(file: Path, text: str, report: CheckReport) -> None:
    """A disk that filled up meanwhile must not turn a regression into another exit code."""
    from autotune.cli import say

    try:
        write(file, text, hint=None)
    except ConfigurationError as error:
        if report.exit_code != 1:
            raise
        say(f"error: {error.message}")


def _append(place: Path, text: str) -> None:
    """To the step's summary: a courtesy, so it is only said when it cannot be written."""
    from autotune.check.render import step_summary
    from autotune.cli import say

    try:
        used = place.stat().st_size if place.exists() else 0
        with place.open("a", encoding="utf-8") as file:
            file.write(step_summary(text, used))
    except OSError as error:
        say(f"cannot write {STEP_SUMMARY} {place}: {error.strerror}")


def parts(report: CheckReport) -> list[Any]:
    """One screen: the answer, the table, what is behind it."""
    from autotune.check.render import difference_lines, notes, rows, unchanged

    style = {"regression": "bold red", "no regression": "bold green"}.get(report.outcome, "bold")
    found: list[Any] = [(style, report.summary), ("", "")]
    found += [("", line) for line in difference_lines(report)]
    if report.verdicts:
        found += [("", rows(report, short=True)), ("", "")]
    if rest := unchanged(report):
        found.append(("dim", rest))
    found += [("dim", note) for note in notes(report)]
    return found + [("yellow", f"warning: {warning}") for warning in report.warnings]
