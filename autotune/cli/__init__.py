"""The `spectune` command. One thin module a verb; a verb's module is imported when it is used."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType

import click

from autotune import __version__
from autotune.errors import ConfigurationError, EngineError, SpectuneError

VERBS = {
    "run": "Tune method and N for a model and a workload.",
    "check": "Measure again, or compare results: has anything become worse? For CI.",
    "report": "Write a study or a recording as one HTML file with plots, or as Markdown.",
    "export": "Print a stored recommendation in a form vLLM takes.",
    "studies": "List, show or remove stored studies.",
    "methods": "List the drafting methods: what each needs and which N it allows.",
    "models": "Show which methods and drafters apply to a model.",
    "workloads": "List the workloads that have a name.",
    "doctor": "Look at the machine: what is there, what to mend, known faults.",
}
ABORTED = 2
INTERNAL = 70  # EX_SOFTWARE of sysexits.h; 1 means "check: regression"
INTERRUPTED = 130
PIPE_CLOSED = 141  # what a shell calls death by SIGPIPE


class VerbGroup(click.Group):
    """Knows its verbs by name, so that --help imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"autotune.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS:
            import difflib

            close = difflib.get_close_matches(args[0], VERBS, n=1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"No such command {args[0]!r}.{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=VerbGroup)
@click.version_option(__version__, prog_name="spectune")
def cli() -> None:
    """Find the best speculative decoding method and N for a model, a workload and a load."""


def main(args: Sequence[str] | None = None) -> None:
    """Entry point: runs a verb and turns every outcome into the documented exit code."""
    sys.exit(invoke(args))


def invoke(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup asks for SIGHUP to be ignored
            signal.signal(number, _interrupt)
    try:
        result = cli.main(args=args, prog_name="spectune", standalone_mode=False)
    except click.exceptions.Exit as request:
        return request.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        return _stopped(error)
    except SpectuneError as error:
        show_error(error)
        return error.exit_code
    except SystemExit:  # click's answer to a reader that went away, as in `spectune ... | head`
        return PIPE_CLOSED
    except OSError as error:  # a full disk, a closed output
        say(f"error: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
        return ConfigurationError.exit_code
    except ModuleNotFoundError as error:
        say(f"error: the package {error.name} is missing\nhint: pip install . brings all of them")
        return ConfigurationError.exit_code
    except Exception as error:  # noqa: BLE001  whatever it is, it must not end as another code
        click.echo(f"internal error: {type(error).__name__}: {error}", err=True)
        click.echo(traceback.format_exc(), err=True, nl=False)
        return INTERNAL
    return result if isinstance(result, int) else 0


def say(text: str) -> None:
    """One line on stderr, if anybody listens."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def _stopped(error: BaseException) -> int:
    """A signal or Ctrl-C, which click turns into an Abort; or "no" at a prompt, a plain Abort."""
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
        click.echo("interrupted: what was measured is kept, the same command resumes", err=True)
        return INTERRUPTED
    click.echo("aborted", err=True)
    return ABORTED


def show_error(error: SpectuneError) -> None:
    """What was wrong, what to do, and an engine's own last words; on stderr."""
    click.echo(f"error: {error.message}", err=True)
    if isinstance(error, EngineError) and error.last_words:
        click.echo("the engine's last words:", err=True)
        click.echo("\n".join(f"    {line}" for line in error.last_words.splitlines()), err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """A polite kill is an interruption: engines are stopped and the study can be resumed."""
    raise KeyboardInterrupt
