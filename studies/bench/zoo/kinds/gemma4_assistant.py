"""Gemma 4's assistant: layers with queries only, which read the target's keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.kinds.gemma4 import text_config
from zoo.language import BOS, EOS, PAD, batches, tokenizer
from zoo.layers import Shape
from zoo.training import DECAY, LENGTH, ROWS, UNROLLED, optimise

STEPS = 300
SEEN = LENGTH - 1  # places of a sequence that are followed by a token


def make(folder: Path, used: Mapping[str, Path]) -> None:
    from transformers import Gemma4ForCausalLM

    teacher = Gemma4ForCausalLM.from_pretrained(used["gemma4"], dtype=torch.float32).eval()
    drafter = assistant(Shape())

    def loss(tokens: Tensor) -> Tensor:
        return _unrolled(drafter, *look(teacher, tokens))

    optimise(drafter, loss, batches(tokenizer(), ROWS, LENGTH, 80), STEPS, 3e-3)
    del drafter.create_attention_masks
    drafter.save_pretrained(folder)


def assistant(shape: Shape) -> Any:
    """Untrained; its attention is causal whatever the length of the sequences."""
    from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM

    text = text_config(shape.hidden // 2, shape.hidden, 2, num_kv_shared_layers=2)
    config = Gemma4AssistantConfig(
        text_config=text.to_dict(),
        backbone_hidden_size=shape.hidden,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    drafter = Gemma4AssistantForCausalLM(config).float()
    drafter.config._attn_implementation = "sdpa"
    least = torch.finfo(torch.float32).min
    causal = torch.full((SEEN, SEEN), least).triu(1).expand(ROWS, 1, -1, -1)
    masks = {"full_attention": causal, "sliding_attention": causal}
    drafter.create_attention_masks = lambda *_, **__: masks  # by itself it masks one token only
    return drafter


@torch.no_grad()
def look(teacher: Any, tokens: Tensor) -> tuple[Tensor, Tensor, dict[str, Any], Tensor]:
    """(embedded next tokens, hidden states, keys and values by layer type, greedy tokens)."""
    out = teacher.model(input_ids=tokens, return_shared_kv_states=True)
    shared = {
        kind: (keys[:, :, :SEEN], values[:, :, :SEEN])
        for kind, (keys, values) in dict(out.shared_kv_states).items()
    }
    embedded = teacher.model.embed_tokens(tokens)[:, 1:]
    greedy = teacher(input_ids=tokens).logits.argmax(-1)
    return embedded, out.last_hidden_state[:, :SEEN], shared, greedy


def _unrolled(
    drafter: Any, embedded: Tensor, state: Tensor, shared: dict[str, Any], greedy: Tensor
) -> Tensor:
    """Every draft step stays at its place and reads one token later."""
    places = torch.arange(SEEN).expand(ROWS, -1)
    total = torch.zeros(())
    for k in range(UNROLLED):
        left = SEEN - k
        tokens = F.pad(embedded[:, k:], (0, 0, 0, k))
        out = drafter(
            inputs_embeds=torch.cat([tokens, state], dim=-1),
            position_ids=places,
            shared_kv_states=shared,
        )
        logits, wanted = out.logits[:, :left].flatten(0, 1), greedy[:, 1 + k :].flatten()
        total = total + DECAY**k * F.cross_entropy(logits, wanted)
        state = out.last_hidden_state
    return total
