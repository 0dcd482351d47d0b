"""What the installed vLLM's own configuration check says to every method and option.

Nothing is loaded: made-up config.json files, one process that imports vLLM and checks them all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from vllm_samples import ENVIRONMENT, NEEDS_VLLM

from autotune.methods import all_methods, get_method

pytestmark = NEEDS_VLLM

BASE = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64,
    "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
    "num_hidden_layers": 4, "vocab_size": 512, "max_position_embeddings": 1024,
}  # fmt: skip
HEAD = {"model_type": "llama", "num_hidden_layers": 1}
EAGLE3 = {**HEAD, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 256}
CHECKPOINTS = {
    "target": {},
    "mimo": {"model_type": "qwen2", "architectures": ["MiMoForCausalLM"],
             "num_nextn_predict_layers": 1},
    "draft_model": {"num_hidden_layers": 2},
    "other": {"num_hidden_layers": 2, "vocab_size": 500},
    "pard": {"num_hidden_layers": 2, "pard_token": 5},
    "eagle": {**HEAD, "architectures": ["LlamaForCausalLM"]},
    "eagle3": EAGLE3,
    "peagle": {**EAGLE3, "ptd_token_id": 5},
    "dflash": {"architectures": ["DFlashDraftModel"], "num_hidden_layers": 1, "block_size": 8,
               "dflash_config": {"mask_token_id": 5, "target_layer_ids": [1, 2]}},
    "dspark": {"architectures": ["Qwen3DSparkModel"], "num_hidden_layers": 1, "block_size": 8,
               "mask_token_id": 5, "target_layer_ids": [1, 2], "markov_rank": 4,
               "markov_head_type": "vanilla"},
    "medusa": {"model_type": "medusa", "architectures": ["MedusaModel"], "num_heads": 4},
}  # fmt: skip
CHECK = """
import json, logging, sys
from vllm.engine.arg_utils import EngineArgs
logging.disable(logging.CRITICAL)
said = []
for target, config in json.load(sys.stdin):
    try:
        EngineArgs(model=target, speculative_config=config, skip_tokenizer_init=True,
                   enforce_eager=True, max_model_len=512).create_engine_config()
        said.append(None)
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
print("said " + json.dumps(said))
"""
ELSEWHERE = {"mlp_speculator", "gemma4_mtp", "suffix"}  # refused; needs weights; needs a package


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkpoints")
    for name, config in CHECKPOINTS.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps({**BASE, **config}))
    return root


@pytest.fixture(scope="module")
def refusals(folders):
    """vLLM's words for each (target, speculative_config); None where it agrees."""
    questions = {**accepted(folders), **refused(folders)}
    done = subprocess.run(
        [sys.executable, "-c", CHECK], input=json.dumps(list(questions.values())),
        capture_output=True, text=True, timeout=300, env={**os.environ, **ENVIRONMENT}, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("said ")]
    assert lines, done.stderr[-2000:]
    return dict(zip(questions, json.loads(lines[-1].removeprefix("said ")), strict=True))


def accepted(folders):
    """Every method, and every value that is worth trying, by a name."""
    found = {}
    for method in all_methods():
        if method.name in ELSEWHERE:
            continue
        target = str(folders / ("mimo" if method.name == "mtp" else "target"))
        drafter = str(folders / method.name) if method.needs_drafter else None
        found[method.name] = (target, method.speculative_config(2, drafter))
        lookup = {"prompt_lookup_min": 1, "prompt_lookup_max": 8} if "ngram" in method.name else {}
        for knob in method.knobs:
            for value in knob.values:
                changed = method.with_options({**lookup, knob.name: value})
                config = changed.speculative_config(2, drafter)
                found[f"{method.name}.{knob.name}={value}"] = (target, config)
    other = get_method("draft_model").with_options({"use_heterogeneous_vocab": True})
    config = other.speculative_config(2, str(folders / "other"))
    found["another vocabulary"] = (str(folders / "target"), config)
    return found


def refused(folders):
    """What we refuse before a start, because vLLM does."""
    target, other = str(folders / "target"), str(folders / "other")
    ngram = {"method": "ngram", "num_speculative_tokens": 2}
    draft = {"method": "draft_model", "model": other, "num_speculative_tokens": 2}
    return {
        "vocabulary": (target, draft),
        "greedy only": (target, {**draft, "use_heterogeneous_vocab": True,
                                 "draft_sample_method": "probabilistic"}),
        "lookup": (target, {**ngram, "prompt_lookup_min": 2, "prompt_lookup_max": 1}),
        "unknown key": (target, {**ngram, "surprise": 1}),
        "unknown word": (target, {**ngram, "rejection_sample_method": "never"}),
    }  # fmt: skip


def test_every_method_and_option_is_taken(refusals, folders):
    """DSpark apart: on a CPU vLLM refuses it, and for that reason alone."""
    said = {name: refusals[name] for name in accepted(folders)}
    wrong = {
        name: text
        for name, text in said.items()
        if text is not None and not name.startswith("dspark")
    }
    assert not wrong
    dspark = [text for name, text in said.items() if name.startswith("dspark")]
    assert dspark
    # the made-up vocabulary of 512 is smaller than one of the values
    assert all("dspark speculative decoding" in text or "between 1 and the draft" in text
               for text in dspark if text is not None)  # fmt: skip


def test_what_we_refuse_vllm_refuses(refusals, folders):
    said = {name: refusals[name] for name in refused(folders)}
    assert all(said.values()), said
    assert "same vocabulary size" in said["vocabulary"]
    assert "greedy" in said["greedy only"]
    assert "prompt_lookup_max" in said["lookup"]
