"""Configurations that the kinds share, and folders in the formats that vLLM 0.32 loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.language import BOS, EOS, PAD, VOCABULARY
from zoo.layers import Shape

LAYERS = 4  # of a target


def common() -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }


def qwen3(hidden: int, heads: int, layers: int) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=Shape().head,
        **common(),
    )
    return Qwen3ForCausalLM(config).float()


def load(folder: Path) -> Any:
    """The language model of a folder, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def drafter_config(shape: Shape) -> dict[str, Any]:
    """What the config.json of a head with layers like the target's says in any case."""
    return common() | {
        "model_type": "qwen3",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": "float32",
    }


def save(folder: Path, weights: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Weights by the names that vLLM loads, and config.json."""
    from safetensors.torch import save_file

    tensors = {name: value.contiguous().clone() for name, value in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
