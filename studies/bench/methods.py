"""Every drafting method on a real engine: `make bench-methods`.

Tunes each target of the zoo with all its methods at once, then compares live N with fresh starts,
and writes the table. What was measured stays in a folder, from which an interrupted run goes on.

usage: python studies/bench/methods.py [--write FILE] [--results DIR]
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import say
from families import GEMMA4, MIMO, QWEN3, Family, measure_inside, run_arguments, write_workload
from zoo.checkpoints import ZOO

from autotune.environment import probe_engine
from autotune.methods import Method, all_methods, get_method

ROOT = ZOO.parent
LENGTHS = (2, 6)
LARGEST = max(LENGTHS)
NGRAM = Family("n-grams", "target", {"ngram": None})
MEASURED = (QWEN3, NGRAM, MIMO, GEMMA4)
Json = dict[str, Any]


def main() -> None:
    chosen = arguments()
    folder = chosen.results
    folder.mkdir(parents=True, exist_ok=True)
    for family in MEASURED:
        tune(family, folder)
    if not (folder / "inside.json").exists():
        say("live N beside fresh starts")
        measure_inside(MEASURED, LENGTHS, folder)
    text = document(
        [json.loads((folder / f"{family.name}.json").read_text()) for family in MEASURED],
        json.loads((folder / "inside.json").read_text()),
        [shlex.join(["spectune", "run", *words(family, folder)]) for family in MEASURED],
    )
    chosen.write.write_text(text) if chosen.write else print(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", type=Path, help="the table's file; else it is printed")
    parser.add_argument("--results", type=Path, default=ZOO / "methods", help="[.zoo/methods]")
    return parser.parse_args()


def words(family: Family, folder: Path) -> list[str]:
    """The arguments of `spectune run`, paths as seen from the repository."""
    path = write_workload(folder.absolute() / "stories.jsonl")
    return [word.replace(f"{ROOT}/", "") for word in run_arguments(family, path, LENGTHS)]


def tune(family: Family, folder: Path) -> None:
    """One study; its recommendation goes into the folder. SystemExit where the engine fails."""
    result = folder / f"{family.name}.json"
    own = [f"--storage=sqlite:///{folder.absolute()}/spectune.db", f"--output={result.absolute()}"]
    own.append(f"--log-dir={folder.absolute()}/engine-logs")
    say(f"spectune run with {', '.join(family.methods)}")
    argv = [sys.executable, "-m", "autotune", "run", *own, *words(family, folder)]
    code = subprocess.run(argv, cwd=ROOT, stdout=sys.stderr, check=False).returncode
    if code not in (0, 4):  # inconclusive is an answer too
        sys.exit(f"spectune run ended with exit code {code}")


# ---------------------------------------------------------------------------------- the document


def document(studies: Sequence[Json], inside: Json, commands: Sequence[str]) -> str:
    first = studies[0]
    machine = first["environment"]
    lines = [
        "# Methods on a real engine",
        "",
        f"Written by `make bench-methods` on {first['created_at'][:10]}: vLLM {machine['vllm']} "
        f"for {machine['runtime']}, {machine['cpu']}, a machine that others share. The models are "
        "the tiny ones that `make zoo` trains (`studies/bench/zoo`), so acceptance shows that a "
        "method works and is read right, and no speed-up here says anything about a GPU.",
        "",
        "**Hardware: everything below ran on a CPU. Nothing has been run on a GPU**, neither AMD's "
        "nor NVIDIA's; what spectune knows of those is read in vLLM's source and in public "
        "reports.",
        "",
        *method_table(studies, inside),
        "",
        *explanation(),
        "",
        "## What could not run here",
        "",
        *not_run(inside),
        "",
        "## What was decided",
        "",
        *decisions(studies),
        "",
        "The commands:",
        "",
        *(f"    {command}\n" for command in commands),
    ]
    return "\n".join(lines).rstrip() + "\n"


def method_table(studies: Sequence[Json], inside: Json) -> Iterator[str]:
    heads = (
        "method", "target", "run here", f"accepted per position at N={LARGEST}", "live N",
        "greedy answers equal", "speed-up predicted → measured",
    )  # fmt: skip
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for family, study in zip(MEASURED, studies, strict=True):
        answers = inside[family.name]
        for method in family.methods:
            found, rows = answers[method], measured(study, method)
            cells = (
                method,
                family.target,
                "yes" if rows else "failed",
                rates(found["fresh"][str(LARGEST)]),
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
    predicted, seen = row["predicted_speedup"], row["speedup"]
    before = f"{predicted['value']:.2f} → " if predicted else ""
    return f"N={row['num_speculative_tokens']} {before}{seen['value']:.2f}"


def explanation() -> tuple[str, ...]:
    return (
        "- *accepted per position*: share of drafts of which that position was accepted, on a "
        "fresh start, one request at a time.",
        "- *live N*: drafts, drafted tokens and tokens accepted per position on one engine whose N "
        f"was switched between {', '.join(map(str, LENGTHS))}, against a fresh start with each N, "
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
            yield f"- `{method.name}`: {method.refused or method.unavailable(engine)}."


def decisions(studies: Sequence[Json]) -> Iterator[str]:
    yield "| study | decision | speed-up | engine starts | seconds |"
    yield "|---|---|---|---|---|"
    for family, study in zip(MEASURED, studies, strict=True):
        speedup, cost = study["speedup"], study["cost"]
        interval = f"{speedup['value']:.2f} [{speedup['low']:.2f}, {speedup['high']:.2f}]"
        what = study["decision"].replace("_", " ")
        if study["decision"] != "do_not_speculate":
            what += f": {study['method']} N={study['num_speculative_tokens']}"
        starts, seconds = cost["engine_starts"], cost["total_seconds"]
        yield f"| {family.name} | {what} | {interval} | {starts} | {seconds:.0f} |"


if __name__ == "__main__":
    main()
