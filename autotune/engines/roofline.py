"""Time of one forward pass by the roofline: the slower of memory traffic and arithmetic.

S. Williams, A. Waterman, D. Patterson: Roofline, CACM 52(4), 2009. Every weight that is needed is
read once a pass and the KV cache once a request, however many tokens are verified; arithmetic
grows with every token. So verification is flat while memory-bound and grows afterwards.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field, model_validator

from autotune.records import Record

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]


class Gpu(Record):
    """Public datasheet figures of one GPU; arithmetic is dense bfloat16."""

    name: str
    teraflops: Positive
    terabytes_per_second: Positive
    memory_gigabytes: Positive


def _gpu(name: str, teraflops: float, terabytes_per_second: float, gigabytes: float) -> Gpu:
    return Gpu(
        name=name,
        teraflops=teraflops,
        terabytes_per_second=terabytes_per_second,
        memory_gigabytes=gigabytes,
    )


GPUS = {
    "A100": _gpu("NVIDIA A100 SXM 80GB", 312, 2.04, 80),
    "H100": _gpu("NVIDIA H100 SXM", 989, 3.35, 80),
    "H200": _gpu("NVIDIA H200 SXM", 989, 4.8, 141),
    "MI300X": _gpu("AMD Instinct MI300X", 1307, 5.3, 192),
    "MI355X": _gpu("AMD Instinct MI355X", 2500, 8.0, 288),
}


class Machine(Record):
    """GPUs that share a model, and which part of the datasheet figures is reached."""

    gpu: Gpu
    gpu_count: int = Field(default=1, ge=1)
    compute_efficiency: Share = 0.5
    bandwidth_efficiency: Share = 0.7

    @property
    def flops_per_second(self) -> float:
        return self.gpu.teraflops * 1e12 * self.compute_efficiency * self.gpu_count

    @property
    def bytes_per_second(self) -> float:
        return self.gpu.terabytes_per_second * 1e12 * self.bandwidth_efficiency * self.gpu_count


class ModelShape(Record):
    """What a forward pass reads and computes. Without experts every parameter is active.

    `attention_width` is query heads times head size, `kv_bytes_per_token` sums all layers.
    """

    name: str = Field(min_length=1)
    parameters_billion: Positive
    active_parameters_billion: Positive | None = None
    num_experts: int | None = Field(default=None, ge=2)
    experts_per_token: int | None = Field(default=None, ge=1)
    layers: int = Field(ge=1)
    attention_width: int = Field(ge=1)
    kv_bytes_per_token: NotNegative
    bytes_per_weight: Positive = 2.0

    @model_validator(mode="after")
    def _experts(self) -> ModelShape:
        fields = (self.active_parameters_billion, self.num_experts, self.experts_per_token)
        if fields == (None, None, None):
            return self
        if None in fields:
            raise ValueError(
                "active_parameters_billion, num_experts and experts_per_token go together"
            )
        if self._top_k >= self._experts_total or self.active >= self.parameters_billion:
            raise ValueError("a mixture of experts activates a part of its experts and parameters")
        if self.shared < 0:
            raise ValueError("active parameters are fewer than the chosen experts alone have")
        return self

    @property
    def _experts_total(self) -> int:
        return self.num_experts or 1

    @property
    def _top_k(self) -> int:
        return self.experts_per_token or 1

    @property
    def active(self) -> float:
        """Parameters (billions) one token passes through."""
        return self.active_parameters_billion or self.parameters_billion

    @property
    def in_experts(self) -> float:
        """Parameters (billions) of all experts: X from S + X = total, S + X k/E = active."""
        if self.num_experts is None:
            return 0.0
        return (self.parameters_billion - self.active) / (1 - self._top_k / self._experts_total)

    @property
    def shared(self) -> float:
        """Parameters (billions) that every pass reads."""
        return self.parameters_billion - self.in_experts

    def weights_read(self, tokens: float) -> float:
        """Parameters (billions) read by a pass over `tokens` tokens."""
        if self.num_experts is None:
            return self.parameters_billion
        distinct = expected_experts(self._experts_total, self._top_k, tokens)
        return self.shared + self.in_experts * distinct / self._experts_total


def expected_experts(num_experts: int, experts_per_token: int, tokens: float) -> float:
    """Distinct experts that `tokens` independent tokens choose: E (1 - (1 - k/E)^tokens)."""
    return num_experts * (1 - math.pow(1 - experts_per_token / num_experts, tokens))


def forward_seconds(
    model: ModelShape,
    machine: Machine,
    requests: float,
    tokens_per_request: float,
    context_tokens: float,
) -> float:
    """Seconds of one pass over `requests` x `tokens_per_request` tokens.

    Memory: weights once and each request's KV cache once. Arithmetic: 2 FLOP per active parameter
    and token, and 4 x layers x attention width x context per token for attention (QK and PV).
    """
    tokens = requests * tokens_per_request
    weight_bytes = model.weights_read(tokens) * 1e9 * model.bytes_per_weight
    kv_bytes = requests * context_tokens * model.kv_bytes_per_token
    attention = 4 * model.layers * model.attention_width * context_tokens
    flops = tokens * (2 * model.active * 1e9 + attention)
    return max(
        (weight_bytes + kv_bytes) / machine.bytes_per_second, flops / machine.flops_per_second
    )


def drafter_seconds(parameters_billion: float, machine: Machine, tokens: float) -> float:
    """Seconds of one pass of a dense bfloat16 drafter; its short KV cache is left out."""
    read = parameters_billion * 1e9 * 2 / machine.bytes_per_second
    compute = 2 * parameters_billion * 1e9 * tokens / machine.flops_per_second
    return max(read, compute)
