"""`--speculative-option`: parsing, what each method takes, and where it ends up."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
from pathlib import Path

import pytest
from checkpoint_samples import checkpoint
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli import cli
from autotune.errors import ConfigurationError
from autotune.machine.environment import EngineInfo
from autotune.methods import all_methods, get_method
from autotune.methods._knobs import Knob
from autotune.methods._options import OWNED
from autotune.models.candidates import build_spaces
from autotune.models.catalog import resolve_model
from autotune.models.speculative_options import parse_options


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("SPECTUNE_CATALOG", raising=False)
    monkeypatch.chdir(tmp_path)


def vllm_source(*parts: str) -> ast.Module:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    return ast.parse(Path(spec.origin).parent.joinpath(*parts).read_text())


def vllm_fields() -> dict[str, str]:
    """Fields of the installed SpeculativeConfig and their annotations, read from its source."""
    module = vllm_source("config", "speculative.py")
    config = next(n for n in module.body if getattr(n, "name", "") == "SpeculativeConfig")
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in config.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def knobs() -> dict[str, Knob]:
    return {knob.name: knob for method in all_methods() for knob in method.knobs}


# ------------------------------------------------------------------- against the installed vLLM


def test_every_field_of_vllm_can_be_set_or_says_why_not():
    assert set(knobs()) | set(OWNED) == set(vllm_fields())
    assert not set(knobs()) & set(OWNED)


def test_kinds_are_those_of_vllm():
    words = {"attention_backend", "kv_cache_dtype", "moe_backend", "quantization",
             "rejection_sample_method", "draft_sample_method"}  # fmt: skip
    fields = vllm_fields()
    for name, knob in knobs().items():
        if name in words:
            assert knob.kind is str
        else:
            assert fields[name].split(" |")[0] == knob.kind.__name__


def test_closed_choices_are_those_of_vllm():
    """All but `synthetic`, which sets acceptance instead of measuring it."""
    module = vllm_source("config", "speculative.py")
    literals = {
        node.targets[0].id: {element.value for element in node.value.slice.elts}
        for node in module.body
        if isinstance(node, ast.Assign)
        and getattr(node.targets[0], "id", "") in ("RejectionSampleMethod", "DraftSampleMethod")
    }
    known = knobs()
    assert set(known["draft_sample_method"].values) == literals["DraftSampleMethod"]
    assert set(known["rejection_sample_method"].values) == (
        literals["RejectionSampleMethod"] - {"synthetic"}
    )


def test_attention_backends_exist_in_vllm():
    module = vllm_source("v1", "attention", "backends", "registry.py")
    enum = next(n for n in module.body if getattr(n, "name", "") == "AttentionBackendEnum")
    names = {n.targets[0].id for n in enum.body if isinstance(n, ast.Assign)}
    assert set(knobs()["attention_backend"].values) <= names


@pytest.mark.parametrize("method", all_methods(), ids=lambda method: method.name)
def test_what_is_worth_trying_can_be_set(method):
    lookup = {"prompt_lookup_min": 1, "prompt_lookup_max": 8} if "ngram" in method.name else {}
    for knob in method.knobs:
        for value in knob.values:
            changed = method.with_options({**lookup, knob.name: value})
            assert changed.speculative_config(2)[knob.name] == value
            assert changed.speculative_config(2)["method"] == method.vllm_method


# ---------------------------------------------------------------------------------- parsing


def test_values_are_json_and_bare_words_are_strings():
    assert parse_options(
        ["ngram.prompt_lookup_max=3", "ngram.prompt_lookup_min=1",
         "dspark.enable_adaptive_verification=true", "dflash.attention_backend=FLASH_ATTN",
         'eagle3.draft_sample_method="probabilistic"', "suffix.suffix_decoding_max_spec_factor=2"]
    ) == {
        "ngram": {"prompt_lookup_max": 3, "prompt_lookup_min": 1},
        "dspark": {"enable_adaptive_verification": True},
        "dflash": {"attention_backend": "FLASH_ATTN"},
        "eagle3": {"draft_sample_method": "probabilistic"},
        "suffix": {"suffix_decoding_max_spec_factor": 2},
    }  # fmt: skip
    assert parse_options([]) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "bad speculative option"),
        ("ngram", "bad speculative option"),
        ("ngram=3", "bad speculative option"),
        ("ngram.=3", "bad speculative option"),
        (".prompt_lookup_max=3", "bad speculative option"),
        ("ngram.prompt_lookup_max=", "no JSON value"),
        ("ngram.prompt_lookup_max={", "no JSON value"),
        ("ngrm.prompt_lookup_max=3", "unknown method"),
        ("extract_hidden_states.x=1", "not offered"),
        ("ngram.promt_lookup_max=3", "no option"),
        ("ngram.draft_sample_method=greedy", "no option"),
        ("medusa.attention_backend=FLASH_ATTN", "no option"),
        ("ngram.num_speculative_tokens=3", "cannot be set by hand"),
        ("eagle3.model=org/x", "cannot be set by hand"),
        ("eagle3.method=eagle", "cannot be set by hand"),
        ("suffix.suffix_decoding_max_cached_requests=10", "cannot be set by hand"),
        ("eagle3.max_model_len=100", "cannot be set by hand"),
        ("eagle3.rejection_sample_method=synthetic", "one of standard, block"),
        ("ngram.prompt_lookup_max=0", "at least 1"),
        ("ngram.prompt_lookup_max=true", "whole number"),
        ("ngram.prompt_lookup_max=2.0", "whole number"),
        ("ngram.prompt_lookup_max=two", "whole number"),
        ("suffix.suffix_decoding_min_token_prob=1.5", "at most 1"),
        ("suffix.suffix_decoding_min_token_prob=NaN", "a number"),
        ("suffix.suffix_decoding_min_token_prob=true", "a number"),
        ("dspark.enable_adaptive_verification=1", "one of False, True"),
        ("dspark.enable_adaptive_verification=True", "one of False, True"),
        ('dflash.attention_backend=""', "a word"),
        ("dflash.attention_backend=3", "a word"),
    ],
)  # fmt: skip
def test_bad_options(text, message):
    with pytest.raises(ConfigurationError) as caught:
        parse_options([text])
    assert message in caught.value.message
    assert caught.value.hint or "not offered" in message


def test_two_values_of_one_key():
    same = "ngram.prompt_lookup_max=3"
    assert parse_options([same, same]) == {"ngram": {"prompt_lookup_max": 3}}
    with pytest.raises(ConfigurationError, match="two values"):
        parse_options([same, "ngram.prompt_lookup_max=4"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["ngram.prompt_lookup_max=1"], "above prompt_lookup_max=1"),  # the minimum is 2
        (["draft_model.use_heterogeneous_vocab=true",
          "draft_model.draft_sample_method=probabilistic"], "greedy drafts only"),
        (["mtp.use_local_argmax_reduction=true",
          "mtp.draft_sample_method=probabilistic"], "greedy drafts only"),
        (["dspark.dspark_draft_topk=64",
          "dspark.draft_tensor_parallel_size=2"], "draft_tensor_parallel_size=1"),
    ],
)  # fmt: skip
def test_options_that_clash(options, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        parse_options(options)


@given(st.text())
def test_any_text_is_parsed_or_refused(text):
    try:
        found = parse_options([text])
    except ConfigurationError:
        return
    ((method, options),) = found.items()
    assert set(options) <= {knob.name for knob in get_method(method).knobs}


def test_a_vllm_that_is_too_old():
    method, options = get_method("eagle3"), {"draft_sample_method": "greedy"}
    with pytest.raises(ConfigurationError) as caught:
        method.with_options(options, EngineInfo(python="p", vllm="0.20.2"))
    assert "vLLM 0.20.2 does not know draft_sample_method" in caught.value.message
    assert "0.21" in caught.value.hint
    for version in ("0.21.0", "0.32.0+rocm722", None):
        method.with_options(options, EngineInfo(python="p", vllm=version))


def test_what_only_the_v2_runner_heeds_is_refused_on_a_cpu():
    cpu, rocm = (EngineInfo(python="p", vllm="0.32.0", platform=p) for p in ("cpu", "rocm"))
    for name, options in [
        ("dspark", {"enable_adaptive_verification": True}),
        ("eagle3", {"rejection_sample_method": "block"}),
    ]:
        with pytest.raises(ConfigurationError, match="no effect on a CPU"):
            get_method(name).with_options(options, cpu)
        get_method(name).with_options(options, rocm)
    get_method("eagle3").with_options({"rejection_sample_method": "standard"}, cpu)


# --------------------------------------------------------------------------- where it ends up


def test_an_option_reaches_the_methods_space_alone(tmp_path):
    model = resolve_model(checkpoint(tmp_path / "m", model_type="mimo", num_nextn_predict_layers=1,
                                     architectures=["MiMoForCausalLM"]))  # fmt: skip
    options = parse_options(["ngram.prompt_lookup_max=7"])
    spaces = {space.method: space for space in build_spaces(model, options=options)[0]}
    assert spaces["ngram"].config["prompt_lookup_max"] == 7
    assert spaces["ngram"].speculative_config(3)["prompt_lookup_max"] == 7
    assert "prompt_lookup_max" not in spaces["mtp"].config
    assert get_method("ngram").config["prompt_lookup_max"] == 4  # the method itself stays


def test_an_option_of_a_method_that_is_not_tried_is_said(tmp_path):
    model = resolve_model(checkpoint(tmp_path / "m", model_type="qwen3"))
    options = parse_options(["eagle3.draft_sample_method=probabilistic"])
    _, _, warnings = build_spaces(model, options=options)
    assert any("eagle3.* is not used" in warning for warning in warnings)


def test_another_vocabulary_needs_the_option(tmp_path):
    model = resolve_model(checkpoint(tmp_path / "m", vocab_size=8))
    checkpoint(tmp_path / "d", vocab_size=9, model_type="llama",
               architectures=["LlamaForCausalLM"])  # fmt: skip
    drafters = {"draft_model": "d"}
    with pytest.raises(ConfigurationError, match="vocabulary sizes differ"):
        build_spaces(model, drafters=drafters)
    options = parse_options(["draft_model.use_heterogeneous_vocab=true"])
    spaces, _, _ = build_spaces(model, drafters=drafters, options=options)
    space = next(space for space in spaces if space.method == "draft_model")
    assert space.config["use_heterogeneous_vocab"] is True


def dry_run(tmp_path, *options: str):
    model = checkpoint(tmp_path / "m", model_type="qwen3")
    arguments = ["run", "--model", model, "--workload", "code", "--methods", "ngram", "--dry-run"]
    return CliRunner().invoke(cli, [*arguments, *options])


def test_run_shows_the_option_in_the_very_command(tmp_path):
    plain = dry_run(tmp_path).stdout
    changed = dry_run(tmp_path, "--speculative-option", "ngram.prompt_lookup_max=9").stdout
    assert '"prompt_lookup_max":4' in plain
    assert '"prompt_lookup_max":9' in changed


def test_another_value_is_another_study(tmp_path):
    from autotune.engines import EngineOptions, load_engine
    from autotune.plan import Request, make_plan

    model = checkpoint(tmp_path / "m", model_type="qwen3")
    engine = load_engine("vllm", EngineOptions())
    base = {"model": model, "workload": "code", "methods": "ngram", "num_prompts": 8,
            "preflight": False}  # fmt: skip
    ids = {
        make_plan(Request(**base, speculative_options=options), engine).sha256
        for options in [(), ("ngram.prompt_lookup_max=9",), ("ngram.prompt_lookup_min=1",)]
    }
    assert len(ids) == 3


def test_a_bad_option_ends_with_two(tmp_path):
    from autotune.cli import invoke

    model = checkpoint(tmp_path / "m", model_type="qwen3")
    arguments = ["models", model, "--speculative-option", "ngram.model=x"]
    assert invoke(arguments) == 2


def test_replay_refuses_it():
    file = Path(__file__).parents[1] / "studies" / "published" / "s01-gemma-4-31b-it-math500.json"
    result = CliRunner().invoke(
        cli, ["run", "--engine", "replay", "--recording", os.fspath(file),
              "--speculative-option", "ngram.prompt_lookup_max=3"],
    )  # fmt: skip
    assert result.exit_code == 2
    assert "does not read --speculative-option" in result.output


def test_the_detail_view_shows_every_option():
    for method in all_methods():
        text = CliRunner().invoke(cli, ["methods", method.name]).stdout
        assert method.allows in text
        for knob in method.knobs:
            assert knob.meaning in text
        document = json.loads(CliRunner().invoke(cli, ["methods", method.name, "--json"]).stdout)
        assert [option["key"] for option in document["options"]] == [
            knob.name for knob in method.knobs
        ]
