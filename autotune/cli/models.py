"""`spectune models [NAME]`: the catalogue, or what drafts for one model and what does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.methods import lengths_text, table
from autotune.cli.options import as_json as as_json_option
from autotune.cli.options import option

if TYPE_CHECKING:
    from autotune.catalog import CatalogEntry


@click.command("models")
@click.argument("name", required=False)
@option(
    "--drafter", "drafters", multiple=True, metavar="METHOD=ID_OR_PATH",
    help="Draft checkpoint for a method (repeatable).",
)  # fmt: skip
@option("--catalog", type=click.Path(), metavar="FILE", help="Your own catalogue of drafters.")
@option("--vllm-python", metavar="PATH", help="Interpreter that has vLLM [this one].")
@as_json_option()
def command(
    name: str | None,
    drafters: tuple[str, ...],
    catalog: str | None,
    vllm_python: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """List the known models, or what can draft for NAME (a known name, Hub id or folder)."""
    if name is None:
        from autotune.catalog import load_catalog

        _print_catalog(load_catalog(catalog), as_json)
        return
    document = _document(name, drafters, catalog, vllm_python)
    click.echo(json.dumps(document, indent=2) if as_json else _text(document))


def _print_catalog(entries: tuple[CatalogEntry, ...], as_json: bool) -> None:
    if as_json:
        models = [{**e.model_dump(mode="json"), "short": e.short_name} for e in entries]
        click.echo(json.dumps({"models": models}, indent=2))
        return
    rows = [(e.short_name, e.id, ", ".join(sorted((*e.native, *e.drafters)))) for e in entries]
    click.echo(table([("NAME", "HUB ID", "DRAFTERS KNOWN FOR"), *rows]))
    click.echo("\nNot listed? Any Hub id or folder works; name drafters with --drafter.")


def _document(
    name: str, drafters: tuple[str, ...], catalog: str | None, vllm_python: str | None
) -> dict[str, Any]:
    from autotune.candidates import build_spaces, parse_drafters
    from autotune.catalog import resolve_model
    from autotune.environment import probe_engine

    model = resolve_model(name, catalog)
    spaces, skipped, warnings = build_spaces(
        model, drafters=parse_drafters(drafters), environment=probe_engine(vllm_python)
    )
    others = model.entry.drafters if model.entry else {}
    return {
        "model": model.model,
        "catalogued": model.entry is not None,
        "methods": [space.model_dump(mode="json") for space in spaces],
        "alternatives": [
            {"method": method, **drafter.model_dump(mode="json")}
            for method, known in others.items()
            for drafter in known[1:]
        ],
        "skipped": [skip.model_dump(mode="json") for skip in skipped],
        "warnings": list(warnings),
    }


def _text(document: dict[str, Any]) -> str:
    rows = [
        (space["method"], lengths_text(space["lengths"]), "yes" if space["live_n"] else "no",
         space["drafter"] or "(none needed)")
        for space in document["methods"]
    ]  # fmt: skip
    parts = [document["model"], table([("METHOD", "N", "LIVE N", "DRAFTER"), *rows])]
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
    return "\n\n".join(parts)


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
