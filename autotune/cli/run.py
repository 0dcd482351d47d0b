"""`spectune run`: the main job."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli import say
from autotune.cli.options import Grouped, as_json, measuring, option, refuse_unread, storage
from autotune.cli.progress import Progress
from autotune.errors import ConfigurationError, EngineError

if TYPE_CHECKING:
    from autotune.dryrun import Preview
    from autotune.engines import Engine
    from autotune.records import Plan

INCONCLUSIVE = 4

what = partial(option, group="What to tune")
effort = partial(option, group="How hard to measure")
engine = partial(option, group="Engine")
result = partial(option, group="Result and storage")
SECONDS = ("start_timeout", "request_timeout")  # options that are durations


class PassesThrough(Grouped):
    """What follows `--` becomes the parameter `vllm_args`; before it only options may stand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        try:
            rest = super().parse_args(ctx, args[:end])
        except click.NoSuchOption as error:
            if error.possibilities:
                raise
            where = f"{error.message} Options of `vllm serve` go after --"
            raise click.NoSuchOption(error.option_name, where, ctx=error.ctx) from error
        ctx.params["vllm_args"] = tuple(args[end + 1 :])
        return rest


@click.command("run", cls=PassesThrough, options_metavar="[OPTIONS] [-- VLLM_SERVE_ARGS...]")
@what("--model", metavar="NAME", help="Hub id, local path, or short name of the catalogue.")
@what("--workload", metavar="NAME", help="math, code, ... or a JSONL file: `spectune workloads`.")
@what("--methods", metavar="LIST", help="Drafting methods to try, e.g. mtp,eagle3 [all].")
@what(
    "--drafter", "drafters", multiple=True, metavar="METHOD=ID_OR_PATH",
    help="Draft checkpoint for a method (repeatable).",
)  # fmt: skip
@what(
    "--speculative-option", "speculative_options", multiple=True, metavar="METHOD.KEY=VALUE",
    help="Further key of the method's speculative_config (repeatable): `spectune methods NAME`.",
)  # fmt: skip
@what("--discover", is_flag=True, help="Ask the Hub for drafters that name this model.")
@what("--num-speculative-tokens", metavar="LIST", help="N to try: 1-8 or 1,3,7.")
@what("--max-concurrency", metavar="LIST", help="Loads to tune for, e.g. 1,8,32 [8].")
@what("--temperature", type=click.FloatRange(0), help="Of sampling [the workload's].")
@what("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Of sampling [the workload's].")
@what("--max-tokens", type=click.IntRange(1), help="Of one answer [the workload's].")
@what(
    "--goodput", metavar="LIST",
    help="Latency limits in ms, e.g. tpot:30,ttft:500 (e2el too): 95 % of requests must keep all.",
)  # fmt: skip
@what("--catalog", type=click.Path(), metavar="FILE", help="Your own catalogue of drafters.")
@effort("--fast", "effort", flag_value="fast", help="Fewer repeats.")
@effort("--rigorous", "effort", flag_value="rigorous", help="More repeats.")
@effort(
    "--schedule/--no-schedule", "schedule", default=None,
    help="Try N by batch size where loads want different N: one more start [not with --fast].",
)  # fmt: skip
@effort("--budget", metavar="TIME", help="Stop searching in time to be done by then: 30m, 2h.")
@effort(
    "--sampler", type=click.Choice(["spectune", "tpe", "gp", "random", "grid"]),
    default="spectune", show_default=True,
    help="Who chooses the next candidate; the others are there to compare.",
)  # fmt: skip
@effort("--max-candidates", type=click.IntRange(1), help="Try at most so many candidates.")
@effort("--num-prompts", type=click.IntRange(2), help="Use only the first prompts.")
@effort("--prompts-per-block", type=click.IntRange(1), help="Smallest window, in prompts [8].")
@effort("--seed", type=int, default=0, show_default=True, help="Of sampling and the search.")
@measuring("Engine")
@engine(
    "--live-n/--no-live-n", "--replay-live-n/--no-replay-live-n", "live_n", default=True,
    help="Switch N on a running engine where that works [on].",
)  # fmt: skip
@engine(
    "--preflight/--no-preflight", "preflight", default=True,
    help="Check what can be known before an engine is started, with vLLM's validators too [on].",
)  # fmt: skip
@result(
    "-o", "--output", type=click.Path(dir_okay=False, writable=True), metavar="FILE",
    help="Write the recommendation JSON here.",
)  # fmt: skip
@as_json("Result and storage")
@result("--dry-run", is_flag=True, help="Show what would be run; start nothing.")
@storage("Result and storage")
@result("--resume/--fresh", "resume", default=True, help="Go on with the same study [resume].")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Tune method and N for a model and a workload; print and store the recommendation.

    Everything after -- goes to `vllm serve` unchanged. Every option also reads a variable:
    --max-concurrency is SPECTUNE_MAX_CONCURRENCY.
    """
    from autotune.dryrun import preview
    from autotune.engines import EngineOptions, load_engine
    from autotune.plan import EFFORT, Request, make_plan

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("optuna").setLevel(logging.WARNING)
    options |= timeouts(options)
    options["engine_args"] = options.pop("vllm_args")
    if options["effort"] not in EFFORT:  # neither flag; a variable set to 0 gives "False"
        options["effort"] = "default"
    chosen = load_engine(
        options["engine"], only_known(EngineOptions, options, noise="replay_noise")
    )
    refuse_unread(ctx, chosen)
    with Progress() as progress:
        plan = make_plan(only_known(Request, options), chosen, progress)
    if options["dry_run"]:
        show_preview(preview(plan, chosen), options["as_json"])
        return 0
    return measure(plan, chosen, options)


def show_preview(shown: Preview, in_json: bool) -> None:
    from autotune.cli.render import dry_run_text, print_json

    print_json(shown) if in_json else click.echo(dry_run_text(shown))


def measure(plan: Plan, engine: Engine, options: dict[str, Any]) -> int:
    """Run the study, print and write its recommendation; returns the exit code."""
    from autotune.cli.render import print_json, recommendation_parts
    from autotune.cli.terminal import show
    from autotune.store import open_study
    from autotune.tuner import tune

    file = options["output"]
    if file:
        require_writable(Path(file), inputs(options))
    for warning in plan.warnings:  # some are better mended before hours of measuring
        say(f"warning: {warning}")
    with (
        naming_logs(engine),
        open_study(options["storage"], plan, fresh=not options["resume"]) as study,
        Progress() as progress,
    ):
        recommendation = tune(plan, engine, study, progress)
    if options["as_json"]:
        print_json(recommendation)
    else:
        show(recommendation_parts(recommendation, log_dir=_logs(engine)))
    if file:
        write(Path(file), recommendation.model_dump_json(by_alias=True, indent=2) + "\n")
    return INCONCLUSIVE if recommendation.decision == "inconclusive" else 0


@contextmanager
def naming_logs(engine: Engine) -> Iterator[None]:
    """An engine's error says where its logs are, unless it has a better hint."""
    try:
        yield
    except EngineError as error:
        logs = _logs(engine)
        error.hint = error.hint or (f"engine logs are in {logs}" if logs else None)
        raise


