"""Writes the generated documents: `python docs/generate.py`. A test fails when one is stale."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from autotune.check.records import CheckReport
from autotune.cli import VERBS, cli
from autotune.cli.doctor import conditions
from autotune.cli.methods import values_text
from autotune.cli.models import describe
from autotune.cli.models import text as models_text
from autotune.machine.doctor import Diagnosis
from autotune.machine.environment import EngineInfo
from autotune.machine.fault_table import FAULTS
from autotune.methods import NOT_OFFERED, Method, all_methods
from autotune.methods._knobs import Knob
from autotune.methods._options import OWNED, dotted
from autotune.models.catalog import ResolvedModel, packaged_catalog
from autotune.models.facts import ModelFacts
from autotune.recording import Recording
from autotune.records import Recommendation

FOLDER = Path(__file__).parent.resolve()
README = FOLDER.parent / "README.md"
START = "<!-- what the command prints is written by `make docs` -->"
EXAMPLE = re.compile(rf"{re.escape(START)}\n```\n(\$ spectune .+)\n\n((?:.*\n)*?)```\n")
BLOCK = re.compile(r"(<!-- (\w+), written by `make docs` -->\n).*?(<!-- end -->\n)", re.DOTALL)
TARGETS = (
    "google/gemma-4-26B-A4B-it", "google/gemma-4-31B-it", "Qwen/Qwen3-8B", "Qwen/Qwen3.5-27B",
    "Qwen/Qwen3.5-122B-A10B", "Qwen/Qwen3.6-27B", "Qwen/Qwen3.6-35B-A3B", "moonshotai/Kimi-K2.5",
    "MiniMaxAI/MiniMax-M3-MXFP8",
)  # fmt: skip
DIALECT = "https://json-schema.org/draft/2020-12/schema"
WIDTH = 88

ABOUT = """\
# Command line

`spectune VERB ...`, or `python -m autotune VERB ...`. This file is generated: `make docs`.

The result goes to stdout, progress and logs to stderr. `--json` prints exactly one JSON document.
Every option also reads a variable named after it: `--max-concurrency` is
`SPECTUNE_MAX_CONCURRENCY`, a switch takes 1 or 0 (`SPECTUNE_LIVE_N=0`), several drafters are
separated by blanks. The command line wins. `SPECTUNE_OUTPUT` and `SPECTUNE_RECORDING` are those of
`run` (and the recording that `check` plays); where other verbs mean something else by the same
option, their variables are `SPECTUNE_CHECK_OUTPUT`, `SPECTUNE_EXPORT_OUTPUT`,
`SPECTUNE_SHOW_OUTPUT`, `SPECTUNE_AS_RECORDING` (`studies show --recording`),
`SPECTUNE_REPORT_OUTPUT`, `SPECTUNE_REPORT_RECORDING` and `SPECTUNE_REPORT_FORMAT`.

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

DOCTOR = """\
# The doctor

`spectune doctor` looks at the machine and changes nothing: GPUs (amd-smi, rocm-smi, the kernel's
KFD nodes; nvidia-smi), processor, driver, what the engine's Python has, the place of the study
database, then what to mend and the known faults of this combination. The exit code is 0 when it
could look, whatever it found; `--json` prints the document
`spectune.doctor/1` (`doctor.schema.json`). This file is generated: `make docs`.

Faults are shown, never applied. `spectune run` repeats those that touch a method and an N of its
plan as warnings, notes left out, and the recommendation carries them.

## What makes two measurements comparable

A study belongs to an environment: GPU, how many, driver, ROCm or CUDA, vLLM, torch, Python,
processor, and, where they are known, the partition mode, the lowest power cap, and the variables
that choose kernels, the model runner and threads (`VLLM_ROCM_*`, `VLLM_USE_V2_MODEL_RUNNER`,
`VLLM_ATTENTION_BACKEND`, `OMP_NUM_THREADS`, ...). Another value is another study. The GPU's target
(`gfx942`) is stored and is no part of that identity: it follows from the GPU. Memory in use,
clocks and temperature are only shown.

The machines below are recordings of what the tools print ([sources](../tests/machines/README.md)):
formats are public captures, much else is made up to fit. spectune has not been run on them.
"""
RECORDED = {"mi300x": "8 x MI300X, vLLM's defaults", "mi355x": "8 x MI355X, AITER on"}
MODELS = """\
# Models: what drafts for the nine targets of the AMD study

This file is generated: `make docs`. It is what `spectune models NAME` prints beside vLLM 0.32 on
ROCm with `arctic-inference` installed, **without network and with an empty cache**: no config.json
was read, so the allowed N are those that the catalogue and the method alone tell, and MTP is listed
where the catalogue says that the checkpoint carries the modules. With network (or a local copy) the
same command reads config.json and is stricter.

Names and pairings were checked against public sources as far as the catalogue says so
(`autotune/catalog.toml`); nothing here was run by this project. Everything else in the catalogue:
`spectune models`.
"""


