"""`spectune methods`: the drafting methods and what each needs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.options import as_json as as_json_option
from autotune.cli.terminal import table
from autotune.methods._options import dotted
from autotune.wording import lengths_text

if TYPE_CHECKING:
    from autotune.methods import Method
    from autotune.methods._knobs import Knob


NESTED = {
    True: "the beginning of a longer draft; where drafts start differs, so rates do too",
    False: "another draft: its tokens depend on N",
}


@click.command("methods")
@click.argument("name", required=False)
@as_json_option()
def command(name: str | None, as_json: bool) -> None:
    """List the drafting methods, or show one (NAME) with the options that it takes."""
    from autotune.methods import NOT_OFFERED, all_methods, get_method

    if name is not None:
        method = get_method(name)
        click.echo(json.dumps(describe(method), indent=2) if as_json else detail(method))
        return
    if as_json:
        document = {"methods": [describe(m) for m in all_methods()], "not_offered": NOT_OFFERED}
        click.echo(json.dumps(document, indent=2))
        return
    heading = ("METHOD", "DRAFTS", "LIVE N", "N TRIED", "NEEDS")
    rows = [
        (m.name, "parallel" if m.parallel else "sequential", "yes" if m.live_n else "no",
         "-" if m.refused else lengths_text(m.default_lengths), m.needs)
        for m in all_methods()
    ]  # fmt: skip
    click.echo(table([heading, *rows]))
    for other, reason in NOT_OFFERED.items():
        click.echo(f"\nnot offered: {other}: {reason}")
    click.echo(
        "\nOne of them: spectune methods NAME. What applies to a model: spectune models NAME"
    )


def describe(method: Method) -> dict[str, Any]:
    """The JSON form of a Method."""
    keys = ("name", "vllm_method", "summary", "needs", "allows", "needs_drafter", "parallel",
            "nested", "live_n", "live_note", "live_on_v2", "on_request", "package", "not_on_cpu",
            "refused")  # fmt: skip
    facts = {key: getattr(method, key) for key in keys}
    return {
        **facts,
        "since": dotted(method.since) if method.since else None,
        "default_lengths": list(method.default_lengths),
        "config": dict(method.config),
        "options": [
            {"key": knob.name, "meaning": knob.meaning, "values": list(knob.values),
             "only_these": knob.closed, "since": dotted(knob.since) if knob.since else None}
            for knob in method.knobs
        ],
    }  # fmt: skip


def detail(method: Method) -> str:
    """One method for people."""
    config = json.dumps(
        method.speculative_config(
            method.default_lengths[-1], "ORG/NAME" if method.needs_drafter else None
        )
    )
    facts = [
        ("needs", method.needs),
        ("drafts", "all tokens in one pass" if method.parallel else "token after token"),
        ("allowed N", method.allows),
        ("tried", lengths_text(method.default_lengths)),
        ("shorter N", NESTED[method.nested]),
        ("live N", f"{'yes' if method.live_n else 'no'}: {method.live_note}"),
        ("vLLM", f"since {dotted(method.since)}" if method.since else ""),
        ("refused", method.refused or ""),
        ("only named", method.on_request or ""),
        ("not on CPU", method.not_on_cpu or ""),
        ("config", config),
    ]
    parts = [f"{method.name}: {method.summary}", table([row for row in facts if row[1]])]
    if method.knobs:
        parts.append("\n".join(["Options:", *(option_text(knob) for knob in method.knobs)]))
        first = method.knobs[0]
        parts.append(
            f"To set one: --speculative-option {method.name}.{first.name}={first.values[-1]}"
        )
    return "\n\n".join(parts)


def option_text(knob: Knob) -> str:
    since = f", since vLLM {dotted(knob.since)}" if knob.since else ""
    return f"  {knob.name}: {knob.meaning}\n    worth trying: {values_text(knob)}{since}"


def values_text(knob: Knob) -> str:
    return ", ".join(
        value if isinstance(value, str) else json.dumps(value) for value in knob.values
    )
