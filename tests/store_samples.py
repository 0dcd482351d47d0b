"""A small plan and what measuring it gives, for the tests of the study database."""

from __future__ import annotations

from typing import Any

from autotune.records import (
    Arm,
    BaselineResult,
    Block,
    BlockRole,
    Cost,
    Environment,
    Interval,
    LoadChoice,
    Message,
    MethodSpace,
    Plan,
    Prompt,
    Recommendation,
    Sampling,
    Status,
    Target,
    Window,
    Workload,
    WorkloadSummary,
)

PROMPTS = tuple(
    Prompt(id=str(i), messages=(Message(role="user", content=f"Was ist {i} + {i}?"),))
    for i in range(4)
)
BASE = Arm()
LIVE = Arm(method="mtp", num_speculative_tokens=8, live=True)


def make_plan(model: str = "acme/small", **changes: Any) -> Plan:
    space = MethodSpace(method="mtp", lengths=(1, 2, 3))
    fields: dict[str, Any] = {
        "engine": "simulate",
        "target": Target(model=model),
        "workload": Workload(name="sums", prompts=PROMPTS),
        "spaces": (space,),
        "concurrencies": (1, 8),
        "environment": Environment(gpu="Acme G1", gpu_count=2, vllm="0.32.0"),
    }
    return Plan(**{**fields, **changes})


def make_block(
    index: int = 0, role: BlockRole = BlockRole.SEARCH, concurrency: int | None = 8
) -> Block:
    return Block(
        role=role, index=index, concurrency=concurrency, prompts=PROMPTS, sampling=Sampling()
    )


def make_window(arm: Arm, n: int, block: Block, rate: float = 100.0, **changes: Any) -> Window:
    fields: dict[str, Any] = {
        "method": arm.method,
        "num_speculative_tokens": n,
        "live": arm.live,
        "block": block.key,
        "concurrency": block.concurrency,
        "output_tokens_per_second": rate,
    }
    return Window(**{**fields, **changes})


def make_recommendation(plan: Plan, study: str, **changes: Any) -> Recommendation:
    interval = Interval(value=2.0, low=1.9, high=2.1, confidence=0.95)
    choice = {"method": "mtp", "num_speculative_tokens": 3, "speedup": interval}
    fields: dict[str, Any] = {
        **choice,
        "study": study,
        "engine": plan.engine,
        "created_at": "2026-11-01T10:00:00+00:00",
        "model": plan.target.model,
        "workload": WorkloadSummary(
            name="sums", sha256=plan.workload.sha256, num_prompts=4, temperature=0, max_tokens=256
        ),
        "environment": plan.environment,
        "decision": "speculate",
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 3},
        "per_concurrency": (
            LoadChoice(concurrency=8, decision="speculate", status=Status.CONFIRMED, **choice),
        ),
        "candidates": (),
        "baseline": (BaselineResult(concurrency=8, output_tokens_per_second=100.0),),
        "cost": Cost(engine_starts=2, probes=3, probe_seconds=4.0, total_seconds=5.0),
        "stopped_because": "nothing could still win",
        "exhausted": True,
        "vllm_serve_args": (
            "--speculative-config",
            '{"method": "mtp", "num_speculative_tokens": 3}',
        ),
    }
    return Recommendation(**{**fields, **changes})
