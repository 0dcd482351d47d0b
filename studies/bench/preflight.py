"""Seconds from a wrong configuration to its error: spectune's preflight beside vLLM's own server.

usage: python studies/bench/preflight.py

Each case is run alone, one after the other, as a user would: `spectune run` and the server that it
would have started. Checkpoints are config.json only, made here: nothing gets as far as weights.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from autotune.engines import EngineOptions
from autotune.engines.last_words import last_words, reason
from autotune.engines.vllm import VllmEngine
from autotune.preflight.client import one_line
from autotune.records import MethodSpace, Target

LIMIT_SECONDS = 300
SERVER = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
TARGET = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512, "max_position_embeddings": 1024,
}  # fmt: skip
THREE_MODULES = {
    **{key: value for key, value in TARGET.items() if key != "head_dim"},
    "architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 3,
}  # fmt: skip
OTHER_VOCABULARY = {**TARGET, "vocab_size": 640}
# What Qwen3 has by default applies, and config.json does not show it: only vLLM can tell.
HIDDEN_VOCABULARY = {key: value for key, value in TARGET.items() if key != "vocab_size"}

NGRAM = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
LENGTHS = tuple(range(1, 17))


@dataclass(frozen=True)
class Case:
    """`flags` go to vLLM either way; the rest is one method in both programs' words."""

    name: str
    model: Path
    config: dict
    ours: tuple[str, ...]
    flags: tuple[str, ...] = ()


def checkpoints(root: Path) -> dict[str, Path]:
    made = {"target": TARGET, "three": THREE_MODULES, "vocabulary": OTHER_VOCABULARY,
            "hidden": HIDDEN_VOCABULARY}  # fmt: skip
    for name, config in made.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
    return {name: root / name for name in made}


def cases(folders: dict[str, Path]) -> list[Case]:
    target, three = folders["target"], folders["three"]
    vocabulary, hidden = str(folders["vocabulary"]), str(folders["hidden"])
    nowhere = str(target.with_name("nowhere"))
    return [
        Case("unknown flag", target, NGRAM, ("--methods", "ngram"), ("--max-model-length", "512")),
        Case("value out of range", target, NGRAM, ("--methods", "ngram"),
             ("--max-model-len", "99999")),
        Case("N=4 of three MTP modules", three, {"method": "mtp"}, ("--methods", "mtp")),
        Case("draft with another vocabulary", target,
             {"method": "draft_model", "model": vocabulary},
             ("--drafter", f"draft_model={vocabulary}", "--methods", "draft_model")),
        Case("the same, not in config.json", target, {"method": "draft_model", "model": hidden},
             ("--drafter", f"draft_model={hidden}", "--methods", "draft_model")),
        Case("drafter's folder not there", target, {"method": "eagle3", "model": nowhere},
             ("--drafter", f"eagle3={nowhere}", "--methods", "eagle3")),
        Case("drafter not on the Hub", target, {"method": "eagle3", "model": "no/where"},
             ("--drafter", "eagle3=no/where", "--methods", "eagle3")),
    ]  # fmt: skip


def timed(command: list[str], log: Path) -> tuple[float, int]:
    """(seconds, exit status); what it printed is in `log`."""
    began = time.monotonic()
    with log.open("wb") as file:
        done = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, timeout=LIMIT_SECONDS, check=False
        )
    return time.monotonic() - began, done.returncode


def ours(case: Case, log: Path) -> str:
    command = [sys.executable, "-m", "autotune", "run", "--model", str(case.model)]
    command += ["--workload", "math", "--num-speculative-tokens", "4", *case.ours]
    seconds, code = timed([*command, "--preflight", "--", *case.flags], log)
    said = re.findall(r"^error: (.*)", log.read_text(), re.MULTILINE)
    return f"{seconds:.1f} | {code} | {shown(said[-1] if said else 'nothing')}"


def theirs(case: Case, log: Path) -> str:
    config = json.dumps({**case.config, "num_speculative_tokens": 4})
    command = [*SERVER, "--model", str(case.model), "--port", "0", "--host", "127.0.0.1"]
    seconds, code = timed([*command, *case.flags, "--speculative-config", config], log)
    return f"{seconds:.1f} | {code} | {shown(reason(last_words(log)))}"


def shown(text: str) -> str:
    return one_line(text, 120).replace("|", "/")


def price_of_a_check(model: Path) -> str:
    """What loading vLLM costs, once, and what each configuration does then."""
    engine = VllmEngine(EngineOptions())
    target = Target(model=str(model))
    arms = [MethodSpace(method="ngram", lengths=LENGTHS, config=NGRAM).arm(n, live=False)
            for n in LENGTHS]  # fmt: skip
    began = time.monotonic()
    took = []
    with closing(engine.validator(lambda _: None)) as validator:
        loaded = time.monotonic() - began
        for arm in arms:
            asked = time.monotonic()
            if not validator.check(
                ["--model", str(model), *engine.serve_arguments(target, arm)]
            ).ok:
                sys.exit(f"refused: N={arm.num_speculative_tokens}")
            took.append(time.monotonic() - asked)
    return (
        f"vLLM loaded once in {loaded:.1f} s; then {len(took)} configurations, "
        f"median {median(took):.3f} s each"
    )


def main() -> None:
    print("| wrong | spectune, s | exit | it says | vLLM, s | exit | it says |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        folders = checkpoints(root)
        for case in cases(folders):
            row = f"{ours(case, root / 'ours.log')} | {theirs(case, root / 'theirs.log')}"
            print(f"| {case.name} | {row} |".replace(f"{root}/", ""), flush=True)
        print(f"\n{price_of_a_check(folders['target'])}")


if __name__ == "__main__":
    main()
