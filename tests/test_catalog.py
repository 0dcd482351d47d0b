"""Catalogue, model names, and the candidates built from them."""

from __future__ import annotations

import json

import pytest
from checkpoint_samples import checkpoint
from click.testing import CliRunner
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from hypothesis import example, given
from hypothesis import strategies as st

from autotune.cli.models import command
from autotune.errors import ConfigurationError
from autotune.machine.environment import EngineInfo
from autotune.models.candidates import build_spaces
from autotune.models.catalog import is_hub_id, load_catalog, resolve_model
from autotune.models.wanted import parse_drafters, parse_lengths, parse_methods

ROCM = EngineInfo(python="python", vllm="0.32.0", platform="rocm", packages={"arctic_inference"})
NINE = {
    "google/gemma-4-26B-A4B-it": {"gemma4_mtp", "eagle3", "dflash"},
    "google/gemma-4-31B-it": {"gemma4_mtp", "eagle3", "dflash", "dspark"},
    "Qwen/Qwen3-8B": {"eagle3", "dflash", "dspark", "peagle", "pard", "draft_model"},
    "Qwen/Qwen3.5-27B": {"mtp", "dflash"},
    "Qwen/Qwen3.5-122B-A10B": {"mtp", "dflash"},
    "Qwen/Qwen3.6-27B": {"mtp", "dflash"},
    "Qwen/Qwen3.6-35B-A3B": {"mtp", "dflash", "dspark"},
    "moonshotai/Kimi-K2.5": {"eagle3", "dflash"},
    "MiniMaxAI/MiniMax-M3-MXFP8": {"eagle3"},
}


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """No test reads a real cache, a real catalogue of the user's, or the network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("SPECTUNE_CATALOG", raising=False)
    monkeypatch.chdir(tmp_path)


def build(name: str, **options):
    options.setdefault("environment", ROCM)
    return build_spaces(resolve_model(name), **options)


# --------------------------------------------------------------------------------- catalogue


def test_packaged_catalogue_has_the_nine_models():
    found = {entry.id: {*entry.native, *entry.drafters} for entry in load_catalog()}
    assert {model: found[model] for model in NINE} == NINE


def test_packaged_catalogue_is_unambiguous():
    entries = load_catalog()
    names = [entry.short_name.lower() for entry in entries]
    assert len(set(names)) == len(names)
    ids = [
        drafter.id
        for entry in entries
        for method, known in entry.drafters.items()
        if method not in ("pard", "draft_model")  # one of them serves a whole family
        for drafter in known
    ]
    variants = [variant for entry in entries for variant in entry.variants]
    assert len({*ids, *variants}) == len(ids) + len(variants)
    assert all("/" in name for name in (*ids, *variants))


def test_own_catalogue_replaces_entries_of_the_same_id(tmp_path, monkeypatch):
    own = tmp_path / "own.toml"
    own.write_text(
        '[[model]]\nid = "qwen/qwen3-8b"\n[model.drafters]\neagle3 = [{ id = "me/e3" }]\n'
        '[[model]]\nid = "me/mine"\nshort = "mine"\nnative = ["mtp"]\n'
    )
    monkeypatch.setenv("SPECTUNE_CATALOG", str(own))
    entry = resolve_model("Qwen3-8B").entry
    assert set(entry.drafters) == {"eagle3"}
    assert entry.drafters["eagle3"][0].checked == "unverified"
    assert resolve_model("mine").model == "me/mine"
    assert resolve_model("gemma-4-31B-it").entry is not None
    assert resolve_model("mine", str(own)).model == "me/mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[[model]", "not TOML"),
        (b"\xff\xfe", "cannot be read"),
        (b'[[model]]\nname = "x"', "model.0.id"),
        (b'[[model]]\nid = "a/b"\nnative = ["mpt"]', "a/b: unknown method 'mpt'"),
        (b'[[model]]\nid = "a/b"\n[model.drafters]\nngram = [{id = "c/d"}]', "takes no drafter"),
        (b'[[model]]\nid = "a/b"\nchecked = "yes"', "model.0.checked"),
    ],
)
def test_bad_catalogue_names_the_file(tmp_path, content, message):
    path = tmp_path / "own.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        load_catalog(str(path))
    assert "own.toml" in caught.value.message
    assert message in caught.value.message


def test_missing_catalogue_is_an_error():
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        load_catalog("none.toml")


# ------------------------------------------------------------------------------- model names


@pytest.mark.parametrize(
    "name", ["gemma-4-26B-A4B-it", "GEMMA-4-26b-a4b-IT", " google/gemma-4-26b-a4b-it "]
)
def test_short_names_in_any_case(name):
    model = resolve_model(name)
    assert model.model == "google/gemma-4-26B-A4B-it"
    assert model.entry is not None
    assert not model.local


def test_any_hub_id_passes():
    model = resolve_model("some-org/Some.Model-7B")
    assert (model.model, model.name, model.entry) == (
        "some-org/Some.Model-7B",
        "Some.Model-7B",
        None,
    )


@given(st.text(alphabet="aZ0_-./ ~é\0", max_size=12).map(lambda text: f"a{text}"))
@example("org/name.git")
@example("org/a--b")
@example("org/" + "x" * 97)
def test_hub_ids_are_those_of_the_hub(name):
    """Of huggingface_hub's own check; here the organisation is not optional."""
    try:
        validate_repo_id(name)
        valid = "/" in name
    except HFValidationError:
        valid = False
    assert is_hub_id(name) is valid


