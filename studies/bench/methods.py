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
from pathlib import Path

from common import say
from families import GEMMA4, MIMO, QWEN3, Family, measure_inside, run_arguments, write_workload
from methods_table import document
from zoo.checkpoints import ZOO

ROOT = ZOO.parent
LENGTHS = (2, 6)
NGRAM = Family("n-grams", "target", {"ngram": None})
MEASURED = (QWEN3, NGRAM, MIMO, GEMMA4)


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
        MEASURED,
        [json.loads((folder / f"{family.name}.json").read_text()) for family in MEASURED],
        json.loads((folder / "inside.json").read_text()),
        LENGTHS,
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


if __name__ == "__main__":
    main()
