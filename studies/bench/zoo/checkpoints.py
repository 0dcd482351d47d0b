"""The folders of the zoo, in the formats that vLLM 0.32 loads."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ZOO = Path(__file__).resolve().parents[3] / ".zoo"
LAYERS = 4
TARGET_STEPS, DRAFT_STEPS, HEAD_STEPS, DFLASH_STEPS = 350, 500, 300, 700
NAMES = ("target", "draft", "eagle3", "dflash", "mimo")


class Zoo(NamedTuple):
    """Folders. `mimo` is a target of its own that carries its MTP layer."""

    target: Path
    draft: Path
    eagle3: Path
    dflash: Path
    mimo: Path


def checkpoints(zoo: Path = ZOO, say: Callable[[str], None] = print) -> Zoo:
    """All folders, made if they are not there yet. Needs torch and transformers; minutes."""
    root = zoo / f"trained-{_recipe()}"
    if not root.is_dir():
        zoo.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=zoo) as unfinished:
            _build(Path(unfinished) / root.name, say)
            (Path(unfinished) / root.name).rename(root)
    return Zoo(*(root / name for name in NAMES))


def _recipe() -> str:
    """Digest of this folder's source: another recipe, another folder."""
    content = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(content).hexdigest()[:10]


def _build(root: Path, say: Callable[[str], None]) -> None:
    import torch

    from zoo.language import tokenizer
    from zoo.layers import Shape
    from zoo.training import (
        Teacher,
        train_dflash,
        train_eagle3,
        train_language_model,
        train_mtp,
    )

    words, shape = tokenizer(), Shape()
    for name, make, steps in (
        ("target", _qwen3, TARGET_STEPS),
        ("draft", _small_qwen3, DRAFT_STEPS),
        ("mimo", _qwen2, TARGET_STEPS),
    ):
        say(f"training {name}")
        torch.manual_seed(0)
        model = make(shape)
        train_language_model(model, words, steps, seed=10)
        model.save_pretrained(root / name)
        words.save_pretrained(root / name)
    for name, owner, train, steps in (
        ("eagle3", "target", train_eagle3, HEAD_STEPS),
        ("dflash", "target", train_dflash, DFLASH_STEPS),
        ("mimo", "mimo", train_mtp, HEAD_STEPS),
    ):
        say(f"training {name}'s drafter")
        torch.manual_seed(0)
        drafter = train(Teacher(_load(root / owner)), shape, words, steps)
        _save(root / name, name, drafter.state_dict(), shape)
        words.save_pretrained(root / name)


def _load(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def _common() -> dict[str, Any]:
    from zoo.language import BOS, EOS, PAD, VOCABULARY

    return {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }


def _qwen3(shape: Any, hidden: int | None = None, heads: int | None = None, layers: int = LAYERS):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        hidden_size=hidden or shape.hidden,
        intermediate_size=3 * (hidden or shape.hidden),
        num_hidden_layers=layers,
        num_attention_heads=heads or shape.heads,
        num_key_value_heads=(heads or shape.heads) // 2,
        head_dim=shape.head,
        **_common(),
    )
    return Qwen3ForCausalLM(config).float()


def _small_qwen3(shape: Any):
    return _qwen3(shape, hidden=64, heads=2, layers=1)


def _qwen2(shape: Any):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=LAYERS,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        **_common(),
    )
    return Qwen2ForCausalLM(config).float()


def _save(folder: Path, kind: str, weights: Mapping[str, Any], shape: Any) -> None:
    """A drafter's weights and config.json; MiMo's layer goes into its target's checkpoint."""
    from safetensors.torch import load_file, save_file

    folder.mkdir(exist_ok=True)
    tensors = {name: value.contiguous().clone() for name, value in weights.items()}
    if kind == "mimo":
        config = json.loads((folder / "config.json").read_text())
        config |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
        own = {f"model.mtp_layers.0.{name}": value for name, value in tensors.items()}
        tensors = load_file(folder / "model.safetensors") | own
    else:
        config = _drafter_config(kind, shape)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def _drafter_config(kind: str, shape: Any) -> dict[str, Any]:
    from zoo.language import MASK, VOCABULARY
    from zoo.training import BLOCK, SOURCES

    config = _common() | {
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
    if kind == "eagle3":
        return config | {
            "architectures": ["Eagle3Qwen3ForCausalLM"],
            "num_hidden_layers": 1,
            "draft_vocab_size": VOCABULARY,
            "target_hidden_size": shape.hidden,
            "norm_before_residual": False,
            "eagle_aux_hidden_state_layer_ids": list(SOURCES),
        }
    return config | {
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
