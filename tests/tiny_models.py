"""Tiny checkpoints for tests with a real vLLM: made here in seconds, nothing is trained or loaded.

The target is a random Qwen3 of about a million parameters. The draft is its first two layers with
the same embedding and head; the target's other layers are damped, so both agree on a part of the
tokens, less and less with each position, as real drafters do. Folders are kept in `.zoo/` at the
repository root, named after this file's digest: another recipe, another folder.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

ZOO = Path(__file__).resolve().parents[1] / ".zoo"
VOCABULARY = 512
LAYERS, DEEP_LAYERS, DRAFT_LAYERS = 24, 56, 2
DAMPING = 0.47  # of all late layers together: agreement at the first position about .6
SPECIAL = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LANGUAGE = (
    "one two three four five six seven eight nine ten sum list count apple egg book coin card "
    "buys sells gives finds more less from with into then after before how many does have left"
)
WORDS = LANGUAGE.split()
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class TinyModels:
    """Folders, safetensors with tokenizer and chat template."""

    target: Path
    deep: Path  # a slower one: its steps outlast the gaps between them
    draft: Path  # for both
    misfit: Path  # a draft whose vocabulary is another one, which its config.json does not say


def tiny_models(zoo: Path = ZOO) -> TinyModels:
    """The folders, made if they are not there yet. Needs torch and transformers."""
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:10]
    root = zoo / recipe
    if not root.is_dir():
        zoo.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=zoo) as unfinished:
            _build(Path(unfinished) / recipe)
            (Path(unfinished) / recipe).rename(root)
    return TinyModels(*(root / name for name in ("target", "deep", "draft", "misfit")))


def _build(root: Path) -> None:
    tokenizer = _tokenizer()
    weights = _weights(tokenizer)
    _save(root / "draft", tokenizer, weights, DRAFT_LAYERS)
    for name, layers in (("target", LAYERS), ("deep", DEEP_LAYERS)):
        factor = DAMPING * (layers - DRAFT_LAYERS) ** -0.5
        damped = {key: value * factor if _is_late(key) else value for key, value in weights.items()}
        _save(root / name, tokenizer, damped, layers)
    shutil.copytree(root / "draft", root / "misfit")
    config = json.loads((root / "misfit" / "config.json").read_text())
    del config["vocab_size"]  # what Qwen3 has by default applies, and nobody sees it here
    (root / "misfit" / "config.json").write_text(json.dumps(config))


def _tokenizer():
    """A byte-level BPE of `VOCABULARY` tokens on a small invented language."""
    import random

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    chance = random.Random(1)
    lines = [" ".join(chance.choices(WORDS, k=12)) for _ in range(300)]
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(lines, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _model(layers: int):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(vocab_size=VOCABULARY, num_hidden_layers=layers, **SHAPE)
    return Qwen3ForCausalLM(config).float()


def _weights(tokenizer):
    """Random weights of the undamped model, which says nothing but WORDS and never ends."""
    import torch

    generator = torch.Generator().manual_seed(5)
    weights = _model(DEEP_LAYERS).state_dict()
    for name, value in weights.items():
        if "lm_head" in name:
            value.normal_(0, 1.0, generator=generator)
        elif "embed" in name:  # the last token counts most: phrases come back, as n-grams need
            value.normal_(0, 6.0, generator=generator)
        elif value.dim() == 2:
            value.normal_(0, 2.0 * value.shape[1] ** -0.5, generator=generator)
    texts = [tokenizer.decode([token]).strip() for token in range(VOCABULARY)]
    weights["lm_head.weight"][[i for i, text in enumerate(texts) if text not in WORDS]] = 0.0
    return weights


def _is_late(name: str) -> bool:
    """Outputs of the layers that the draft does not have."""
    parts = name.split(".")
    late = parts[1] == "layers" and int(parts[2]) >= DRAFT_LAYERS
    return late and parts[-2] in ("o_proj", "down_proj")


def _save(folder: Path, tokenizer, weights, layers: int) -> None:
    model = _model(layers)
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