def test_local_folder_wins(tmp_path):
    checkpoint(tmp_path / "Qwen3-8B")
    model = resolve_model("Qwen3-8B")
    assert (model.model, model.local, model.entry) == (str(tmp_path / "Qwen3-8B"), True, None)


def test_local_folder_without_config_is_an_error(tmp_path):
    (tmp_path / "Qwen3-8B").mkdir()
    with pytest.raises(ConfigurationError, match="no config"):
        resolve_model("Qwen3-8B")
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ConfigurationError, match="is a file"):
        resolve_model("model.gguf")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gemma-4-31-it", "did you mean gemma-4-31B-it"),
        ("zzz", "org/name"),
        ("", "org/name"),
        ("./nothing", "existing folder"),
        ("/no/such/folder", "existing folder"),
        ("a/b/c", "existing folder"),
        ("~nobody-here/x", "existing folder"),
        ("my models/x", "existing folder"),
        ("org/..", "existing folder"),
        ("x\0y", "org/name"),
        ("x" * 5000, "org/name"),
    ],
)
def test_unknown_names_get_advice(name, hint):
    with pytest.raises(ConfigurationError) as caught:
        resolve_model(name)
    assert hint in caught.value.hint


# -------------------------------------------------------------------------------- candidates


@pytest.mark.parametrize("name", NINE)
def test_every_known_method_of_a_catalogued_model_becomes_a_space(name):
    spaces, skipped, warnings = build(name)
    tried = {space.method for space in spaces}
    assert tried == NINE[name] | {"ngram", "suffix"}
    whole = {skip.method for skip in skipped if skip.num_speculative_tokens is None}
    assert tried.isdisjoint(whole)
    assert len(tried) + len(whole) == 14  # each method is tried or explained
    assert any("config.json was not read" in warning for warning in warnings)
    for space in spaces:
        assert space.config["method"]
        assert space.config.get("model") == space.drafter
        assert "num_speculative_tokens" not in space.config


def test_block_sizes_of_the_catalogue_bound_n():
    spaces = {space.method: space for space in build("gemma-4-31B-it", lengths=range(1, 20))[0]}
    assert max(spaces["dflash"].lengths) == 15
    assert max(spaces["dspark"].lengths) == 7
    assert (spaces["dspark"].parallel, spaces["dspark"].live_n) == (True, False)


def test_facts_beat_the_catalogue(tmp_path):
    model = checkpoint(tmp_path / "m", model_type="qwen3_5", num_nextn_predict_layers=2)
    spaces, skipped, warnings = build(str(model), methods=["mtp"])
    assert spaces[0].lengths == (1, 2, 4, 6, 8)
    assert [skip.num_speculative_tokens for skip in skipped] == [3, 5, 7]
    assert warnings == ()


def test_plain_local_model(tmp_path):
    model = checkpoint(tmp_path / "m", model_type="qwen3", vocab_size=8)
    spaces, skipped, _ = build(str(model), environment=None)
    assert [space.method for space in spaces] == ["ngram"]
    reasons = {skip.method: skip.reason for skip in skipped}
    assert "--drafter METHOD=ID_OR_PATH" in reasons["eagle3"]
    assert "multi-token-prediction" in reasons["mtp"]
    assert "not known" in reasons["suffix"]