def _logs(engine: Engine) -> Path | None:
    return getattr(engine, "log_dir", None)


def inputs(options: dict[str, Any]) -> list[Path]:
    """Files that this run reads or keeps its study in: the answer must not go there."""
    from autotune.store import resolve_storage, sqlite_path

    database = sqlite_path(resolve_storage(options["storage"], create=False))
    beside = [Path(f"{database}{end}") for end in ("", "-wal", "-shm")] if database else []
    named = [options[name] for name in ("recording", "simulation", "workload", "catalog")]
    return [*beside, *(Path(name) for name in named if name)]


def require_writable(file: Path, taken: Sequence[Path]) -> None:
    """Raise ConfigurationError before anything is measured for a file that cannot be written."""
    if file.resolve() in [path.resolve() for path in taken]:
        raise ConfigurationError(f"-o {file} would replace a file that this run uses")
    folder = file.absolute().parent
    if not folder.is_dir():
        raise ConfigurationError(f"cannot write {file}: there is no folder {folder}")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise ConfigurationError(f"cannot write {file}: permission denied")


def write(file: Path, text: str, hint: str | None = "`spectune studies show -o FILE`") -> None:
    from autotune.documents import save

    save(text, file, hint)


def timeouts(options: dict[str, Any]) -> dict[str, float]:
    """The timeouts that were given, as fields of EngineOptions."""
    from autotune.plan import parse_duration

    given = {name: options[name] for name in SECONDS if options[name] is not None}
    return {
        f"{name}_seconds": parse_duration(text, "--" + name.replace("_", "-"))
        for name, text in given.items()
    }


def only_known(record: Any, options: dict[str, Any], **renamed: str) -> Any:
    """Build a record from the options that it knows; `renamed` maps field to option."""
    values = {name: options[name] for name in record.model_fields if name in options}
    return record(**values, **{field: options[name] for field, name in renamed.items()})
