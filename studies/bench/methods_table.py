"""The table of methods on a real engine: `methods.py` measures what is shown here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from families import Family

from autotune.machine.environment import probe_engine
from autotune.methods import Method, all_methods, get_method
from autotune.records import BASELINE

Json = dict[str, Any]


def document(
    families: Sequence[Family],
    studies: Sequence[Json],
    inside: Json,
    lengths: Sequence[int],
    commands: Sequence[str],
) -> str:
    """Markdown. `studies`: a recommendation of each family; `inside`: what `inside.py` found."""
    first = studies[0]
    machine = first["environment"]
    lines = [
        "# Methods on a real engine",
        "",
        f"Written by `make bench-methods` on {first['created_at'][:10]}: vLLM {machine['vllm']} "
        f"for {machine['runtime']}, {os.cpu_count()} cores of {machine['cpu']}, shared with other "
        "work: counts are exact, times are not, and the intervals say by how much. The models are "
        "the tiny ones that `make zoo` trains (`studies/bench/zoo`), so acceptance shows that a "
        "method works and is read right, and no speed-up here says anything about a GPU.",
        "",
        "**Hardware: everything below ran on a CPU. Nothing has been run on a GPU**, neither AMD's "
        "nor NVIDIA's; what spectune knows of those is read in vLLM's source and in public "
        "reports.",
        "",
        *method_table(list(zip(families, studies, strict=True)), inside, max(lengths)),
        "",
        *explanation(lengths),
        "",
        "## What did not run here",
        "",
        *not_run(inside),
        "",
        "## What was decided",
        "",
        *decisions(list(zip(families, studies, strict=True))),
        "",
        "The commands:",
        "",
        *(f"    {command}\n" for command in commands),
    ]
    return "\n".join(lines).rstrip() + "\n"


def method_table(
    studies: Sequence[tuple[Family, Json]], inside: Json, largest: int
) -> Iterator[str]:
    heads = (
        "method", "target", "run here", f"accepted per position at N={largest}", "live N",
        "greedy answers equal", "speed-up predicted → measured",
    )  # fmt: skip
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for family, study in studies:
        answers = inside[family.name]
        for method in family.methods:
            found, rows = answers[method], measured(study, method)
            cells = (
                method,
                family.target,
                "yes" if rows else "failed",
                rates(found["fresh"][str(largest)]),
                live(get_method(method), found),
                equal(answers["none"], found),
                "; ".join(speedups(row) for row in rows),
            )
            yield f"| {' | '.join(cells)} |"


def measured(study: Json, method: str) -> list[Json]:
    rows = [row for row in study["candidates"] if row["method"] == method]
    return [row for row in rows if row["status"] in ("probed", "confirmed")]


def rates(answer: Json) -> str:
    """Unconditional acceptance at each position: ".93 .77"."""
    if not answer["drafts"]:
        return "nothing drafted"
    each = [count / answer["drafts"] for count in answer["accepted"]]
    return " ".join(f"{rate:.2f}".removeprefix("0") for rate in each)


def live(method: Method, found: Json) -> str:
    if not method.live_n:
        return "no: one start per N"
    same = [counts(found["live"][n], n) == counts(found["fresh"][n], n) for n in found["fresh"]]
    return f"{'yes' if all(same) else 'NO'}, counts equal at {sum(same)} of {len(same)} N"


def counts(answer: Json, length: str) -> tuple[Any, ...]:
    return answer["drafts"], answer["draft_tokens"], answer["accepted"][: int(length)]


def equal(texts: list[str], found: Json) -> str:
    pairs = [
        (text, said)
        for by_length in found.values()
        for answer in by_length.values()
        for text, said in zip(texts, answer["texts"], strict=True)
    ]
    return f"{sum(text == said for text, said in pairs)} of {len(pairs)}"


def speedups(row: Json) -> str:
    predicted = row["predicted_speedup"]
    before = f"{predicted['value']:.2f} → " if predicted else ""
    return f"N={row['num_speculative_tokens']} {before}{interval_text(row['speedup'])}"


def interval_text(speedup: Json | None) -> str:
    """ "0.90 [0.80, 1.05]"; a study that ends without an answer may have none."""
    if speedup is None:
        return "-"
    return f"{speedup['value']:.2f} [{speedup['low']:.2f}, {speedup['high']:.2f}]"


def explanation(lengths: Sequence[int]) -> tuple[str, ...]:
    return (
        "- *accepted per position*: share of drafts of which that position was accepted, on a "
        "fresh start, one request at a time.",
        "- *live N*: drafts, drafted tokens and tokens accepted per position on one engine whose N "
        f"was switched among {', '.join(map(str, lengths))}, against a fresh start with each N, "
        "same questions. Equal means identical, not similar.",
        "- *greedy answers equal*: texts of all those starts against the target's own.",
        "- *predicted*: by the cost model before the first measurement of that N; the first N of a "
        "method is predicted from what is known of GPUs (`autotune/priors.toml`), where a draft "
        "step of a large model costs a small part of a step. Here it does not.",
    )


def not_run(inside: Json) -> Iterator[str]:
    ran, engine = {method for answers in inside.values() for method in answers}, probe_engine(None)
    for method in all_methods():
        if method.name not in ran:
            reason = method.refused or method.unavailable(engine)
            yield f"- `{method.name}`: {reason or 'nothing known forbids it; it was not measured'}."


def decisions(studies: Sequence[tuple[Family, Json]]) -> Iterator[str]:
    yield "| study | decision | speed-up | engine starts | seconds |"
    yield "|---|---|---|---|---|"
    for family, study in studies:
        cost, interval = study["cost"], interval_text(study["speedup"])
        what = study["decision"].replace("_", " ")
        if study["method"] != BASELINE:
            what += f": {study['method']} N={study['num_speculative_tokens']}"
        starts, seconds = cost["engine_starts"], cost["total_seconds"]
        yield f"| {family.name} | {what} | {interval} | {starts} | {seconds:.0f} |"
