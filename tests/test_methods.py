"""Methods: names against vLLM's own list, rules for N, speculative_config."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest
from checkpoint_samples import checkpoint
from click.testing import CliRunner

from autotune.cli.methods import command
from autotune.errors import ConfigurationError
from autotune.machine.environment import EngineInfo
from autotune.methods import NOT_OFFERED, all_methods, get_method
from autotune.models.facts import ModelFacts, read_facts

MODEL = ModelFacts(source="org/model")
NAMES = {
    "dflash", "draft_model", "dspark", "eagle", "eagle3", "gemma4_mtp", "medusa",
    "mlp_speculator", "mtp", "ngram", "ngram_gpu", "pard", "peagle", "suffix",
}  # fmt: skip


def drafter(**facts):
    return ModelFacts(source="org/drafter", **facts)


# ------------------------------------------------------------------------------------- names


def vllm_methods() -> set[str]:
    """The members of vLLM's SpeculativeMethod, read from its source without importing it."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    source = (Path(spec.origin).parent / "config" / "speculative.py").read_text()
    literals = {
        node.targets[0].id: node.value.slice
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)
    }

    def members(node) -> set[str]:
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        return {
            name
            for part in parts
            for name in (members(literals[part.id]) if isinstance(part, ast.Name) else [part.value])
        }

    return members(literals["SpeculativeMethod"])


def unexplained(known: set[str]) -> set[str]:
    """Methods of vLLM that we neither offer nor name; vLLM itself calls `..._mtp` "mtp"."""
    ours = {method.vllm_method for method in all_methods()}
    return {name for name in known - ours - set(NOT_OFFERED) if not name.endswith("_mtp")}


def test_every_method_of_vllm_is_offered_or_explained():
    unknown = unexplained(vllm_methods())
    assert not unknown, f"vLLM knows {unknown}: add a file in autotune/methods or to NOT_OFFERED"


def test_a_new_method_of_vllm_would_be_noticed():
    assert unexplained({*vllm_methods(), "telepathy", "new_mtp"}) == {"telepathy"}


def test_what_is_not_offered_exists():
    assert set(NOT_OFFERED) <= vllm_methods()


def test_vllm_knows_the_methods_we_name():
    assert {method.vllm_method for method in all_methods()} <= vllm_methods()


def test_catalogue_names():
    assert {method.name for method in all_methods()} == NAMES


@pytest.mark.parametrize(
    ("typed", "suggestion"),
    [("eagle-3", "eagle3"), ("DFlash", "dflash"), ("ngrm", "ngram"), ("qwen3_next_mtp", "mtp")],
)
def test_unknown_name_gets_a_suggestion(typed, suggestion):
    with pytest.raises(ConfigurationError) as caught:
        get_method(typed)
    assert f"did you mean {suggestion}" in caught.value.hint


def test_names_not_offered_say_why():
    with pytest.raises(ConfigurationError, match="hidden states"):
        get_method("extract_hidden_states")


# -------------------------------------------------------------------------- speculative_config


@pytest.mark.parametrize("method", all_methods(), ids=lambda method: method.name)
def test_config_names_everything_explicitly(method):
    path = "org/drafter" if method.takes_drafter else None
    config = method.speculative_config(3, path)
    assert config["method"] == method.vllm_method
    assert config["num_speculative_tokens"] == 3
    assert config.get("model") == path
    assert json.loads(json.dumps(config)) == config
    base = method.base_config(path)
    assert "num_speculative_tokens" not in base
    base["changed"] = True  # a copy: the method itself stays as it is
    assert "changed" not in method.base_config(path)


def test_particular_configs():
    assert get_method("mtp").speculative_config(2) == {
        "method": "mtp",
        "num_speculative_tokens": 2,
    }
    assert get_method("gemma4_mtp").speculative_config(4, "g/a")["method"] == "mtp"
    pard = get_method("pard").speculative_config(8, "org/p")
    assert (pard["method"], pard["parallel_drafting"]) == ("draft_model", True)
    assert get_method("ngram").speculative_config(5)["prompt_lookup_max"] == 4
    suffix = get_method("suffix").speculative_config(8)  # no answers of earlier requests
    assert suffix["suffix_decoding_max_cached_requests"] == 0


def test_what_cannot_be_switched_live():
    static = {method.name for method in all_methods() if not method.live_n}
    dies = {"pard", "medusa", "suffix"}
    not_tried = {"dspark", "mlp_speculator", "ngram_gpu", "peagle"}
    assert static == dies | not_tried


# ------------------------------------------------------------------------------- rules for N


def test_n_above_n_predict_must_be_a_multiple():  # vLLM refuses 5 with n_predict=3
    model = ModelFacts(source="org/m", n_predict=3)
    allowed, refused = get_method("mtp").allowed(range(1, 10), model, None)
    assert allowed == (1, 2, 3, 6, 9)
    assert sorted(refused) == [4, 5, 7, 8]
    assert "n_predict=3" in refused[5]


