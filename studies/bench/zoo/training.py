"""Train a target on the stories, and drafters on what the target would say next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.language import MASK, VOCABULARY, batches
from zoo.layers import DFlash, Eagle3, MimoMtp, Shape

ROWS, LENGTH = 8, 128  # of one batch of tokens
SOURCES = (1, 2, 3)  # the target's hidden states after so many layers, for eagle3 and dflash
UNROLLED = 3  # draft steps that eagle3 and MTP are trained on
DECAY = 0.7  # of a draft step's weight in the loss over the one before
BLOCK = 6  # tokens that dflash drafts at most
ANCHORS = 6  # places of a sequence where dflash is trained to continue


@dataclass(frozen=True)
class Seen:
    """What the frozen target makes of a batch (B, T): shapes (B, T, ...)."""

    tokens: Tensor
    embedded: Tensor
    layers: Tensor  # hidden states of SOURCES side by side
    raw: Tensor  # last hidden state before the final norm
    final: Tensor  # and after it
    greedy: Tensor  # [:, t] is the token the target puts at t + 1


class Teacher:
    """A trained target, frozen. Only what drafters are trained on is asked of it."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval().requires_grad_(False)
        self.head: nn.Module = model.lm_head
        self.embed: nn.Module = model.model.embed_tokens
        self._raw: list[Tensor] = []
        model.model.norm.register_forward_pre_hook(lambda _, inputs: self._raw.append(inputs[0]))

    @torch.no_grad()
    def look(self, tokens: Tensor) -> Seen:
        self._raw.clear()
        out = self.model.model(input_ids=tokens, output_hidden_states=True)
        return Seen(
            tokens=tokens,
            embedded=self.embed(tokens),
            layers=torch.cat([out.hidden_states[i] for i in SOURCES], dim=-1),
            raw=self._raw[0],
            final=out.last_hidden_state,
            greedy=self.head(out.last_hidden_state).argmax(-1),
        )


def optimise(
    model: nn.Module,
    loss: Callable[[Tensor], Tensor],
    data: Iterator[Tensor],
    steps: int,
    top: float,
) -> None:
    """AdamW with a short warm-up and a linear end; `top` is the highest learning rate."""
    torch.set_num_threads(1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=top, betas=(0.9, 0.95))
    for step in range(steps):
        rate = top * min(1.0, (step + 1) / 20) * (1 - step / steps)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad()
        loss(next(data)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


def train_language_model(model: Any, words: Any, steps: int, seed: int) -> None:
    def loss(tokens: Tensor) -> Tensor:
        return model(input_ids=tokens, labels=tokens).loss

    optimise(model, loss, batches(words, 2 * ROWS, LENGTH, seed), steps, 3e-3)


def train_eagle3(teacher: Teacher, shape: Shape, words: Any, steps: int) -> Eagle3:
    drafter = Eagle3(shape, len(SOURCES), VOCABULARY)
    drafter.lm_head.load_state_dict(teacher.head.state_dict())

    def loss(tokens: Tensor) -> Tensor:
        seen = teacher.look(tokens)
        return _unrolled(seen, drafter.fc(seen.layers), drafter.step)

    optimise(drafter, loss, batches(words, ROWS, LENGTH, 20), steps, 2e-3)
    return drafter


def train_mtp(teacher: Teacher, shape: Shape, words: Any, steps: int) -> MimoMtp:
    drafter = MimoMtp(shape)

    def step(embedded: Tensor, state: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        state = drafter.step(embedded, state, positions)
        return state, teacher.head(state)

    def loss(tokens: Tensor) -> Tensor:
        seen = teacher.look(tokens)
        return _unrolled(seen, seen.raw, step)

    optimise(drafter, loss, batches(words, ROWS, LENGTH, 30), steps, 2e-3)
    return drafter


def _unrolled(
    seen: Seen, state: Tensor, step: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
) -> Tensor:
    """Draft step k at place t reads token t + k + 1 and the last state; it says token t + k + 2."""
    positions, last = torch.arange(LENGTH), LENGTH - 1
    total = torch.zeros(())
    state = state[:, :last]
    for k in range(UNROLLED):
        state, logits = step(seen.embedded[:, k + 1 :], state, positions[k:last])
        wanted = seen.greedy[:, k + 1 :]
        total = total + DECAY**k * F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        state = state[:, :-1]
    return total


def train_dflash(teacher: Teacher, shape: Shape, words: Any, steps: int) -> DFlash:
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

    optimise(drafter, loss, batches(words, ROWS, LENGTH, 40), steps, 2e-3)
    return drafter


def _starts() -> Tensor:
    return torch.randint(8, LENGTH - BLOCK - 1, (ANCHORS,)).sort().values


def _block_mask(starts: Tensor) -> Tensor:
    """Each block sees the context before its start, and itself: (all blocks, LENGTH + blocks)."""
    owner = torch.arange(ANCHORS).repeat_interleave(BLOCK + 1)
    before = torch.arange(LENGTH)[None] < starts[owner][:, None]
    return torch.cat([before, owner[:, None] == owner[None]], dim=1)
