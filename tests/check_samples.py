"""Documents for checks, made by hand: the contract's keys and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RATES = (0.88, 0.77, 0.6)


def recommendation(
    speedup: float = 2.0,
    half: float = 0.01,
    length: float = 3.25,
    rates: tuple[float, ...] = RATES,
    throughput: float = 2000.0,
    loads: tuple[int, ...] = (8,),
    **more: Any,
) -> dict[str, Any]:
    """dflash N=3 everywhere; the interval is half * 100 % to either side, at 95 %."""
    ratio = {
        "value": speedup,
        "low": speedup * (1 - half),
        "high": speedup * (1 + half),
        "confidence": 0.95,
    }
    chosen = {"method": "dflash", "num_speculative_tokens": 3}
    exact = {"value": length, "low": length - 0.01, "high": length + 0.01, "confidence": 0.95}
    return {
        "schema": "spectune.recommendation/1",
        "model": "acme/big",
        "workload": {"name": "math", "sha256": "ab" * 32, "num_prompts": 64, "temperature": 0.0},
        "environment": {"gpu": "AMD Instinct MI300X", "runtime": "ROCm 7.2.0", "vllm": "0.32.0"},
        "decision": "speculate",
        **chosen,
        "speculative_config": {**chosen, "model": "acme/draft"},
        "speedup": ratio,
        "per_concurrency": [{"concurrency": load, **chosen, "speedup": ratio} for load in loads],
        "candidates": [
            {
                **chosen,
                "concurrency": load,
                "status": "confirmed",
                "output_tokens_per_second": throughput,
                "speedup": ratio,
                "acceptance_length": length,
                "acceptance_length_interval": exact,
                "per_position_acceptance_rates": list(rates),
            }
            for load in loads
        ],
        "baseline": [
            {"concurrency": load, "output_tokens_per_second": throughput / speedup}
            for load in loads
        ],
        "warnings": [],
        **more,
    }


def recording(factor: float = 1.0, baseline: float = 1000.0, **more: Any) -> dict[str, Any]:
    """mtp N=1 and N=3; `factor` is for both, not for the baseline."""
    return {
        "schema": "spectune.recording/1",
        "model": "acme/big",
        "workload": "GSM8K",
        "hardware": "2x MI300X TP2",
        "engine_version": "vLLM 0.32.0",
        "baseline": [{"concurrency": None, "output_tokens_per_second": baseline}],
        "points": [
            {
                "method": "mtp",
                "num_speculative_tokens": n,
                "concurrency": None,
                "output_tokens_per_second": rate * factor,
                "per_position_acceptance": list(rates),
            }
            for n, rate, rates in ((1, 1700.0, (0.9,)), (3, 2000.0, (0.9, 0.8, 0.7)))
        ],
        **more,
    }


def write(folder: Path, name: str, document: Any) -> str:
    file = folder / f"{name}.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return str(file)
