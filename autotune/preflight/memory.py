"""What memory says about the candidates of a plan: refused where weights cannot fit."""

from __future__ import annotations

from autotune.engines.arguments import data_parallel_size, read_flags
from autotune.preflight.ledger import Ledger
from autotune.preflight.memory_estimate import MemoryEstimate, expected_memory
from autotune.records import MethodSpace

# Flags with which a checkpoint's bytes over the tensor-parallel devices are not what each holds, or
# with which the share of its memory is not what limits an engine.
OTHER_WEIGHTS = (
    "--quantization", "-q", "--load-format", "--hf-overrides", "--language-model-only",
    "--cpu-offload-gb", "--offload-group-size", "--enable-expert-parallel", "-ep",
    "--kv-cache-memory-bytes",
)  # fmt: skip


def look_at_memory(ledger: Ledger, device_bytes: int | None) -> None:
    """Enter what is known of each candidate; `device_bytes` is the memory of one GPU."""
    if device_bytes is None:
        return
    model = ledger.plan.target.model
    target = _estimate(ledger, None, device_bytes)
    if target.fits is False:
        ledger.warnings.append(f"{model} alone leaves no room for a KV cache: {target.figures()}")
        return
    for space in ledger.spaces():
        estimate = _estimate(ledger, space.drafter, device_bytes)
        if estimate.fits is False:
            reason = f"target and drafter do not fit: {estimate.figures()}"
            ledger.refuse(space.method, space.lengths, reason)
        elif estimate.requests is not None:
            _few(ledger, space, estimate, estimate.requests)


def _few(ledger: Ledger, space: MethodSpace, estimate: MemoryEstimate, requests: int) -> None:
    """`requests` is what one device holds; each data parallel replica has a cache of its own."""
    requests *= data_parallel_size(ledger.plan.target.engine_args)
    busiest = max((load for load in ledger.plan.concurrencies if load is not None), default=0)
    if requests < busiest:
        ledger.warnings.append(
            f"{space.method}: the KV cache holds at most {requests} of these requests at a time "
            f"({estimate.figures()}); at concurrency {busiest} others wait"
        )


def _estimate(ledger: Ledger, drafter: str | None, device_bytes: int) -> MemoryEstimate:
    """Nothing is said of the room where flags or stages change what a device holds."""
    facts, target = ledger.baseline, ledger.plan.target
    flags = {flag for flag, _ in read_flags(target.engine_args)}
    usual = facts.pipeline_parallel_size == 1 and not flags.intersection(OTHER_WEIGHTS)
    share = facts.gpu_memory_utilization if usual and facts.tensor_parallel_size else None
    return expected_memory(
        target.model,
        drafter,
        device_bytes=device_bytes if share else None,
        utilization=share or 1.0,
        tensor_parallel=facts.tensor_parallel_size or 1,
        dtype=facts.dtype,
        kv_cache_dtype=facts.kv_cache_dtype,
        tokens_per_request=max(ledger.request_tokens) if ledger.request_tokens else None,
    )
