"""PARD: the draft model trained on to fill masked positions, so that one pass drafts them all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.language import MASK, batches, tokenizer
from zoo.saving import load
from zoo.training import LENGTH, ROWS, Teacher, optimise

STEPS = 400
MASKED = 5  # positions after the first drafted one: drafts of 6 tokens
ANCHORS = 8  # places of a sequence where it is trained to continue


def make(folder: Path, used: Mapping[str, Path]) -> None:
    teacher, drafter = Teacher(load(used["target"])), load(used["draft"])

    def loss(tokens: Tensor) -> Tensor:
        wanted = teacher.look(tokens).greedy
        starts = torch.randint(6, LENGTH - MASKED - 1, (ANCHORS,)).sort().values
        places = (starts[:, None] + 1 + torch.arange(MASKED)).flatten()
        logits = drafter(
            input_ids=torch.cat([tokens, torch.full((ROWS, len(places)), MASK)], dim=1),
            attention_mask=_visible(starts, places),
            position_ids=torch.cat([torch.arange(LENGTH), places]).expand(ROWS, -1),
        ).logits
        wanted = torch.cat([wanted, wanted[:, places]], dim=1)
        each = F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
        return each[:, :LENGTH].mean() + each[:, LENGTH:].mean()

    optimise(drafter, loss, batches(tokenizer(), ROWS, LENGTH, 70), STEPS, 2e-3)
    drafter.save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pard_token": MASK}, indent=1))


def _visible(starts: Tensor, places: Tensor) -> Tensor:
    """Additive mask (ROWS, 1, all, all): text is causal; a masked place sees its start's past,
    its start, and the masks of the same start up to itself.
    """
    owner = torch.arange(ANCHORS).repeat_interleave(MASKED)
    text = torch.arange(LENGTH)
    total = LENGTH + len(places)
    seen = torch.zeros(total, total, dtype=torch.bool)
    seen[:LENGTH, :LENGTH] = text[None] <= text[:, None]
    seen[LENGTH:, :LENGTH] = text[None] <= starts[owner][:, None]
    seen[LENGTH:, LENGTH:] = (owner[:, None] == owner) & (places[:, None] >= places)
    least = torch.finfo(torch.float32).min
    return torch.where(seen, 0.0, least)[None, None].expand(ROWS, 1, -1, -1)
