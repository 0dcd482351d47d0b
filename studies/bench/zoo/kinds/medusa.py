"""Medusa heads for the target: head k says the token k + 2 places on, all at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from zoo.language import VOCABULARY, batches, tokenizer
from zoo.layers import Shape
from zoo.saving import load, save
from zoo.training import LENGTH, ROWS, Teacher, optimise

STEPS = 200
HEADS = 6


def make(folder: Path, used: Mapping[str, Path]) -> None:
    teacher, shape = Teacher(load(used["target"])), Shape()
    drafter = Medusa(shape, VOCABULARY)
    for head in drafter.lm_heads:
        head.load_state_dict(teacher.head.state_dict())

    def loss(tokens: Tensor) -> Tensor:
        seen = teacher.look(tokens)
        losses = [
            F.cross_entropy(
                logits[:, : LENGTH - 1 - k].flatten(0, 1), seen.greedy[:, 1 + k :].flatten()
            )
            for k, logits in enumerate(drafter(seen.final))
        ]
        return sum(losses[1:], losses[0]) / HEADS

    optimise(drafter, loss, batches(tokenizer(), ROWS, LENGTH, 60), STEPS, 2e-3)
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": shape.hidden,
        "vocab_size": VOCABULARY,
        "num_heads": HEADS,
        "num_hidden_layers": 1,
        "torch_dtype": "float32",
    }
    save(folder, drafter.state_dict(), config)


class Medusa(nn.Module):
    def __init__(self, shape: Shape, vocabulary: int) -> None:
        super().__init__()
        wide = (shape.hidden, shape.hidden)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(*wide, bias=False)])})
            for _ in range(HEADS)
        )
        self.lm_heads = nn.ModuleList(
            nn.Linear(shape.hidden, vocabulary, bias=False) for _ in range(HEADS)
        )

    def forward(self, state: Tensor) -> list[Tensor]:
        """Logits of each head for the target's final hidden state."""
        return [
            head(state + F.silu(block["layers"][0](state)))
            for block, head in zip(self.blocks, self.lm_heads, strict=True)
        ]
