"""What training a target on the stories and drafters on what it would say next have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.language import batches, tokenizer

ROWS, LENGTH = 8, 128  # of one batch of tokens
SOURCES = (1, 2, 3)  # the target's hidden states after so many layers, for eagle3 and dflash
UNROLLED = 3  # draft steps that sequential heads are trained on
DECAY = 0.7  # of a draft step's weight in the loss over the one before


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


def train_language_model(model: Any, steps: int, seed: int) -> None:
    def loss(tokens: Tensor) -> Tensor:
        return model(input_ids=tokens, labels=tokens).loss

    optimise(model, loss, batches(tokenizer(), 2 * ROWS, LENGTH, seed), steps, 3e-3)


def unrolled(
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