def documents() -> dict[str, str]:
    """Text by file name."""
    return {
        "check.schema.json": as_text(check_schema()),
        "cli.md": command_line(),
        "doctor.md": doctor(),
        "doctor.schema.json": as_text(doctor_schema()),
        "methods.md": methods_page(),
        "models.md": models_page(),
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


def doctor() -> str:
    """What `spectune doctor` says on recorded machines, and every fault it knows."""
    parts = [DOCTOR]
    for name, title in RECORDED.items():
        parts.append(f"## {title}\n\n```\n$ spectune doctor\n\n{doctor_on(name)}```\n")
    rows = [(f.id, f.severity, conditions(f), f"{f.happens}: {f.advice}", f.source) for f in FAULTS]
    heading = ("fault", "kind", "when", "what happens, what to do", "source")
    return "\n".join([*parts, "## All known faults\n", markdown(heading, rows)])


def doctor_on(name: str) -> str:
    """stdout on a machine of tests/machines; its own paths in place of ours."""
    machines = recordings()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        here = Path.cwd()
        with (
            machines.playing(machines.load(name), here / "machine") as python,
            contextlib.redirect_stdout(io.StringIO()) as out,
        ):
            cli.main(["doctor", "--vllm-python", python], "spectune", standalone_mode=False)
    printed = out.getvalue().replace(python, "/opt/venv/bin/python")
    return printed.replace(str(here), "/home/me")


def doctor_schema() -> dict[str, Any]:
    """What `doctor --json` gives."""
    return {"$schema": DIALECT, **Diagnosis.model_json_schema(mode="serialization")}


def recordings() -> ModuleType:
    """tests/machine_samples.py, which is no package."""
    path = FOLDER.parent / "tests" / "machine_samples.py"
    spec = importlib.util.spec_from_file_location("machine_samples", path)
    if spec is None or spec.loader is None:
        raise LookupError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def methods_page() -> str:
    """docs/methods.md with its tables as the methods declare them now."""
    text = (FOLDER / "methods.md").read_text(encoding="utf-8")
    blocks = {"methods": methods_table(), "options": options_table(), "others": others_table()}
    return BLOCK.sub(lambda found: found[1] + blocks[found[2]] + found[3], text)


def methods_table() -> str:
    heading = ("method", "needs", "drafts", "live N", "allowed N", "on V2", "vLLM")
    rows = [
        (f"`{m.name}`", m.needs, "parallel" if m.parallel else "sequential",
         "yes" if m.live_n else "no", m.allows, _on_v2(m), dotted(m.since) if m.since else "")
        for m in all_methods()
    ]  # fmt: skip
    return markdown(heading, rows)


def _on_v2(method: Method) -> str:
    if not method.live_on_v2:
        return "no"
    return "one module" if method.name == "mtp" else "yes"


def options_table() -> str:
    """Every option with the methods that take it."""
    takers: dict[Knob, list[str]] = {}
    for method in all_methods():
        for knob in method.knobs:
            takers.setdefault(knob, []).append(method.name)
    rows = [
        (f"`{knob.name}`", knob.meaning, values_text(knob), dotted(knob.since or ()),
         ", ".join(names))
        for knob, names in takers.items()
    ]  # fmt: skip
    return markdown(("option", "meaning", "worth trying", "since vLLM", "methods"), rows)


def others_table() -> str:
    """What cannot be set or is not offered, and why."""
    rows = [(f"`{name}`", reason) for name, reason in {**NOT_OFFERED, **OWNED}.items()]
    return markdown(("name", "why not"), rows)


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def models_page() -> str:
    """What `spectune models` prints for the targets of the study, without any network."""
    engine = EngineInfo(
        python="python",
        vllm="0.32.0",
        platform="rocm",
        packages=frozenset({"arctic_inference", "triton"}),
    )
    parts = [MODELS]
    for name in TARGETS:
        entry = next(entry for entry in packaged_catalog() if entry.id == name)
        model = ResolvedModel(model=entry.id, name=entry.short_name, entry=entry)
        shown = models_text(describe(model, environment=engine, read=_unread))
        parts.append(
            f"## {entry.short_name}\n\n```\n$ spectune models {entry.short_name}\n{shown}\n```\n"
        )
    return "\n".join(parts)


def _unread(source: str) -> ModelFacts:
    return ModelFacts(source=source, unknown="this page is written without network")


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
