"""The zoo by target: which methods each target serves, and the command that tunes them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.checkpoints import checkpoints
from zoo.language import questions

from autotune.methods import get_method
from autotune.records import MethodSpace

ENGINE_ARGS = (
    *("--dtype", "float32", "--enforce-eager"),
    *("--max-model-len", "1024", "--max-num-seqs", "8"),
)
MAX_TOKENS = 48
INSIDE = Path(__file__).with_name("inside.py")


@dataclass(frozen=True)
class Family:
    """A kind of target, and by method the kind of its drafter; None: it needs none."""

    name: str
    target: str
    drafters: dict[str, str | None]

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.drafters)

    def folders(self) -> dict[str, str]:
        """Checkpoints by kind, made if need be."""
        kinds = [self.target, *filter(None, self.drafters.values())]
        return {kind: str(folder) for kind, folder in checkpoints(kinds).items()}


QWEN3 = Family(
    "qwen3",
    "target",
    {
        "draft_model": "draft",
        "pard": "pard",
        "eagle3": "eagle3",
        "eagle": "eagle",
        "dflash": "dflash",
        "medusa": "medusa",
    },
)
MIMO = Family("mimo", "mimo", {"mtp": None})
GEMMA4 = Family("gemma4", "gemma4", {"gemma4_mtp": "gemma4_assistant"})


def run_arguments(family: Family, workload: Path, lengths: Sequence[int]) -> list[str]:
    """What follows `spectune run`: every method of a family in one study."""
    folders = family.folders()
    named = [(method, folders[kind]) for method, kind in family.drafters.items() if kind]
    own = [word for method, folder in named for word in ("--drafter", f"{method}={folder}")]
    return [
        *("--model", folders[family.target], "--workload", str(workload)),
        *("--methods", ",".join(family.methods), *own),
        *("--num-speculative-tokens", ",".join(map(str, lengths))),
        *("--max-concurrency", "2", "--max-tokens", str(MAX_TOKENS), "--prompts-per-block", "8"),
        *("--fast", "--engine", "vllm", "--", *ENGINE_ARGS),
    ]


def write_workload(path: Path, count: int = 96) -> Path:
    """Questions that no checkpoint was trained on, as the JSON lines that `--workload` reads."""
    lines = [json.dumps({"prompt": text}) + "\n" for text in questions(count, seed=777)]
    path.write_text("".join(lines))
    return path


def space(family: Family, method: str, lengths: Sequence[int]) -> MethodSpace:
    found, kind = get_method(method), family.drafters[method]
    folder = family.folders()[kind] if kind else None
    return MethodSpace(
        method=method,
        drafter=folder,
        lengths=tuple(lengths),
        live_n=found.live_n,
        config=found.base_config(folder),
    )


def measure_inside(
    families: Sequence[Family], lengths: Sequence[int], folder: Path
) -> dict[str, Any]:
    """Drafts and greedy answers of every method, live and fresh, by family: see `inside.py`.

    Raises CalledProcessError where an engine fails; what was said is in `inside.log` there.
    """
    jobs = [
        {
            "target": family.folders()[family.target],
            "name": family.name,
            "spaces": [space(family, m, lengths).model_dump() for m in family.methods],
        }
        for family in families
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    with (folder / "inside.log").open("wb") as log:
        subprocess.run(
            [sys.executable, str(INSIDE), folder / "jobs.json", folder / "inside.json"],
            cwd=folder,
            stdout=log,
            stderr=log,
            check=True,
        )
    return json.loads((folder / "inside.json").read_text())
