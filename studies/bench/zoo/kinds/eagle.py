"""An EAGLE head for the target: one layer over its last hidden state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.language import batches, tokenizer
from zoo.layers import Layer, Shape
from zoo.saving import drafter_config, load, save
from zoo.training import LENGTH, ROWS, Teacher, optimise, unrolled

STEPS = 300


def make(folder: Path, used: Mapping[str, Path]) -> None:
    teacher, shape = Teacher(load(used["target"])), Shape()
    drafter = Eagle(shape)

    def step(embedded: Tensor, state: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        state = drafter.step(embedded, state, positions)
        return state, teacher.head(state)

    def loss(tokens: Tensor) -> Tensor:
        seen = teacher.look(tokens)
        return unrolled(seen, seen.final, step)

    optimise(drafter, loss, batches(tokenizer(), ROWS, LENGTH, 50), STEPS, 2e-3)
    config = drafter_config(shape) | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 1,
    }
    save(folder, drafter.state_dict(), config)


class Eagle(nn.Module):
    """A Llama layer that is not normalised before attention; the target's head reads its state."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.layers = nn.ModuleList([Layer(shape)])
        del self.layers[0].input_layernorm

    def step(self, embedded: Tensor, state: Tensor, positions: Tensor) -> Tensor:
        """The state for the next step."""
        layer = self.layers[0]
        x = self.fc(torch.cat([embedded, state], dim=-1))
        return layer.rest(x + layer.self_attn(x, positions))
