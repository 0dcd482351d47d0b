"""What `predict.py` measures: real vLLM servers of which every drafter runs on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common import prompts, real_engine, say
from common import target as served
from windows import measure, save_windows

from autotune.models.candidates import build_spaces
from autotune.models.catalog import resolve_model
from autotune.records import Message, Plan, Prompt, Sampling, Settings, Workload

LOADS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Case:
    """One target with its methods; `drafters` are checkpoints by method, as on the command line."""

    model: str
    workload: Workload
    methods: Sequence[str]
    lengths: Sequence[int]
    prompts_per_block: int
    drafters: dict[str, str] = field(default_factory=dict)
    engine_args: tuple[str, ...] = ()


def measure_target(
    name: str, path: Path, model: str, vllm_args: Sequence[str], blocks: int
) -> None:
    """Measure one of CASES and write its windows. Raises KeyError for an unknown name.

    `blocks` of each candidate and load, and the first one again.
    """
    case = CASES[name](model)
    resolved = resolve_model(case.model)
    spaces, _, _ = build_spaces(
        resolved, methods=case.methods, drafters=case.drafters, lengths=case.lengths
    )
    plan = Plan(
        engine="vllm",
        target=served(case.model, (*vllm_args, *case.engine_args)),
        workload=case.workload,
        spaces=spaces,
        concurrencies=LOADS,
        settings=Settings(search_blocks=blocks, prompts_per_block=case.prompts_per_block),
    )
    save_windows(path, plan, measure(plan, real_engine(), say))


def stories() -> Workload:
    from zoo.language import questions

    return Workload(
        name="counting stories",
        prompts=tuple(
            Prompt(id=f"story{i}", messages=(Message(role="user", content=text),))
            for i, text in enumerate(questions(96, seed=777))
        ),
        # long enough that the server's own lag between requests does not empty the batch
        sampling=Sampling(max_tokens=128, ignore_eos=True),
    )


def trained(_: str) -> Case:
    """A trained model of a million parameters, three drafters."""
    from zoo.checkpoints import checkpoints

    zoo = checkpoints(("draft", "eagle3", "dflash"), say=say)
    drafters = {"draft_model": zoo["draft"], "eagle3": zoo["eagle3"], "dflash": zoo["dflash"]}
    return Case(
        model=str(zoo["target"]),
        workload=stories(),
        methods=tuple(drafters),
        lengths=range(1, 7),
        prompts_per_block=8,
        drafters={method: str(path) for method, path in drafters.items()},
        engine_args=TINY,
    )


def mimo(_: str) -> Case:
    """The same with a layer of its own for multi-token prediction."""
    from zoo.checkpoints import checkpoint

    return Case(
        model=str(checkpoint("mimo", say=say)),
        workload=stories(),
        methods=("mtp",),
        lengths=range(1, 7),
        prompts_per_block=8,
        engine_args=TINY,
    )


def real(model: str) -> Case:
    """A real small language model; n-grams."""
    return Case(
        model=model,
        workload=prompts(96, 40),
        methods=("ngram",),
        lengths=(1, 2, 3, 4, 5, 6, 8),
        prompts_per_block=4,
    )


TINY = ("--max-model-len", "1024")  # all that they were made for; what comes last counts
CASES = {"trained": trained, "mimo": mimo, "real": real}
