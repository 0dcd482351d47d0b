"""Options that several verbs share; every option has its SPECTUNE_* variable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from autotune.engines import Engine, Offer

STDOUT = Path("-")  # as the value of -o
Function = TypeVar("Function", bound=Callable[..., Any])


class Option(click.Option):
    """`group` is the heading under which `--help` of a Grouped command lists it."""

    def __init__(self, *names: Any, group: str = "Options", **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group = group

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """An empty value is a variable of the shell that was not set, never "not given"."""
        given = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(each, str) and not each.strip() for each in given):
            raise click.BadParameter("an empty value", ctx, self)
        return super().process_value(ctx, value)


class Grouped(click.Command):
    """Lists its options under their groups' headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                groups.setdefault(getattr(parameter, "group", "Other"), []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def option(
    *names: str, variable: str | None = None, **settings: Any
) -> Callable[[Function], Function]:
    """click.option with an environment variable, named after the long option if not given.

    `variable`: where two verbs mean different things by the same option, as by the file to write.
    """
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    named = "SPECTUNE_" + long.removeprefix("--").upper().replace("-", "_")
    settings = {"cls": Option, "envvar": variable or named, "show_envvar": False, **settings}
    return click.option(*names, **settings)


def measuring(group: str) -> Callable[[Function], Function]:
    """Which engine measures and how it is run: the same for `run` and `check`."""
    kinds = click.Choice(["vllm", "replay", "simulate"])
    found: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (("--engine",), {"type": kinds, "default": "vllm", "show_default": True,
                         "help": "What measures."}),
        (("--vllm-python",), {"metavar": "PATH", "help": "Interpreter that has vLLM [this one]."}),
        (("--start-timeout",), {"metavar": "TIME",
                                "help": "Longest wait for an engine to be ready [30m]."}),
        (("--request-timeout",), {"metavar": "TIME", "help": "Longest wait for one answer [10m]."}),
        (("--log-dir",), {"metavar": "FOLDER",
                          "help": "Where engine logs go [studies/engine-logs]."}),
        (("--recording",), {"type": click.Path(), "metavar": "FILE",
                            "help": "What --engine replay plays."}),
        (("--simulation",), {"metavar": "NAME_OR_FILE", "help": "Scenario of --engine simulate."}),
        (("--replay-noise",), {"type": click.FloatRange(0),
                               "help": "Relative noise of replay, simulate."}),
    ]  # fmt: skip

    def add(function: Function) -> Function:
        for names, settings in reversed(found):  # the last one added is listed first
            function = option(*names, group=group, **settings)(function)
        return function

    return add


def storage(group: str = "Options") -> Callable[[Function], Function]:
    return option(
        "--storage", metavar="URL", help="Study database [studies/spectune.db].", group=group
    )


def as_json(group: str = "Options") -> Callable[[Function], Function]:
    return option(
        "--json", "as_json", is_flag=True, help="Print exactly one JSON document.", group=group
    )


def on_command_line(ctx: click.Context, name: str) -> bool:
    """Whether the user wrote the option, rather than a variable or a default giving it."""
    from click.core import ParameterSource

    return ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE


# Options of `run` and `check` that an engine does not read.
FOR_REAL_ENGINES = (
    "model", "workload", "drafters", "speculative_options", "discover", "num_prompts",
    "temperature", "top_p", "max_tokens", "vllm_python", "catalog", "preflight",
    "start_timeout", "request_timeout", "log_dir",
)  # fmt: skip
UNREAD = {
    "vllm": ("recording", "replay_noise", "simulation"),
    "replay": (*FOR_REAL_ENGINES, "prompts_per_block", "simulation", "schedule"),
    "simulate": (*FOR_REAL_ENGINES, "recording"),
}


def refuse_unread(ctx: click.Context, engine: Engine) -> None:
    """Raise UsageError for options on the command line that this engine would ignore.

    A recording or a simulation has a model and a workload: naming these very ones is allowed.
    """
    offer = engine.offer()
    unread = [
        name
        for name in UNREAD[engine.name]
        if on_command_line(ctx, name) and not _is_offered(offer, name, ctx.params[name])
    ]
    if unread:
        longs = {p.name: p.opts[0] for p in ctx.command.params}
        there = f": it is {offer.model} on {offer.workload}" if offer else ""
        raise click.UsageError(
            f"--engine {engine.name} does not read {', '.join(longs[n] for n in unread)}{there}",
            ctx,
        )


def _is_offered(offer: Offer | None, name: str, value: Any) -> bool:
    if offer is None or name not in ("model", "workload"):
        return False
    there: str = getattr(offer, name)
    return value.lower() in (there.lower(), there.lower().rpartition("/")[2])