def test_a_drafters_own_n_predict_counts_not_the_models():
    model = ModelFacts(source="org/m", n_predict=3)
    allowed, _ = get_method("mtp").allowed(range(1, 5), model, drafter(n_predict=1))
    assert allowed == (1, 2, 3, 4)
    allowed, _ = get_method("eagle3").allowed(range(1, 5), model, drafter())
    assert allowed == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("method", "facts", "largest"),
    [
        ("dflash", {"block_size": 16, "speculative_tokens": 15}, 15),
        ("dflash", {"block_size": 8, "speculative_tokens": 8}, 7),  # saved before the fix
        ("dflash", {"speculative_tokens": 7}, 7),
        ("dspark", {"block_size": 5}, 5),
        ("dspark", {"block_size": 8, "sample_from_anchor": False}, 7),
        ("dspark", {"block_size": 8, "sample_from_anchor": True}, 8),
        ("medusa", {"num_heads": 4}, 4),
    ],
)
def test_largest_n(method, facts, largest):
    allowed, refused = get_method(method).allowed(range(1, 21), MODEL, drafter(**facts))
    assert allowed == tuple(range(1, largest + 1))
    assert refused[largest + 1]


@pytest.mark.parametrize(
    "method", [m for m in all_methods() if not m.refused], ids=lambda method: method.name
)
def test_unknown_facts_forbid_nothing(method):
    unknown = ModelFacts(source="org/x", unknown="offline")
    assert method.why_not(unknown, unknown if method.takes_drafter else None) is None
    allowed, refused = method.allowed((8, 1, 1), unknown, unknown)
    assert (allowed, refused) == ((1, 8), {})


def test_qwen3_omni_needs_the_block_size_itself():
    model = ModelFacts(source="org/omni", model_type="qwen3_omni_moe")
    allowed, refused = get_method("dspark").allowed(range(1, 9), model, drafter(block_size=7))
    assert allowed == (7,)
    assert 8 in refused


# ---------------------------------------------------------------------------------- why not


@pytest.mark.parametrize(
    ("method", "model", "draft", "reason"),
    [
        ("mtp", {"model_type": "qwen3"}, None, "no multi-token-prediction layers"),
        ("mtp", {"model_type": "gemma4"}, None, "gemma4_mtp"),
        ("mtp", {"model_type": "deepseek_v41", "n_predict": 1}, None, "DSpark"),
        ("gemma4_mtp", {"model_type": "qwen3"}, {}, "only for Gemma 4"),
        ("gemma4_mtp", {}, {"model_type": "qwen3"}, "no Gemma 4 assistant"),
        ("gemma4_mtp", {"hidden_size": 64}, {"target_hidden_size": 32}, "hidden size 32"),
        ("eagle3", {}, None, "no drafter is known"),
        ("eagle3", {"hidden_size": 64}, {"target_hidden_size": 128}, "hidden size 128"),
        ("eagle3", {}, {"speculators_type": "dflash"}, "another kind (dflash)"),
        ("eagle3", {}, {"speculators_type": "peagle"}, "P-EAGLE"),
        ("eagle", {"hidden_size": 64}, {"hidden_size": 32}, "hidden sizes differ"),
        ("dflash", {}, {"architectures": ("Qwen3DSparkModel",)}, "another kind"),
        ("dflash", {}, {"sample_from_anchor": True}, "anchor"),
        ("dspark", {}, {"architectures": ("DFlashDraftModel",)}, "another kind"),
        ("dspark", {}, {"architectures": ("Qwen3ForCausalLM",)}, "no DSpark drafter"),
        ("draft_model", {"vocab_size": 512}, {"vocab_size": 500}, "vocabulary sizes differ"),
        ("draft_model", {}, {"architectures": ("LlamaForCausalLMEagle3",)}, "no language model"),
        ("draft_model", {}, {"model_type": "qwen3_5"}, "as MTP modules"),
        ("pard", {}, {"vocab_size": 5}, "pard_token"),
        ("medusa", {"hidden_size": 64}, {"hidden_size": 32}, "hidden sizes differ"),
        ("mlp_speculator", {}, {}, "registry"),
    ],
)
def test_why_not(method, model, draft, reason):
    facts = ModelFacts(source="org/m", **model)
    assert reason in get_method(method).why_not(facts, None if draft is None else drafter(**draft))


def test_deepseek_v4_carries_its_dspark_stages():
    model = ModelFacts(source="org/v4", model_type="deepseek_v4", dspark_inside=True, block_size=5)
    method = get_method("dspark")
    assert method.why_not(model, None) is None
    assert method.allowed(range(1, 8), model, None)[0] == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("path", ["/drafts/my-EAGLE3/final", "/x/dflash-runs/small", "a/eagle-1b"])
