"""Which method a checkpoint drafts for, and what its own config.json says about a target."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest
from checkpoint_samples import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import ConfigurationError
from autotune.methods import all_methods, get_method
from autotune.methods._families import MTP_ARCHITECTURES, MTP_TYPES
from autotune.models.candidates import build_spaces
from autotune.models.catalog import resolve_model
from autotune.models.facts import KINDS, ModelFacts, parse_config, read_facts
from autotune.models.recognise import method_of, method_of_facts

ALGORITHM = {"speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]}}
# Shapes of published checkpoints, cut to what tells them apart.
DRAFTERS = [
    # the speculators format (vLLM: transformers_utils/configs/speculators)
    ({"speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"],
      "transformer_layer_config": {"model_type": "llama", "num_hidden_layers": 1},
      "draft_vocab_size": 32000, **ALGORITHM}, "eagle3"),
    ({"speculators_model_type": "peagle", "mask_token_id": 7, **ALGORITHM}, "peagle"),
    ({"speculators_model_type": "dflash", "block_size": 8, "mask_token_id": 7}, "dflash"),
    ({"speculators_model_type": "dflash2", "block_size": 8, "mask_token_id": 7}, "dflash"),
    # drafters of a GLM target in this format are "qwen3", as their backbone is
    ({"speculators_model_type": "dspark", "model_type": "qwen3", "block_size": 8,
      "architectures": ["DSparkDraftModel"]}, "dspark"),
    # architectures of vLLM's registry
    ({"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}, "eagle3"),
    ({"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"}, "eagle3"),
    ({"architectures": ["EagleLlamaForCausalLM"], "model_type": "eagle"}, "eagle"),
    ({"architectures": ["EagleMistralLarge3ForCausalLM"]}, "eagle"),
    ({"architectures": ["EagleDeepSeekMTPModel"], "model_type": "eagle"}, "eagle"),
    ({"architectures": ["PEagleDraftModel"], "pard_token": 3}, "peagle"),
    ({"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 16}, "dflash"),
    ({"architectures": ["DFlash2DraftModel"], "model_type": "qwen3",
      "dflash_config": {"block_size": 16, "mask_token_id": 201818}}, "dflash"),
    ({"architectures": ["MuseGlimmerAssistantModel"], "model_type": "muse_glimmer_assistant",
      "block_size": 16, "mask_token_id": 201818}, "dflash"),
    ({"architectures": ["LiLiCorrDraftModel"]}, "dflash"),
    ({"architectures": ["DFlashLagunaForCausalLM"]}, "dflash"),
    ({"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3_5_text", "block_size": 7,
      "mask_token_id": 3}, "dspark"),
    ({"architectures": ["Gemma4DSparkModel"], "block_size": 7}, "dspark"),
    ({"architectures": ["K3DSparkModel"]}, "dspark"),
    ({"architectures": ["Qwen3OmniDSparkModel"], "block_size": 7}, "dspark"),
    # a DSpark head that carries a dflash_config
    ({"architectures": ["DSparkDraftModel"], "model_type": "qwen3", "block_size": 7,
      "dflash_config": {"mask_token_id": 3}}, "dspark"),
    ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
      "dflash_config": {"mask_token_id": 3}}, "dflash"),
    # heads that keep the plain architecture
    ({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1,
      "draft_vocab_size": 32000}, "eagle3"),
    ({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1,
      "eagle_config": {"use_aux_hidden_state": False}}, "eagle3"),
    ({"architectures": ["LlamaForCausalLMEagle3"], "ptd_token_id": 200000}, "peagle"),
    # Medusa: the first checkpoints have neither model_type nor architectures
    ({"medusa_num_heads": 3, "medusa_num_layers": 1}, "medusa"),
    ({"model_type": "medusa", "num_heads": 5}, "medusa"),
    ({"architectures": ["MedusaModel"], "model_type": "medusa"}, "medusa"),
    ({"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator"},
     "mlp_speculator"),
    # Gemma 4 assistants
    ({"model_type": "gemma4_assistant", "architectures": ["Gemma4AssistantForCausalLM"],
      "backbone_hidden_size": 5376}, "gemma4_mtp"),
    ({"model_type": "gemma4_unified_assistant"}, "gemma4_mtp"),
    # separate MTP modules
    ({"model_type": "minimax_m3_mtp", "architectures": ["MiniMaxM3MTP"]}, "mtp"),
    ({"model_type": "deepseek_mtp", "architectures": ["DeepSeekMTPModel"]}, "mtp"),
    # language models
    ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 28,
      "pard_token": 151670}, "pard"),
    ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 28},
     "draft_model"),
    ({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 16,
      "quantization_config": {"quant_method": "fp8"}}, "draft_model"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "method"), DRAFTERS, ids=[f"{m}-{i}" for i, (_, m) in enumerate(DRAFTERS)]
)
def test_drafters_are_recognised(tmp_path, config, method):
    path = checkpoint(tmp_path / "d", config)
    assert method_of(path) == method
    if not get_method(method).refused:  # and what recognises it does not then refuse it
        target = ModelFacts(
            source="org/target",
            model_type="gemma4" if method == "gemma4_mtp" else None,
            hidden_size=config.get("backbone_hidden_size"),
        )
        assert get_method(method).why_not(target, read_facts(path)) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "names no architecture"),
        ({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}, "EAGLE head or a small"),
        ({"speculators_model_type": "eagle"}, "no speculators checkpoint of kind 'eagle'"),
        ({"speculators_model_type": "mtp"}, "no speculators checkpoint of kind 'mtp'"),
        ({"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
          "num_hidden_layers": 24}, "as MTP modules"),
        ({"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe"}, "as MTP modules"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_an_error(tmp_path, config, message):
    with pytest.raises(ConfigurationError) as caught:
        method_of(checkpoint(tmp_path / "d", config))
    assert message in caught.value.message


def test_an_unread_drafter_is_an_error(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigurationError) as caught:
        method_of("nobody/no-such-drafter")
    assert "offline" in caught.value.message
    assert "METHOD=" in caught.value.hint


def test_a_format_that_vllm_does_not_read_is_refused_by_name_too(tmp_path):
    facts = read_facts(checkpoint(tmp_path, {"speculators_model_type": "eagle"}))
    reason = get_method("eagle").why_not(ModelFacts(source="org/m"), facts)
    assert "no speculators checkpoint of kind 'eagle'" in reason


KEYS = (
    "architectures", "model_type", "speculators_model_type", "speculators_config", "text_config",
    "transformer_layer_config", "dflash_config", "eagle_config", "mtp_config", "pard_token",
    "quantization_config", "block_size", "dspark_block_size", "sample_from_anchor", "num_heads",
    "medusa_num_heads", "draft_vocab_size", "num_hidden_layers", "num_nextn_predict_layers",
    "target_hidden_size", "eagle_aux_hidden_state_layer_ids", "proposal_methods", "verifier",
    "name_or_path", "quant_method", "speculative_tokens",
)  # fmt: skip
WORDS = ("eagle", "EagleLlamaForCausalLM", "Qwen3ForCausalLM", "dflash", "qwen3_5", "mimo_mtp", "")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 99) | st.floats(allow_nan=False)
    | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=6,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8))
def test_any_config_is_recognised_or_refused(config):
    """A damaged file is a ConfigurationError, never a traceback; no method fails on its facts."""
    try:
        facts = parse_config(config, "org/d", Path("config.json"))
        name = method_of_facts(facts)
    except ConfigurationError:
        return
    assert name in {method.name for method in all_methods()}
    target = ModelFacts(source="org/m")
    for method in all_methods():
        assert method.why_not(target, facts) != ""
        allowed, refused = method.allowed(range(1, 9), target, facts)
        assert sorted([*allowed, *refused]) == list(range(1, 9))


# ----------------------------------------------------------------------------------- targets


@pytest.mark.parametrize(
    ("config", "n_predict"),
    [
        ({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1}, 1),
        ({"model_type": "deepseek_v32", "num_nextn_predict_layers": 1}, 1),
        ({"model_type": "glm_moe_dsa", "num_nextn_predict_layers": 1}, 1),
        ({"model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"],
          "num_nextn_predict_layers": 1}, 1),
        ({"model_type": "glm5_next", "text_config": {"num_nextn_predict_layers": 3}}, 3),
        ({"model_type": "qwen3_next", "num_nextn_predict_layers": 1}, 1),
        ({"model_type": "qwen3_5_moe", "text_config": {"mtp_num_hidden_layers": 1}}, 1),
        ({"model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1}, 1),
        ({"model_type": "qwen4_exp", "text_config": {"mtp_num_hidden_layers": 2}}, 2),
        ({"model_type": "kimi_k3", "text_config": {"num_nextn_predict_layers": 1}}, 1),
        ({"model_type": "mimo", "architectures": ["MiMoForCausalLM"],
          "num_nextn_predict_layers": 1}, 1),
        ({"architectures": ["MiMoV2FlashForCausalLM"], "num_nextn_predict_layers": 3}, 1),
        ({"model_type": "ernie4_5_moe", "num_nextn_predict_layers": 1}, 1),
        ({"model_type": "exaone_moe", "num_nextn_predict_layers": 1}, 1),
        ({"model_type": "nemotron_h", "num_nextn_predict_layers": 1}, 1),
        ({"model_type": "longcat_flash"}, 1),
        ({"model_type": "step3p5", "num_nextn_predict_layers": 3}, 3),
        ({"model_type": "minimax_m3_vl", "text_config": {"num_mtp_modules": 3}}, 3),
        ({"model_type": "inkling_model", "mtp_config": {"num_nextn_predict_layers": 2}}, 2),
        ({"model_type": "hy_v4", "num_nextn_predict_layers": 1}, 1),
        ({"architectures": ["BailingMoeV3ForCausalLM"], "num_nextn_predict_layers": 1}, 1),
    ],
)  # fmt: skip
def test_native_mtp_of_every_family(tmp_path, config, n_predict):
    path = checkpoint(tmp_path / "m", {**config, "quantization_config": {"quant_method": "fp8"}})
    facts = read_facts(path)
    assert (facts.n_predict, facts.quantization) == (n_predict, "fp8")
    spaces, _, _ = build_spaces(resolve_model(path), methods=["mtp"], lengths=range(1, 5))
    allowed = tuple(n for n in range(1, 5) if n <= n_predict or n % n_predict == 0)
    assert spaces[0].lengths == allowed
    assert spaces[0].drafter is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "nemotron_h", "num_nextn_predict_layers": 0}, "names no multi-token"),
        ({"model_type": "qwen3_5", "text_config": {}}, "names no multi-token"),
        ({"model_type": "kimi_k2", "num_nextn_predict_layers": 1}, "no MTP modules of kimi_k2"),
        ({"model_type": "deepseek_v41", "num_nextn_predict_layers": 1}, "DSpark stages"),
    ],
)
def test_targets_without_mtp(tmp_path, config, reason):
    path = checkpoint(tmp_path / "m", config)
    _, skipped, _ = build_spaces(resolve_model(path))
    assert reason in next(skip.reason for skip in skipped if skip.method == "mtp")


def test_a_family_that_only_a_newer_vllm_runs_can_be_forced(tmp_path):
    path = checkpoint(tmp_path / "m", {"model_type": "newer", "num_nextn_predict_layers": 1})
    spaces, _, _ = build_spaces(resolve_model(path), drafters={"mtp": path})
    assert next(space.drafter for space in spaces if space.method == "mtp") == path


@pytest.mark.parametrize("method", ["compressed-tensors", "quark", "mxfp8"])
def test_quantisation_is_read(tmp_path, method):
    nested = {"text_config": {"quantization_config": {"quant_method": method}}}
    assert read_facts(checkpoint(tmp_path / "n", nested)).quantization == method
    assert read_facts(checkpoint(tmp_path / "p", {})).quantization is None


def test_deepseek_v4_with_stages_and_vllm_that_wants_the_whole_block(tmp_path):
    """vLLM 0.26 and 0.27 refuse N below dspark_block_size; 0.28 does not."""
    from autotune.machine.environment import EngineInfo

    path = checkpoint(tmp_path / "m", {"model_type": "deepseek_v4", "dspark_block_size": 5})
    for version, expected in [("0.26.0", (5,)), ("0.27.1", (5,)), ("0.28.0", (1, 3, 5))]:
        engine = EngineInfo(python="p", vllm=version, platform="rocm")
        spaces, skipped, _ = build_spaces(
            resolve_model(path), methods=["dspark"], environment=engine
        )
        assert spaces[0].lengths == expected
        assert any("at most 5" in skip.reason for skip in skipped)


@pytest.mark.parametrize(
    ("method", "version"), [("dflash", "0.19.1"), ("gemma4_mtp", "0.20.2"), ("dspark", "0.24.0")]
)
def test_a_vllm_that_does_not_have_the_method(method, version):
    from autotune.machine.environment import EngineInfo

    reason = get_method(method).unavailable(EngineInfo(python="p", vllm=version))
    assert f"vLLM {version} does not have it yet" in reason


# ------------------------------------------------------------------- against the installed vLLM


def rewritten() -> tuple[set[str], set[str]]:
    """(model types, architectures) that hf_config_override compares with, read from its source."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    source = (Path(spec.origin).parent / "config" / "speculative.py").read_text()
    function = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "hf_config_override"
    )
    names = {
        constant.value
        for compare in ast.walk(function)
        if isinstance(compare, ast.Compare)
        for constant in ast.walk(compare)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    }
    types = {name for name in names if name.islower() and not name.endswith("_mtp")}
    return types, {name for name in names if not name.islower() and "MTP" not in name}


def test_families_are_those_of_vllm():
    """Fails when vLLM learns a family that we would take for an ordinary language model."""
    types, architectures = rewritten()
    assert types - {"model_type", "quantization_config"} == MTP_TYPES  # keys that it asks for
    assert architectures - {"MistralLarge3ForCausalLM"} == MTP_ARCHITECTURES


def test_every_drafter_of_vllms_registry_has_a_kind():
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    path = Path(spec.origin).parent / "model_executor" / "models" / "registry.py"
    table = next(
        node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "_SPECULATIVE_DECODING_MODELS"
    )
    names = {key.value for key in table.keys} - {"ExtractHiddenStatesModel"}
    unknown = {name for name in names if not any(part in name.lower() for part in KINDS)}
    assert len(names) > 60
    assert not unknown
