"""What step timing costs: the same engine and prompts with it on and off, in turns.

Prints throughput with timing on / off, pair by pair (ABBA), and the interval of the mean ratio.

usage: python studies/bench/step_timing.py MODEL [PAIRS] -- VLLM_ARGS...
"""

from __future__ import annotations

import math

from common import ngram_space, prompts, real_engine, say, split_arguments, target

from autotune.records import BlockRole
from autotune.stats import ratio_interval
from autotune.workload import make_block

CONCURRENCY = 4


def main() -> None:
    own, vllm_args = split_arguments(__doc__ or "")
    pairs = int(own[1]) if len(own) > 1 else 10
    engine, space = real_engine(), ngram_space(own[0], [4])
    timed = make_block(prompts(16, 48), BlockRole.SEARCH, 0, CONCURRENCY, 8)
    untimed = timed.model_copy(update={"role": BlockRole.CONFIRM})  # runs without step timing
    session = engine.open(target(own[0], vllm_args), space.arm(4, live=False), say)
    try:
        for _ in range(2):
            session.run(timed)
        ratios = []
        for pair in range(pairs):
            order = (timed, untimed) if pair % 2 == 0 else (untimed, timed)
            rates = {block.role: session.run(block).output_tokens_per_second for block in order}
            ratios.append(math.log(rates[BlockRole.SEARCH] / rates[BlockRole.CONFIRM]))
            say(f"pair {pair + 1}: on/off {math.exp(ratios[-1]):.3f}")
    finally:
        session.close()
    interval = ratio_interval(ratios, 0.95)
    print(
        f"throughput with step timing on / off, {pairs} pairs: {interval.value:.3f} "
        f"[{interval.low:.3f}, {interval.high:.3f}]"
    )


if __name__ == "__main__":
    main()