def test_paths_that_vllm_would_take_for_another_method(path):
    draft = ModelFacts(source=path)
    assert "another method" in get_method("draft_model").why_not(MODEL, draft)
    assert get_method("eagle3").why_not(MODEL, draft) is None
    for name in ("ngram", "ngram_gpu", "suffix"):  # vLLM looks at no path for these
        assert get_method(name).why_not(draft, None) is None
    native = ModelFacts(source=path, n_predict=1)
    assert "another method" in get_method("mtp").why_not(native, None)


def test_what_an_engine_lacks():
    cpu = EngineInfo(python="p", platform="cpu")
    rocm = EngineInfo(python="p", platform="rocm", packages={"arctic_inference"})
    suffix, dspark = get_method("suffix"), get_method("dspark")
    assert "pip install arctic-inference" in suffix.unavailable(cpu)
    assert suffix.unavailable(rocm) is suffix.unavailable(None) is None
    assert "CPU" in dspark.unavailable(cpu)
    assert dspark.unavailable(rocm) is None


# -------------------------------------------------------------------------------- ModelFacts


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"text_config": {"mtp_num_hidden_layers": 1, "vocab_size": 9}}, {"n_predict": 1}),
        ({"num_nextn_predict_layers": 0}, {"n_predict": 0}),
        ({"architectures": ["MiMoV2ForCausalLM"], "num_nextn_predict_layers": 3}, {"n_predict": 1}),
        ({"model_type": "gemma4_assistant", "backbone_hidden_size": 8},
         {"n_predict": 1, "target_hidden_size": 8}),
        ({"model_type": "longcat_flash"}, {"n_predict": 1}),
        ({"dflash_config": {"block_size": 16}, "block_size": 4}, {"block_size": 16}),
        ({"dspark_block_size": 5}, {"block_size": 5, "sample_from_anchor": None}),
        ({"model_type": "deepseek_v4", "dspark_block_size": 5}, {"dspark_inside": True}),
        ({"speculators_model_type": "dspark", "block_size": 8},
         {"sample_from_anchor": False, "kind": "dspark"}),
        ({"speculators_model_type": "eagle3", "transformer_layer_config": {"vocab_size": 7},
          "speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]}},
         {"speculative_tokens": 5, "vocab_size": 7, "kind": "eagle3"}),
        ({"pard_token": 5}, {"parallel_token": True}),
        ({"medusa_num_heads": 4}, {"num_heads": 4}),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, {"kind": "eagle3"}),
        ({"architectures": None, "text_config": None, "vocab_size": None}, {"vocab_size": None}),
    ],
)  # fmt: skip
def test_facts_from_config(tmp_path, config, expected):
    facts = read_facts(checkpoint(tmp_path, **config))
    assert facts.known
    assert {key: getattr(facts, key) for key in expected} == expected


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b"null", b"\xff\xfe\x00", b'{"block_size": "16"}', b'{"vocab_size": -1}',
     b'{"vocab_size": true}', b'{"text_config": 3}', b'{"architectures": "Qwen3"}',
     b'{"model_type": 7}', b"[" * 100_000],
)  # fmt: skip
def test_damaged_config_names_the_file(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        read_facts(str(tmp_path))


def test_folder_without_config_is_unknown(tmp_path):
    assert "has no config.json" in read_facts(str(tmp_path)).unknown


def test_hub_id_offline_is_unknown(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    facts = read_facts("nobody/no-such-model-here")
    assert not facts.known
    assert facts.vocab_size is None


def test_hub_id_in_the_cache_is_read(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    repo = tmp_path / "models--org--cached"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("a" * 40)
    checkpoint(repo / "snapshots" / ("a" * 40), vocab_size=11)
    assert read_facts("org/cached").vocab_size == 11


def test_an_unreachable_hub_is_asked_once(monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    asked = []

    def fail(*args, **kwargs):
        asked.append(args)
        raise ConnectionError("no route")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.setattr("autotune.models.config_json._hub_down", [])
    monkeypatch.setattr(hub, "get_hf_file_metadata", fail)
    for name in ("nobody/one", "nobody/two"):
        assert "cannot be reached" in read_facts(name).unknown
    assert len(asked) == 1


# ---------------------------------------------------------------------------- CLI and docs


def test_command_prints_one_json_document():
    result = CliRunner().invoke(command, ["--json"])
    assert result.exit_code == 0
    methods = json.loads(result.stdout)["methods"]
    assert {method["name"] for method in methods} == NAMES


def test_command_prints_a_table():
    lines = CliRunner().invoke(command).stdout.splitlines()
    assert lines[0].split()[:2] == ["METHOD", "DRAFTS"]
    assert any(re.match(r"eagle3\s+sequential\s+yes\s+1-8", line) for line in lines)