def test_named_method_that_cannot_work_is_an_error(tmp_path):
    model = checkpoint(tmp_path / "m", model_type="qwen3")
    with pytest.raises(ConfigurationError) as caught:
        build(model, methods=["eagle3"])
    assert "no drafter" in caught.value.message
    assert "--drafter eagle3=" in caught.value.hint
    for method in ("mtp", "mlp_speculator", "gemma4_mtp"):
        with pytest.raises(ConfigurationError, match=method):
            build(model, methods=[method])
    with pytest.raises(ConfigurationError, match="arctic_inference is not installed"):
        build(model, methods=["suffix"], environment=EngineInfo(python="p"))


def test_named_suffix_with_an_unknown_engine_is_tried_with_a_warning(tmp_path):
    model = checkpoint(tmp_path / "m", model_type="qwen3")
    spaces, _, warnings = build(model, methods=["suffix"], environment=None)
    assert spaces[0].lengths == (8, 16, 24)
    assert "suffix" in warnings[0]


def test_own_drafter_is_used_and_made_absolute(tmp_path):
    model = checkpoint(tmp_path / "m", vocab_size=8, max_position_embeddings=4096)
    draft = checkpoint(tmp_path / "d", vocab_size=8, max_position_embeddings=2048)
    spaces, _, warnings = build(str(model), drafters={"draft_model": "d"}, lengths=(2, 4))
    space = next(space for space in spaces if space.method == "draft_model")
    assert (space.drafter, space.lengths) == (str(draft), (2, 4))
    assert any("trained to 2048 positions" in warning for warning in warnings)


def test_own_drafter_that_does_not_fit_is_an_error(tmp_path):
    model = checkpoint(tmp_path / "m", vocab_size=8)
    checkpoint(tmp_path / "d", vocab_size=9)
    with pytest.raises(ConfigurationError, match="vocabulary sizes differ"):
        build(str(model), drafters={"draft_model": "d"})


def test_unknown_block_size_is_a_warning():
    _, _, warnings = build("Kimi-K2.5", methods=["dflash"])
    assert any("block size unknown" in warning for warning in warnings)


def test_lengths_that_a_named_method_forbids(tmp_path):
    model = checkpoint(tmp_path / "m", num_nextn_predict_layers=3)
    with pytest.raises(ConfigurationError, match="n_predict=3"):
        build(str(model), methods=["mtp"], lengths=(4, 5))
    spaces, skipped, _ = build(str(model), lengths=(4, 5))
    assert {space.method for space in spaces} == {"ngram", "suffix"}
    assert any("none of the lengths" in skip.reason for skip in skipped if skip.method == "mtp")


def test_drafter_of_a_method_that_is_not_asked_for():
    _, _, warnings = build("Qwen3-8B", methods=["ngram"], drafters={"eagle3": "org/x"})
    assert any("eagle3 is not used" in warning for warning in warnings)


def test_unverified_drafters_are_said_to_be():
    _, _, warnings = build("Qwen3.6-35B-A3B", methods=["dspark"])
    assert any("unverified" in warning for warning in warnings)


# ----------------------------------------------------------------------------------- parsers


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1-8", tuple(range(1, 9))), ("1,3,7", (1, 3, 7)), ("1-4,6", (1, 2, 3, 4, 6)),
     (" 7 , 3,3, 2 - 4", (2, 3, 4, 7)), ("64", (64,)), ("5-5", (5,))],
)  # fmt: skip
def test_parse_lengths(text, expected):
    assert parse_lengths(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "0", "0-3", "-1", "8-1", "1,,2", "1-", "65", "1-65", "a", "1.5", "٣", "1;2", "9" * 5000],
)
def test_bad_lengths(text):
    with pytest.raises(ConfigurationError):
        parse_lengths(text)


def test_parse_methods():
    assert parse_methods("mtp, eagle3,mtp") == ["mtp", "eagle3"]
    for text in ("", "mtp,", "none", "eagel3"):
        with pytest.raises(ConfigurationError):
            parse_methods(text)


