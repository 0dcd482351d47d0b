"""A target of its own, MiMo: a Qwen2 with a layer for multi-token prediction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.language import batches, tokenizer
from zoo.layers import Layer, Shape
from zoo.saving import LAYERS, common, load, save
from zoo.training import LENGTH, ROWS, Teacher, optimise, train_language_model, unrolled

TARGET_STEPS, HEAD_STEPS = 350, 300


def make(folder: Path, used: Mapping[str, Path]) -> None:
    from safetensors.torch import load_file

    model = qwen2(Shape())
    train_language_model(model, TARGET_STEPS, seed=10)
    model.save_pretrained(folder)
    torch.manual_seed(0)
    own = train_mtp(Teacher(load(folder)), Shape()).state_dict()
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    layer = {f"model.mtp_layers.0.{name}": value for name, value in own.items()}
    save(folder, load_file(folder / "model.safetensors") | layer, config)


def qwen2(shape: Shape) -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=LAYERS,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        **common(),
    )
    return Qwen2ForCausalLM(config).float()


def train_mtp(teacher: Teacher, shape: Shape) -> MimoMtp:
    drafter = MimoMtp(shape)

    def step(embedded: Tensor, state: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        state = drafter.step(embedded, state, positions)
        return state, teacher.head(state)

    def loss(tokens: Tensor) -> Tensor:
        seen = teacher.look(tokens)
        return unrolled(seen, seen.raw, step)

    optimise(drafter, loss, batches(tokenizer(), ROWS, LENGTH, 30), HEAD_STEPS, 2e-3)
    return drafter


class MimoMtp(Layer):
    """MiMo's multi-token-prediction layer; it shares the target's head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, bias=True)
        self.token_layernorm = nn.RMSNorm(shape.hidden, shape.eps)
        self.hidden_layernorm = nn.RMSNorm(shape.hidden, shape.eps)
        self.input_proj = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.final_layernorm = nn.RMSNorm(shape.hidden, shape.eps)

    def step(self, embedded: Tensor, state: Tensor, positions: Tensor) -> Tensor:
        """The state for the next step, which the target's head reads too."""
        embedded = embedded * (positions > 0)[:, None]  # vLLM blanks the token at position 0
        both = torch.cat([self.hidden_layernorm(state), self.token_layernorm(embedded)], dim=-1)
        x = self.input_proj(both)
        x = x + self.self_attn(self.input_layernorm(x), positions)
        return self.final_layernorm(self.rest(x))
