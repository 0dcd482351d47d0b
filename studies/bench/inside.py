"""Live N beside fresh starts and no speculation, all in one process: a start takes seconds there.

Each target answers the same questions one at a time without speculation; then, for every method,
at each N of a fresh start, and at each N of one live start where the method allows it. The live
start runs our scheduler, as under `vllm serve`.

usage: python studies/bench/inside.py JOBS.json RESULT.json
JOBS: a list of {"name", "target", "spaces": MethodSpaces}. RESULT: by name, {"none": texts,
METHOD: {"fresh" and, where N can be switched, "live": {N: {"drafts", "draft_tokens", "accepted"
(per position), "tokens" (of the answers), "texts"}}}}.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.records import MethodSpace
from autotune.vllm_plugin.control import ENVIRONMENT_VARIABLE, ControlFile

QUESTIONS, MAX_TOKENS = 6, 48
SCHEDULER = "autotune.vllm_plugin.scheduler.LiveScheduler"
SETTINGS = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 1024,
    "max_num_seqs": 1,  # one request at a time: nothing depends on who shares a step
    "kv_cache_memory_bytes": 1 << 27,
    "disable_log_stats": False,  # the counters are among them
    "enable_prefix_caching": False,
    "seed": 0,
}
COUNTERS = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "accepted",
}
ENVIRONMENT = {  # as the product sets it for an engine on a CPU
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "NUMBA_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}


def main() -> None:
    os.environ |= ENVIRONMENT
    jobs, result = (Path(argument) for argument in sys.argv[1:])
    found = {job["name"]: measure(job) for job in json.loads(jobs.read_text())}
    result.write_text(json.dumps(found))


def measure(job: dict[str, Any]) -> dict[str, Any]:
    target = job["target"]
    found: dict[str, Any] = {"none": on_engine(answer, target)["texts"]}
    for space in map(MethodSpace.model_validate, job["spaces"]):
        found[space.method] = {"fresh": fresh(target, space)}
        if space.live_n:
            found[space.method]["live"] = live(target, space)
    return found


def fresh(target: str, space: MethodSpace) -> dict[int, Any]:
    """One start per N."""
    return {
        n: on_engine(answer, target, speculative_config=space.speculative_config(n))
        for n in space.lengths
    }


def live(target: str, space: MethodSpace) -> dict[int, Any]:
    """All N on one start; the largest first and last, so that switching back is seen too."""
    top = max(space.lengths)
    tiers = tuple((size, size, n) for size, n in enumerate((top, *space.lengths), 1))
    config = space.speculative_config(top, tiers)
    with tempfile.TemporaryDirectory() as folder:
        control = ControlFile(Path(folder) / "control")
        os.environ[ENVIRONMENT_VARIABLE] = str(control.path)

        def answer_at(llm: Any, n: int) -> dict[str, Any]:
            control.set(n)
            return answer(llm)

        def answer_all(llm: Any) -> dict[int, Any]:
            return {n: answer_at(llm, n) for n in (top, *space.lengths)}

        return on_engine(answer_all, target, speculative_config=config, scheduler_cls=SCHEDULER)


def on_engine(ask: Callable[[Any], Any], target: str, **more: Any) -> Any:
    """What `ask` returns for an engine that lives no longer than that.

    An engine that is freed later takes the process groups of the next one with it.
    """
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    _bind_kernels_once()
    llm = LLM(model=target, **SETTINGS, **more)
    try:
        return ask(llm)
    finally:
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def _bind_kernels_once() -> None:
    """vLLM 0.32 looks for its kernels at each start, in all that is loaded, and dies of numba's.

    numba comes with the n-gram drafter. What was bound at the first start stays bound.
    """
    from vllm.platforms import current_platform as platform

    if not isinstance(platform.register_triton_kernel_overrides, functools._lru_cache_wrapper):
        once = functools.cache(platform.register_triton_kernel_overrides)
        platform.register_triton_kernel_overrides = once


def answer(llm: Any) -> dict[str, Any]:
    """Ask the questions; what was drafted and accepted meanwhile, and the texts."""
    from vllm import SamplingParams
    from zoo.language import questions

    chats = [[{"role": "user", "content": text}] for text in questions(QUESTIONS, seed=778)]
    before = counters(llm)
    sampling = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    outputs = llm.chat(chats, sampling, use_tqdm=False)
    after = counters(llm)
    delta = {name: _difference(value, before.get(name)) for name, value in after.items()}
    answers = [output.outputs[0] for output in outputs]
    tokens = sum(len(one.token_ids) for one in answers)
    return {**delta, "tokens": tokens, "texts": [one.text for one in answers]}


def counters(llm: Any) -> dict[str, Any]:
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    return {
        short: getattr(metrics[name], "values", None) or metrics[name].value
        for name, short in COUNTERS.items()
        if name in metrics
    }


def _difference(after: Any, before: Any) -> Any:
    if isinstance(after, list):
        return [a - b for a, b in zip(after, before or [0] * len(after), strict=True)]
    return after - (before or 0)


if __name__ == "__main__":
    main()
