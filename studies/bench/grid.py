"""spectune against what people do by hand: one fresh start per N, `vllm bench serve` at each load.

Both see the same model, prompts, N, loads and engine flags, one after the other in one run.

usage: python studies/bench/grid.py MODEL -- VLLM_ARGS...
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import ngram_space, prompts, real_engine, say, split_arguments, target

from autotune.records import BASELINE, Arm

LENGTHS = (2, 4, 6)
CONCURRENCIES = (1, 4)
PROMPTS, MAX_TOKENS = 64, 40
BENCH_PROMPTS = 8
# `vllm bench serve` without the `vllm` command, which the CPU distribution does not have.
BENCH = (
    "import sys; from vllm.utils.argparse_utils import FlexibleArgumentParser as P;"
    "from vllm.benchmarks.serve import add_cli_args, main; p = P(); add_cli_args(p);"
    "main(p.parse_args(sys.argv[1:]))"
)


def write_prompts(folder: Path) -> Path:
    file = folder / "prompts.jsonl"
    rows = [{"prompt": p.messages[-1].content} for p in prompts(PROMPTS, MAX_TOKENS).prompts]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def bench_serve(model: str, base_url: str, file: Path, concurrency: int, folder: Path) -> float:
    """Output tokens per second as `vllm bench serve` reports them."""
    result = folder / "result.json"
    subprocess.run(
        [sys.executable, "-c", BENCH, "--model", model, "--base-url", base_url,
         "--backend", "openai-chat", "--endpoint", "/v1/chat/completions",
         "--dataset-name", "custom", "--dataset-path", str(file), "--skip-chat-template",
         "--custom-output-len", str(MAX_TOKENS), "--num-prompts", str(BENCH_PROMPTS),
         "--max-concurrency", str(concurrency), "--temperature", "0", "--disable-tqdm",
         "--save-result", "--result-dir", str(folder), "--result-filename", result.name],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return float(json.loads(result.read_text())["output_throughput"])


def grid(model: str, vllm_args: list[str], file: Path, folder: Path) -> dict:
    """Throughput by (N, concurrency); N = 0 is the baseline."""
    served, space, found = target(model, vllm_args), ngram_space(model, list(LENGTHS)), {}
    arms = [Arm(method=BASELINE)]
    arms += [space.arm(n, live=False).model_copy(update={"instrumented": False}) for n in LENGTHS]
    for arm in arms:
        session = real_engine().open(served, arm, say)
        try:
            for load in CONCURRENCIES:
                rate = bench_serve(served.model, session.base_url, file, load, folder)
                say(f"grid N={arm.num_speculative_tokens} at concurrency {load}: {rate:.1f} tok/s")
                found[arm.num_speculative_tokens, load] = rate
        finally:
            session.close()
    return found


def spectune(model: str, vllm_args: list[str], file: Path, folder: Path) -> dict:
    result = folder / "recommendation.json"
    subprocess.run(
        [sys.executable, "-m", "autotune", "run", "--model", model, "--workload", str(file),
         "--methods", "ngram", "--num-speculative-tokens", ",".join(map(str, LENGTHS)),
         "--max-concurrency", ",".join(map(str, CONCURRENCIES)), "--max-tokens", str(MAX_TOKENS),
         "--prompts-per-block", "4", "--fast", "--storage", f"sqlite:///{folder}/study.db",
         "-o", str(result), "--", *vllm_args],
        check=False,
    )  # fmt: skip
    return json.loads(result.read_text())


def main() -> None:
    own, vllm_args = split_arguments(__doc__ or "")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = write_prompts(folder)
        began = time.monotonic()
        found = grid(own[0], vllm_args, file, folder)
        grid_seconds = time.monotonic() - began
        began = time.monotonic()
        ours = spectune(own[0], vllm_args, file, folder)
        our_seconds = time.monotonic() - began
    print("| concurrency | " + " | ".join(f"N={n}" for n in (0, *LENGTHS)) + " | spectune |")
    print("|---" * (len(LENGTHS) + 3) + "|")
    for choice in ours["per_concurrency"]:
        load = choice["concurrency"]
        row = " | ".join(f"{found[n, load]:.1f}" for n in (0, *LENGTHS))
        print(f"| {load} | {row} | N={choice['num_speculative_tokens']} |")
    print(f"\ngrid: {len(LENGTHS) + 1} starts, {grid_seconds:.0f} s; spectune: "
          f"{ours['cost']['engine_starts']} starts, {our_seconds:.0f} s; "
          f"ratio {grid_seconds / our_seconds:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
