"""An EAGLE-3 head for the target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.language import VOCABULARY, batches, tokenizer
from zoo.layers import Layer, Shape
from zoo.saving import drafter_config, load, save
from zoo.training import LENGTH, ROWS, SOURCES, Teacher, optimise, unrolled

STEPS = 300


def make(folder: Path, used: Mapping[str, Path]) -> None:
    teacher, shape = Teacher(load(used["target"])), Shape()
    drafter = Eagle3(shape, len(SOURCES), VOCABULARY)
    drafter.lm_head.load_state_dict(teacher.head.state_dict())

    def loss(tokens: Tensor) -> Tensor:
        seen = teacher.look(tokens)
        return unrolled(seen, drafter.fc(seen.layers), drafter.step)

    optimise(drafter, loss, batches(tokenizer(), ROWS, LENGTH, 20), STEPS, 2e-3)
    config = drafter_config(shape) | {
        "architectures": ["Eagle3Qwen3ForCausalLM"],
        "num_hidden_layers": 1,
        "draft_vocab_size": VOCABULARY,
        "target_hidden_size": shape.hidden,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": list(SOURCES),
    }
    save(folder, drafter.state_dict(), config)


class Eagle3(nn.Module):
    """One layer that reads the next token beside a mix of three of the target's layers."""

    def __init__(self, shape: Shape, sources: int, vocabulary: int) -> None:
        super().__init__()
        self.fc = nn.Linear(sources * shape.hidden, shape.hidden, bias=False)
        self.midlayer = Layer(shape, 2 * shape.hidden, norms=True)
        self.midlayer.hidden_norm = nn.RMSNorm(shape.hidden, shape.eps)
        self.norm = nn.RMSNorm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, vocabulary, bias=False)

    def step(self, embedded: Tensor, state: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(state for the next step, logits)."""
        layer = self.midlayer
        both = torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(state)], dim=-1)
        state = layer.rest(state + layer.self_attn(both, positions))
        return state, self.lm_head(self.norm(state))
