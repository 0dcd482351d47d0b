"""DFlash: a block of masked positions filled in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.language import MASK, batches, tokenizer
from zoo.layers import Layer, Shape
from zoo.saving import LAYERS, drafter_config, load, save
from zoo.training import LENGTH, ROWS, SOURCES, Teacher, optimise

STEPS = 700
BLOCK = 6  # tokens drafted at most
ANCHORS = 6  # places of a sequence where it is trained to continue


def make(folder: Path, used: Mapping[str, Path]) -> None:
    shape = Shape()
    drafter = train(Teacher(load(used["target"])), shape)
    config = drafter_config(shape) | {
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": 2,
        "layer_types": ["full_attention"] * 2,
        "block_size": BLOCK + 1,
        "num_target_layers": LAYERS,
        "dflash_config": {
            "mask_token_id": MASK,
            "target_layer_ids": [source - 1 for source in SOURCES],  # counted from 0
        },
    }
    save(folder, drafter.state_dict(), config)


def train(teacher: Teacher, shape: Shape) -> DFlash:
    drafter = DFlash(shape, len(SOURCES), depth=2)

    def loss(tokens: Tensor) -> Tensor:
        seen, starts = teacher.look(tokens), _starts()
        places = (starts[:, None] + torch.arange(BLOCK + 1)).flatten()
        block = torch.full((ROWS, ANCHORS, BLOCK + 1), MASK)
        block[:, :, 0] = tokens[:, starts]  # a block begins with the last token that is certain
        hidden = drafter(
            seen.layers,
            torch.arange(LENGTH),
            teacher.embed(block.flatten(1)),
            places,
            _block_mask(starts),
        )
        drafted = hidden.unflatten(1, (ANCHORS, BLOCK + 1))[:, :, 1:]
        wanted = seen.greedy[:, starts[:, None] + torch.arange(BLOCK)]
        return F.cross_entropy(teacher.head(drafted).flatten(0, 2), wanted.flatten())

    optimise(drafter, loss, batches(tokenizer(), ROWS, LENGTH, 40), STEPS, 2e-3)
    return drafter


def _starts() -> Tensor:
    return torch.randint(8, LENGTH - BLOCK - 1, (ANCHORS,)).sort().values


def _block_mask(starts: Tensor) -> Tensor:
    """Each block sees the context before its start, and itself: (all blocks, LENGTH + blocks)."""
    owner = torch.arange(ANCHORS).repeat_interleave(BLOCK + 1)
    before = torch.arange(LENGTH)[None] < starts[owner][:, None]
    return torch.cat([before, owner[:, None] == owner[None]], dim=1)


class DFlash(nn.Module):
    """Layers over a block of masked positions that also see the target's hidden states."""

    def __init__(self, shape: Shape, sources: int, depth: int) -> None:
        super().__init__()
        self.fc = nn.Linear(sources * shape.hidden, shape.hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(shape.hidden, shape.eps)
        self.norm = nn.RMSNorm(shape.hidden, shape.eps)
        self.layers = nn.ModuleList(Layer(shape, norms=True) for _ in range(depth))

    def forward(
        self, context: Tensor, positions: Tensor, block: Tensor, places: Tensor, mask: Tensor
    ) -> Tensor:
        """`context` at `positions`, `block` embedded at `places`; `mask` (block, both)."""
        context = self.hidden_norm(self.fc(context))
        for layer in self.layers:
            x = layer.input_layernorm(block)
            keys, values = zip(
                layer.self_attn.memory(context, positions),
                layer.self_attn.memory(x, places),
                strict=True,
            )
            memory = torch.cat(keys, dim=2), torch.cat(values, dim=2)
            queries = layer.self_attn.queries(x, places)
            block = layer.rest(block + layer.self_attn.attend(queries, *memory, mask))
        return self.norm(block)
