"""Drafters in torch, for training. Attributes are named as vLLM 0.32 names the weights it loads.

Shapes: tokens (B, T), hidden states (B, T, hidden), positions (T,).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    hidden: int = 128
    inner: int = 384
    heads: int = 4
    kv_heads: int = 2
    head: int = 32
    rope_theta: float = 10000.0
    eps: float = 1e-6


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of x (B, heads, T, head), halves rotated against each other."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** (-torch.arange(half) / half)
    cos, sin = angles.cos(), angles.sin()
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


class Attention(nn.Module):
    """Grouped-query attention. `norms`: Qwen3's norms of each query and key. `bias`: Qwen2's."""

    def __init__(self, shape: Shape, width: int, *, norms: bool, bias: bool) -> None:
        super().__init__()
        self.shape = shape
        queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
        self.q_proj = nn.Linear(width, queries, bias=bias)
        self.k_proj = nn.Linear(width, keys, bias=bias)
        self.v_proj = nn.Linear(width, keys, bias=bias)
        self.o_proj = nn.Linear(queries, shape.hidden, bias=False)
        if norms:
            self.q_norm = nn.RMSNorm(shape.head, shape.eps)
            self.k_norm = nn.RMSNorm(shape.head, shape.eps)
        self.norms = norms

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (-1, self.shape.head))
        q = self.q_norm(q) if self.norms else q
        return rotate(q.transpose(1, 2), positions, self.shape.rope_theta)

    def memory(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, kv heads, T, head)."""
        k = self.k_proj(x).unflatten(-1, (-1, self.shape.head))
        v = self.v_proj(x).unflatten(-1, (-1, self.shape.head)).transpose(1, 2)
        k = self.k_norm(k) if self.norms else k
        return rotate(k.transpose(1, 2), positions, self.shape.rope_theta), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """`mask` (queries, keys), True where a key is seen; None: causal."""
        seen = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        return self.o_proj(seen.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.attend(self.queries(x, positions), *self.memory(x, positions), None)


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """A decoder layer; `width` is what its attention reads, hidden unless said otherwise."""

    def __init__(
        self, shape: Shape, width: int | None = None, *, norms: bool = False, bias: bool = False
    ) -> None:
        super().__init__()
        self.self_attn = Attention(shape, width or shape.hidden, norms=norms, bias=bias)
        self.mlp = Mlp(shape)
        self.input_layernorm = nn.RMSNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, shape.eps)

    def rest(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.post_attention_layernorm(x))
