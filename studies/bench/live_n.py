"""Live N against fresh starts: draft and accepted counts of the same prompts must be equal.

usage: python studies/bench/live_n.py MODEL -- VLLM_ARGS...
"""

from __future__ import annotations

from common import ngram_space, prompts, real_engine, say, split_arguments, target

from autotune.records import Arm, Block, BlockRole, Window
from autotune.workload import make_block

LENGTHS = (2, 6)
CONCURRENCIES = (1, 4)


def blocks() -> list[Block]:
    workload = prompts(16, 48)
    return [make_block(workload, BlockRole.SEARCH, 0, load, 8) for load in CONCURRENCIES]


def measure(own: list[str], vllm_args: list[str], arm: Arm, lengths: tuple[int, ...]) -> dict:
    """Windows by (N, concurrency) of one start."""
    session = real_engine().open(target(own[0], vllm_args), arm, say)
    found: dict[tuple[int, int | None], Window] = {}
    try:
        for n in lengths:
            if arm.live:
                session.set_num_speculative_tokens(n)
            for block in blocks():
                found[n, block.concurrency] = session.run(block)
    finally:
        session.close()
    return found


def main() -> None:
    own, vllm_args = split_arguments(__doc__ or "")
    space = ngram_space(own[0], LENGTHS)
    live = measure(own, vllm_args, space.arm(max(LENGTHS), live=True), LENGTHS)
    fresh: dict = {}
    for n in LENGTHS:
        fresh |= measure(own, vllm_args, space.arm(n, live=False), (n,))
    print("| N | concurrency | live: drafts, accepted per position | fresh start | equal | "
          "draft+verify / step (live) |")  # fmt: skip
    print("|---|---|---|---|---|---|")
    for key, window in live.items():
        n, load = key
        ours, theirs = counts(window), counts(fresh[key])
        print(
            f"| {n} | {load} | {ours} | {theirs} | {'yes' if ours == theirs else 'NO'} "
            f"| {window.steps.coverage:.3f} |"
        )


def counts(window: Window) -> tuple[int, list[int]]:
    """(drafts, accepted at each position below N)."""
    accepted = window.counters.accepted_per_pos[: window.num_speculative_tokens]
    return window.counters.num_drafts, list(accepted)


if __name__ == "__main__":
    main()