def test_parse_drafters(tmp_path):
    checkpoint(tmp_path / "d")
    values = ("eagle3=org/x", "draft_model=d", "eagle3=org/x")
    assert parse_drafters(values) == {"eagle3": "org/x", "draft_model": "d"}
    assert parse_drafters(()) == {}


@pytest.mark.parametrize(
    "values",
    [("eagle3",), ("=org/x",), ("eagle3=",), ("eagel3=org/x",), ("ngram=org/x",),
     ("eagle3=bare-name",), ("eagle3=./none",), ("eagle3=org/x", "eagle3=org/y")],
)  # fmt: skip
def test_bad_drafters(values):
    with pytest.raises(ConfigurationError):
        parse_drafters(values)


# --------------------------------------------------------------------------------------- CLI


def test_models_lists_the_catalogue():
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 0
    assert "MiniMaxAI/MiniMax-M3-MXFP8" in result.stdout
    listed = json.loads(CliRunner().invoke(command, ["--json"]).stdout)["models"]
    assert {entry["id"] for entry in listed} >= set(NINE)
    assert all(entry["short"] for entry in listed)


def test_models_explains_one_model():
    document = json.loads(CliRunner().invoke(command, ["qwen3-8b", "--json"]).stdout)
    assert document["model"] == "Qwen/Qwen3-8B"
    assert {"eagle3", "ngram"} <= {space["method"] for space in document["methods"]}
    assert document["alternatives"]
    text = CliRunner().invoke(command, ["qwen3-8b"]).stdout
    assert "Not tried:" in text
    assert "medusa" in text


def test_models_raises_our_errors_for_the_caller():
    result = CliRunner().invoke(command, ["nonsense"])
    assert isinstance(result.exception, ConfigurationError)


# ---------------------------------------------------------- variants, and whose word counts


@pytest.mark.parametrize("name", ["nvidia/Kimi-K2.5-NVFP4", "kimi-k2.5-nvfp4"])
def test_a_quantised_variant_gets_the_drafters_of_its_model(name):
    model = resolve_model(name)
    assert (model.model, model.name) == ("nvidia/Kimi-K2.5-NVFP4", "Kimi-K2.5-NVFP4")
    spaces, _, warnings = build(name, methods=["eagle3"])
    assert spaces[0].drafter == "lightseekorg/kimi-k2.5-eagle3-mla"
    assert any("known for moonshotai/Kimi-K2.5" in warning for warning in warnings)


def test_the_catalogue_itself_is_no_variant():
    _, _, warnings = build("Kimi-K2.5", methods=["eagle3"])
    assert not any("known for" in warning for warning in warnings)


def test_stages_inside_the_models_own_checkpoint():
    spaces, _, _ = build("DeepSeek-V4-Pro-DSpark", methods=["dspark"])
    assert (spaces[0].drafter, spaces[0].config) == (None, {"method": "dspark"})


