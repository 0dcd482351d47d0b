"""`spectune run`: the main job."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import click

from autotune.cli.options import as_json, option, output, storage
from autotune.cli.progress import Progress
from autotune.errors import ConfigurationError

INCONCLUSIVE = 4


class PassesThrough(click.Command):
    """What follows `--` becomes the parameter `vllm_args`; before it only options may stand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:end])
        ctx.params["vllm_args"] = tuple(args[end + 1 :])
        return rest


@click.command("run", cls=PassesThrough, options_metavar="[OPTIONS] [-- VLLM_SERVE_ARGS...]")
@option("--model", help="Hub id, local path, or short name of the catalogue.")
@option("--workload", help="math, code, chat, ... or a JSONL file; see `spectune workloads`.")
@option("--methods", metavar="LIST", help="Drafting methods to try, e.g. mtp,eagle3 [all].")
@option("--drafter", "drafters", multiple=True, metavar="METHOD=ID_OR_PATH", help="Repeatable.")
@option("--num-speculative-tokens", metavar="LIST", help="N to try: 1-8 or 1,3,7.")
@option("--max-concurrency", metavar="LIST", help="Loads to tune for, e.g. 1,8,32 [8].")
@option("--num-prompts", type=click.IntRange(2), help="Use only the first prompts.")
@option("--prompts-per-block", type=click.IntRange(1), help="Smallest window, in prompts [8].")
@option("--temperature", type=click.FloatRange(0), help="[the workload's]")
@option("--max-tokens", type=click.IntRange(1), help="[the workload's]")
@option("--seed", type=int, default=0, show_default=True)
@option("--budget", metavar="TIME", help="Stop searching in time to be done by then: 30m, 2h.")
@option("--fast", "effort", flag_value="fast", help="Fewer repeats.")
@option("--rigorous", "effort", flag_value="rigorous", help="More repeats.")
@option(
    "--engine", type=click.Choice(["vllm", "replay", "simulate"]), default="vllm",
    show_default=True,
)  # fmt: skip
@option("--recording", type=click.Path(), metavar="FILE", help="What --engine replay plays.")
@option("--replay-noise", type=click.FloatRange(0), help="Relative noise of each answer.")
@option("--simulation", metavar="NAME_OR_FILE", help="Scenario of --engine simulate.")
@option(
    "--live-n/--no-live-n", "--replay-live-n/--no-replay-live-n", "live_n", default=True,
    help="Switch N on a running engine where that works [on].",
)  # fmt: skip
@option("--vllm-python", metavar="PATH", help="Interpreter that has vLLM [this one].")
@option("--catalog", type=click.Path(), metavar="FILE", help="Your own catalogue of drafters.")
@storage
@output
@as_json
@option("--dry-run", is_flag=True, help="Show what would be run; start nothing.")
@option("--resume/--fresh", "resume", default=True, help="Go on with the same study [resume].")
def command(**options: Any) -> int:
    """Tune method and N for a model and a workload; print and store the recommendation.

    Everything after -- goes to `vllm serve` unchanged.
    """
    from autotune.cli.render import dry_run_text, print_json, recommendation_text
    from autotune.dryrun import preview
    from autotune.engines import EngineOptions, load_engine
    from autotune.plan import EFFORT, Request, make_plan
    from autotune.store import open_study
    from autotune.tuner import tune

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("optuna").setLevel(logging.WARNING)
    options["engine_args"] = options.pop("vllm_args")
    if options["effort"] not in EFFORT:  # neither flag; a variable set to 0 gives "False"
        options["effort"] = "default"
    dry_run, in_json, file = options["dry_run"], options["as_json"], options["output"]
    engine = load_engine(options["engine"], _only(EngineOptions, options, noise="replay_noise"))
    plan = make_plan(_only(Request, options), engine)
    if dry_run:
        shown = preview(plan, engine)
        print_json(shown) if in_json else click.echo(dry_run_text(shown))
        return 0
    if file:
        require_writable(Path(file))
    with (
        open_study(options["storage"], plan, fresh=not options["resume"]) as study,
        Progress() as p,
    ):
        recommendation = tune(plan, engine, study, p)
    if in_json:
        print_json(recommendation)
    else:
        click.echo(recommendation_text(recommendation))
    if file:
        write(Path(file), recommendation.model_dump_json(by_alias=True, indent=2) + "\n")
    return INCONCLUSIVE if recommendation.decision == "inconclusive" else 0


def require_writable(file: Path) -> None:
    """Raise ConfigurationError before anything is measured for a file that cannot be written."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise ConfigurationError(f"cannot write {file}: there is no folder {folder}")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise ConfigurationError(f"cannot write {file}: permission denied")


def write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {file}: {error.strerror}", hint="`spectune studies show -o FILE`"
        ) from error


def _only(record: Any, options: dict[str, Any], **renamed: str) -> Any:
    """Build a record from the options that it knows; `renamed` maps field to option."""
    values = {name: options[name] for name in record.model_fields if name in options}
    return record(**values, **{field: options[name] for field, name in renamed.items()})
