"""A target of its own: Gemma 4, whose assistant shares its KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.layers import Shape
from zoo.saving import LAYERS, common
from zoo.training import LENGTH, train_language_model

STEPS = 350


def make(folder: Path, used: Mapping[str, Path]) -> None:
    from transformers import Gemma4ForCausalLM

    shape = Shape()
    model = Gemma4ForCausalLM(text_config(shape.hidden, 2 * shape.hidden, LAYERS)).float()
    train_language_model(model, STEPS, seed=10)
    model.save_pretrained(folder)


def text_config(hidden: int, inner: int, layers: int, **more: Any) -> Any:
    """Sliding and full layers in turns, without Gemma's embeddings for each layer."""
    from transformers import Gemma4TextConfig

    shape = Shape()
    return Gemma4TextConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        num_global_key_value_heads=shape.kv_heads,
        head_dim=shape.head,
        global_head_dim=shape.head,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        sliding_window=LENGTH,
        layer_types=["sliding_attention", "full_attention"] * (layers // 2),
        **(common() | {"tie_word_embeddings": True} | more),
    )