def test_the_users_drafter_always_wins(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(
        '[[model]]\nid = "Qwen/Qwen3-8B"\n[model.drafters]\neagle3 = [{ id = "me/e3" }]\n'
    )
    catalogued = build_spaces(resolve_model("qwen3-8b", str(own)), methods=["eagle3"])[0]
    named = build_spaces(
        resolve_model("qwen3-8b", str(own)), methods=["eagle3"], drafters={"eagle3": "you/e3"}
    )[0]
    assert catalogued[0].drafter == "me/e3"
    assert (named[0].drafter, named[0].config["model"]) == ("you/e3", "you/e3")


def test_drafters_of_the_studys_nine_targets_were_all_checked():
    """Names in the issue's list that nobody has found in a public source would be unverified."""
    named = {
        "google/gemma-4-26B-A4B-it-assistant", "google/gemma-4-31B-it-assistant",
        "RedHatAI/gemma-4-26B-A4B-it-speculator.eagle3",
        "RedHatAI/gemma-4-31B-it-speculator.eagle3", "RedHatAI/gemma-4-31B-it-speculator.dspark",
        "z-lab/gemma-4-26B-A4B-it-DFlash", "z-lab/gemma-4-31B-it-DFlash",
        "z-lab/Qwen3.5-27B-DFlash", "z-lab/Qwen3.5-122B-A10B-DFlash", "z-lab/Qwen3.6-27B-DFlash",
        "z-lab/Qwen3.6-35B-A3B-DFlash", "z-lab/Kimi-K2.5-DFlash",
        "deepseek-ai/eagle3_qwen3_8b_ttt7", "deepseek-ai/dflash_qwen3_8b_block7",
        "deepseek-ai/dspark_qwen3_8b_block7", "lightseekorg/kimi-k2.5-eagle3-mla",
        "Inferact/MiniMax-M3-EAGLE3",
    }  # fmt: skip
    checked = {
        drafter.id
        for entry in load_catalog()
        for known in entry.drafters.values()
        for drafter in known
        if drafter.checked == "source"
    }
    assert named <= checked


# ------------------------------------------------------------------- a drafter without METHOD=


def test_a_drafter_without_a_method_is_recognised(tmp_path):
    checkpoint(tmp_path / "head", architectures=["LlamaForCausalLMEagle3"])
    checkpoint(tmp_path / "a=b", medusa_num_heads=4, hidden_size=8)
    assert parse_drafters(["head", "a=b"]) == {"eagle3": "head", "medusa": "a=b"}
    with pytest.raises(ConfigurationError, match="two drafters for eagle3"):
        parse_drafters(["head", "eagle3=org/x"])


@pytest.mark.parametrize("value", ["org/unread", "no-such-folder", "ngrm=org/x", "=", ""])
def test_a_drafter_that_cannot_be_recognised(value):
    with pytest.raises(ConfigurationError) as caught:
        parse_drafters([value])
    assert caught.value.hint


def test_a_drafter_that_was_made_for_another_model_is_said(tmp_path):
    for name, verifier in [("d", "Qwen/Qwen3-32B"), ("e", "qwen/qwen3-8b"), ("f", None)]:
        checkpoint(
            tmp_path / name,
            speculators_model_type="eagle3",
            speculators_config={"verifier": {"name_or_path": verifier}},
        )
    said = {}
    for name in "def":
        for target in ("Qwen3-8B", "RedHatAI/Qwen3-8B-FP8-dynamic"):
            _, _, warnings = build(target, methods=["eagle3"], drafters={"eagle3": name})
            said[name, target] = any("made for Qwen/Qwen3-32B" in text for text in warnings)
            assert not any("made for None" in text for text in warnings)
    assert said == {(name, target): name == "d" for name, target in said}


def test_what_published_commands_for_rocm_add_is_advice():
    option = "--speculative-option dflash.attention_backend=TRITON_ATTN"
    spaces, _, warnings = build("gemma-4-31B-it", methods=["dflash"])
    assert any(option in warning for warning in warnings)
    assert "attention_backend" not in spaces[0].config  # never applied by itself
    options = {"dflash": {"attention_backend": "ROCM_ATTN"}}
    _, _, warnings = build("gemma-4-31B-it", methods=["dflash"], options=options)
    assert not any("published command" in warning for warning in warnings)
    cuda = EngineInfo(python="python", vllm="0.32.0", platform="cuda")
    _, _, warnings = build("gemma-4-31B-it", methods=["dflash"], environment=cuda)
    assert not any("published command" in warning for warning in warnings)


def test_advice_that_no_method_takes_is_a_bad_catalogue(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('[[model]]\nid = "a/b"\n[model.on_rocm]\nngram = { attention_backend = "X" }\n')
    with pytest.raises(ConfigurationError, match="ngram has no option"):
        load_catalog(str(own))


@pytest.mark.parametrize("name", NINE)
def test_the_nine_by_short_and_full_name(name):
    assert resolve_model(name).model == resolve_model(name.partition("/")[2]).model == name


def test_models_says_what_each_n_costs(tmp_path):
    """On the V2 runner of a GPU n-gram always drafts the largest N, EAGLE-3 the one asked for."""
    from autotune.cli.models import describe, text

    engine = ROCM.model_copy(update={"packages": frozenset({"triton"})})
    document = describe(resolve_model("Qwen3-8B"), environment=engine)
    why = {space["method"]: space["why_not_live"] for space in document["methods"]}
    assert why["eagle3"] is None
    assert "V2 model runner" in why["ngram"]
    assert "pard" in why["peagle"]
    assert "every N costs an engine start" in text(document)
    only = describe(resolve_model("Qwen3-8B"), environment=engine, methods=["eagle3"])
    assert "every N costs" not in text(only)
