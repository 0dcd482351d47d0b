"""`spectune models [NAME]`: the catalogue, or what drafts for one model and what does not."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.options import as_json as as_json_option
from autotune.cli.options import option
from autotune.cli.terminal import table
from autotune.wording import lengths_text

if TYPE_CHECKING:
    from autotune.machine.environment import EngineInfo
    from autotune.models.catalog import CatalogEntry, ResolvedModel
    from autotune.preflight.memory_estimate import MemoryEstimate
    from autotune.records import MethodSpace

    Memory = Callable[[str | None], MemoryEstimate]  # of a drafter, beside the target


@click.command("models")
@click.argument("name", required=False)
@option(
    "--drafter", "drafters", multiple=True, metavar="METHOD=ID_OR_PATH",
    help="Draft checkpoint for a method (repeatable).",
)  # fmt: skip
@option(
    "--speculative-option", "speculative_options", multiple=True, metavar="METHOD.KEY=VALUE",
    help="Further key of a method's speculative_config (repeatable): `spectune methods NAME`.",
)  # fmt: skip
@option("--discover", "ask_hub", is_flag=True, help="Ask the Hub for drafters that name NAME.")
@option("--catalog", type=click.Path(), metavar="FILE", help="Your own catalogue of drafters.")
@option("--vllm-python", metavar="PATH", help="Interpreter that has vLLM [this one].")
@as_json_option()
def command(
    name: str | None,
    drafters: tuple[str, ...],
    speculative_options: tuple[str, ...],
    ask_hub: bool,
    catalog: str | None,
    vllm_python: str | None,
    as_json: bool,
) -> None:
    """List the known models, or what can draft for NAME (a known name, Hub id or folder)."""
    if name is None:
        from autotune.models.catalog import load_catalog

        _print_catalog(load_catalog(catalog), as_json)
        return
    document = _document(name, drafters, speculative_options, ask_hub, catalog, vllm_python)
    click.echo(json.dumps(document, indent=2) if as_json else text(document))


def _print_catalog(entries: tuple[CatalogEntry, ...], as_json: bool) -> None:
    if as_json:
        models = [{**e.model_dump(mode="json"), "short": e.short_name} for e in entries]
        click.echo(json.dumps({"models": models}, indent=2))
        return
    rows = [(e.short_name, e.id, ", ".join(sorted((*e.native, *e.drafters)))) for e in entries]
    click.echo(table([("NAME", "HUB ID", "DRAFTERS KNOWN FOR"), *rows]))
    click.echo("\nNot listed? Any Hub id or folder works; name drafters with --drafter.")


def _document(
    name: str,
    drafters: tuple[str, ...],
    options: tuple[str, ...],
    ask_hub: bool,
    catalog: str | None,
    vllm_python: str | None,
) -> dict[str, Any]:
    from autotune.machine.environment import probe_engine
    from autotune.models.catalog import resolve_model
    from autotune.models.discover import with_discovered
    from autotune.models.speculative_options import parse_options
    from autotune.models.wanted import parse_drafters

    model = resolve_model(name, catalog)
    model, said = with_discovered(model) if ask_hub else (model, ())
    engine = probe_engine(vllm_python)
    document = describe(
        model,
        memory=_memory_on(engine, model.model),
        drafters=parse_drafters(drafters),
        environment=engine,
        options=parse_options(options),
    )
    return {**document, "warnings": [*said, *document["warnings"]]}


def _memory_on(engine: EngineInfo, model: str) -> Memory:
    """Estimates for one device of this machine, one per drafter; the smallest device counts."""
    from autotune.machine.environment import device_memory
    from autotune.preflight.memory_estimate import expected_memory

    size = device_memory(engine)
    return functools.cache(lambda drafter: expected_memory(model, drafter, device_bytes=size))


def describe(model: ResolvedModel, memory: Memory | None = None, **settings: Any) -> dict[str, Any]:
    """What can draft for a model; `settings` are those of candidates.build_spaces."""
    from autotune.methods import all_methods
    from autotune.models.candidates import build_spaces
    from autotune.models.facts import read_facts

    engine = settings.get("environment")
    read = settings.setdefault("read", read_facts)
    spaces, skipped, warnings = build_spaces(model, **settings)
    used = {space.drafter for space in spaces}
    return {
        "model": model.model,
        "catalogued": model.entry is not None,
        "facts": read(model.model).model_dump(mode="json"),
        "methods": [
            {
                **space.model_dump(mode="json"),
                "why_not_live": _why_not_live(space, engine),
                "memory": memory(space.drafter).model_dump(mode="json") if memory else None,
            }
            for space in spaces
        ],
        "alternatives": [
            {"method": method.name, **drafter.model_dump(mode="json")}
            for method in all_methods()
            for drafter in model.drafters(method.name)
            if drafter.id not in used
        ],
        "skipped": [skip.model_dump(mode="json") for skip in skipped],
        "warnings": list(warnings),
    }


def _why_not_live(space: MethodSpace, engine: EngineInfo | None) -> str | None:
    """Why each N costs an engine start of its own; None: nothing known forbids switching."""
    from autotune.engines.live import why_not_live
    from autotune.methods import get_method

    if not space.live_n:
        return get_method(space.method).live_note
    return why_not_live(engine, (), space.method) if engine and engine.vllm else None


def text(document: dict[str, Any]) -> str:
    """The document for people."""
    rows = [
        (space["method"], lengths_text(space["lengths"]), "no" if space["why_not_live"] else "yes",
         space["drafter"] or "(none needed)")
        for space in document["methods"]
    ]  # fmt: skip
    heading = ("METHOD", "N", "LIVE N", "DRAFTER")
    parts = [document["model"], _facts(document["facts"]), table([heading, *rows])]
    parts.append(_memory_table(document["methods"]))
    if any(space["why_not_live"] for space in document["methods"]):
        parts.append("LIVE N no: every N costs an engine start of its own.")
    if document["alternatives"]:
        lines = [
            f"  --drafter {other['method']}={other['id']}"
            + (f"  ({other['note']})" if other["note"] else "")
            for other in document["alternatives"]
        ]
        parts.append("\n".join(["Other drafters:", *lines]))
    if document["skipped"]:
        parts.append("\n".join(["Not tried:", *_skipped(document["skipped"])]))
    if document["warnings"]:
        parts.append("\n".join(f"warning: {warning}" for warning in document["warnings"]))
    return "\n\n".join(part for part in parts if part)


def _facts(facts: dict[str, Any]) -> str:
    """What config.json says of the model, in one line."""
    named = {
        "type": facts["model_type"],
        "layers": facts["layers"],
        "hidden size": facts["hidden_size"],
        "vocabulary": facts["vocab_size"],
        "positions": facts["max_position_embeddings"],
        "quantised": facts["quantization"],
        "MTP modules": facts["n_predict"],
    }
    return ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)


def _memory_table(methods: list[dict[str, Any]]) -> str:
    """Expected memory, by method; empty where nothing at all is known."""
    known = [space for space in methods if space["memory"]]
    rows = [(space["method"], *_sizes(space["memory"])) for space in known]
    if all(set(row[1:]) <= {"-", "0.0 GiB"} for row in rows):
        return ""
    heading = ("MEMORY", "TARGET", "DRAFTER", "KV/TOKEN", "LEFT FOR KV", "TOKENS")
    notes = dict.fromkeys(note for space in known for note in space["memory"]["notes"])
    below = [
        "On one device without tensor parallelism; activations and graphs come on top.",
        *notes,
    ]
    return "\n".join((table([heading, *rows]), *below))


def _sizes(memory: dict[str, Any]) -> tuple[str, ...]:
    def size(name: str, unit: int, word: str) -> str:
        return "-" if memory[name] is None else f"{memory[name] / unit:.1f} {word}"

    tokens = memory["kv_tokens"]
    return (
        size("weight_bytes", 2**30, "GiB"),
        size("drafter_bytes", 2**30, "GiB"),
        size("kv_bytes_per_token", 2**10, "KiB"),
        size("left_bytes", 2**30, "GiB"),
        "-" if tokens is None else str(tokens),
    )


def _skipped(skipped: list[dict[str, Any]]) -> list[str]:
    """One line a reason: the methods, or the lengths of a method, that share it."""
    grouped: dict[str, dict[str, list[int]]] = {}
    for skip in skipped:
        lengths = grouped.setdefault(skip["reason"], {}).setdefault(skip["method"], [])
        if skip["num_speculative_tokens"] is not None:
            lengths.append(skip["num_speculative_tokens"])
    return [
        "  " + ", ".join(f"{m} N={lengths_text(n)}" if n else m for m, n in methods.items())
        + f": {reason}"
        for reason, methods in grouped.items()
    ]  # fmt: skip
