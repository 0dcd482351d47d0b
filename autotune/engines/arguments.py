"""What the user wrote after `--`: read as vLLM reads it, refused where spectune decides.

vLLM takes abbreviations (`--hos`), underscores, parts of JSON (`--speculative-config.method`) and
a YAML file (`--config`) whose keys are flags; the command line wins over the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autotune.errors import ConfigurationError

DECIDED = (
    "decided by spectune",
    "choose what to try with --model, --methods, --drafter and --num-speculative-tokens",
)
PRIVATE = (
    "not for a measurement: spectune talks plain HTTP to its own engine on the loopback interface",
    "put it on the final command line; it does not change what is measured",
)
OWNED = {
    "--host": DECIDED,
    "--port": DECIDED,
    "--uds": DECIDED,
    "--headless": DECIDED,
    "--model": DECIDED,
    "--speculative-config": DECIDED,
    "-sc": DECIDED,
    "--spec-method": DECIDED,
    "--spec-model": DECIDED,
    "--spec-tokens": DECIDED,
    "--scheduler-cls": DECIDED,
    "--worker-extension-cls": DECIDED,
    "--api-key": PRIVATE,
    "--root-path": PRIVATE,
    "--ssl-keyfile": PRIVATE,
    "--ssl-certfile": PRIVATE,
    "--ssl-ca-certs": PRIVATE,
    "--ssl-cert-reqs": PRIVATE,
    "--ssl-ciphers": PRIVATE,
    "--disable-log-stats": ("impossible here: spectune reads vLLM's counters", "leave it out"),
}


def check_engine_args(engine_args: Sequence[str]) -> None:
    """Raises ConfigurationError for flags that are not the user's to set, however spelled.

    Any beginning of such a flag is refused: none of them is a flag of its own.
    """
    for flag, _ in read_flags(engine_args):
        owned = next((name for name in OWNED if name.startswith(flag)), None)
        if owned is not None:
            reason, hint = OWNED[owned]
            meant = "" if flag == owned else f" (it can mean {owned})"
            raise ConfigurationError(f"{flag}{meant} after -- is {reason}", hint=hint)


def read_flags(engine_args: Sequence[str]) -> list[tuple[str, str]]:
    """(flag, value) in the order in which vLLM applies them; "" where a flag has no value.

    Raises ConfigurationError for a --config file that cannot be read.
    """
    given = list(_pairs(engine_args))
    files = [value for flag, value in given if flag == "--config"]
    return [pair for file in files for pair in _file(file)] + given


def data_parallel_size(engine_args: Sequence[str]) -> int:
    """The value of --data-parallel-size / -dp; 1 when absent. ConfigurationError if no number."""
    sizes = [v for flag, v in read_flags(engine_args) if flag in ("--data-parallel-size", "-dp")]
    if not sizes:
        return 1
    if not sizes[-1].isdigit():
        raise ConfigurationError(f"--data-parallel-size {sizes[-1]} is not a number")
    return int(sizes[-1])


def max_num_seqs(engine_args: Sequence[str]) -> int | None:
    """The value of --max-num-seqs; None when absent or written in a way only vLLM reads."""
    given = [value for flag, value in read_flags(engine_args) if flag == "--max-num-seqs"]
    return int(given[-1]) if given and given[-1].isdigit() else None


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if not name.startswith("-") or not name.strip("-"):
            continue
        following = arguments[index + 1 : index + 2]
        if not equals and following and not following[0].startswith("-"):
            value = following[0]
        yield _flag(name), value


def _flag(name: str) -> str:
    """`--a_b.c+` -> `--a-b`: underscores are dashes, what follows a dot is a part of the value."""
    return name.partition(".")[0].replace("_", "-")


def _file(path: str) -> list[tuple[str, str]]:
    return [(_flag(f"--{key}"), str(value)) for key, value in read_config(path).items()]


def read_config(path: str) -> dict[Any, Any]:
    """What a --config file says. Raises ConfigurationError for one that cannot be read."""
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"cannot read --config {path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"--config {path} is no mapping of flags to values")
    return content
