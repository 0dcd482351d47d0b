"""Bytes of weights and KV cache, from files made here byte by byte and from published figures."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli import cli
from autotune.errors import ConfigurationError
from autotune.preflight.memory_estimate import expected_memory, parse_kv_shape
from autotune.preflight.weights import folder_weights, model_weights, read_header

WIDTH = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "I32": 4, "U8": 1}
LLAMA_8B = {  # config.json of meta-llama/Llama-3.1-8B-Instruct
    "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V3 = {  # of deepseek-ai/DeepSeek-V3
    "hidden_size": 7168, "num_attention_heads": 128, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def safetensors(tensors: list[tuple[str, int]], *, metadata: bool = True) -> bytes:
    """A file of (data type, elements), written from the format's description."""
    header: dict = {"__metadata__": {"format": "pt"}} if metadata else {}
    at = 0
    for index, (kind, elements) in enumerate(tensors):
        end = at + WIDTH[kind] * elements
        header[f"t{index}"] = {"dtype": kind, "shape": [elements], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def put(folder: Path, name: str, content: bytes | dict) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    data = json.dumps(content).encode() if isinstance(content, dict) else content
    (folder / name).write_bytes(data)
    return folder / name


def checkpoint(folder: Path, config: dict, tensors: list[tuple[str, int]]) -> str:
    put(folder, "config.json", config)
    put(folder, "model.safetensors", safetensors(tensors))
    return str(folder)


# ----------------------------------------------------------------------------------- headers


@given(st.lists(st.tuples(st.sampled_from(sorted(WIDTH)), st.integers(0, 40)), max_size=8))
def test_a_header_gives_every_byte(tmp_path_factory, tensors):
    path = put(tmp_path_factory.mktemp("w"), "model.safetensors", safetensors(tensors))
    expected: dict[str, int] = {}
    for kind, elements in tensors:
        expected[kind] = expected.get(kind, 0) + WIDTH[kind] * elements
    assert read_header(path).by_type == expected


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    path = put(tmp_path_factory.mktemp("w"), "model.safetensors", data)
    try:
        assert read_header(path).stored_bytes <= len(data)
    except ConfigurationError as error:
        assert str(path) in error.message


@given(st.data())
def test_a_changed_header_is_read_or_refused(tmp_path_factory, data):
    whole = bytearray(safetensors([("BF16", 3), ("F32", 2)]))
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        whole[at] = data.draw(st.integers(0, 255))
    path = put(tmp_path_factory.mktemp("w"), "model.safetensors", bytes(whole))
    try:
        assert read_header(path).stored_bytes >= 0
    except ConfigurationError as error:
        assert "no usable safetensors file" in error.message


@pytest.mark.parametrize("kept", [0, 7, 8, 20, -1])
def test_a_file_that_is_cut_off(tmp_path, kept):
    path = put(tmp_path, "model.safetensors", safetensors([("F32", 4)])[:kept])
    with pytest.raises(ConfigurationError, match="cut off") as caught:
        read_header(path)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "header",
    [[], 3, {"a": 1}, {"a": {"dtype": "F32"}}, {"a": {"dtype": 1, "data_offsets": [0, 4]}},
     {"a": {"dtype": "F32", "data_offsets": [4, 0]}}, {"a": {"dtype": "F32", "data_offsets": [0]}}],
    ids=str,
)  # fmt: skip
def test_a_header_that_is_none(tmp_path, header):
    text = json.dumps(header).encode()
    path = put(tmp_path, "model.safetensors", struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(ConfigurationError, match="no usable safetensors file"):
        read_header(path)


def test_a_header_that_claims_to_be_huge_is_not_read(tmp_path):
    path = put(tmp_path, "model.safetensors", struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(ConfigurationError, match="header claims"):
        read_header(path)


# ----------------------------------------------------------------------------------- folders


def test_the_shards_that_the_index_names_count(tmp_path):
    put(tmp_path, "a.safetensors", safetensors([("BF16", 10)]))
    put(tmp_path, "b.safetensors", safetensors([("F32", 5)]))
    put(tmp_path, "consolidated.safetensors", safetensors([("BF16", 1000)]))  # once more
    index = {"metadata": {"total_size": 7}, "weight_map": {"x": "a.safetensors",
             "y": "b.safetensors", "z": "a.safetensors"}}  # fmt: skip
    put(tmp_path, "model.safetensors.index.json", index)
    assert folder_weights(tmp_path).by_type == {"BF16": 20, "F32": 20}


def test_the_index_counts_where_shards_are_missing(tmp_path):
    index = {"metadata": {"total_size": 16060522496}, "weight_map": {"x": "a.safetensors"}}
    put(tmp_path, "model.safetensors.index.json", index)
    assert folder_weights(tmp_path).stored_bytes == 16060522496
    put(tmp_path, "model.safetensors.index.json", {"weight_map": {"x": "a.safetensors"}})
    assert folder_weights(tmp_path) is None


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"weight_map": []}', b"\xff"])
def test_a_damaged_index(tmp_path, content):
    put(tmp_path, "model.safetensors.index.json", content)
    with pytest.raises(ConfigurationError, match=r"index\.json"):
        folder_weights(tmp_path)


def test_no_safetensors_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    put(tmp_path, "pytorch_model.bin", b"x")
    assert folder_weights(tmp_path) is None
    assert model_weights(str(tmp_path)) is None
    assert model_weights("org/not-in-the-cache") is None


@pytest.fixture
def hub(monkeypatch):
    """The Hub's client without a network; `files` are in its cache, `remote` is on the Hub."""
    import huggingface_hub

    monkeypatch.setattr("autotune.preflight.weights.offline", lambda: False)

    def state(files: dict[str, Path], remote: object) -> list[str]:
        asked: list[str] = []

        def metadata(model, **_):
            asked.append(model)
            if isinstance(remote, Exception):
                raise remote
            return remote

        cached = {name: str(path) for name, path in files.items()}
        monkeypatch.setattr(
            huggingface_hub, "try_to_load_from_cache", lambda _, name: cached.get(name)
        )
        monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", metadata)
        return asked

    return state


def test_a_cached_checkpoint_is_read_where_it_lies(tmp_path, hub):
    file = put(tmp_path, "model.safetensors", safetensors([("BF16", 21)]))
    asked = hub({"model.safetensors": file}, None)
    assert model_weights("org/model").by_type == {"BF16": 42}
    assert asked == []


def test_headers_come_from_the_hub_where_only_the_config_is_cached(tmp_path, hub):
    """Two files of what the client returns: `files_metadata[...].tensors[...]`."""
    config = put(tmp_path, "config.json", LLAMA_8B)
    one = SimpleNamespace(dtype="BF16", data_offsets=(0, 200))
    other = SimpleNamespace(dtype="F32", data_offsets=(200, 240))
    files = {"a": SimpleNamespace(tensors={"x": one, "y": other}),
             "b": SimpleNamespace(tensors={"z": one})}  # fmt: skip
    asked = hub({"config.json": config}, SimpleNamespace(files_metadata=files))
    assert model_weights("org/model").by_type == {"BF16": 400, "F32": 40}
    assert asked == ["org/model"]


def test_a_hub_that_does_not_answer_is_unknown(hub, caplog):
    hub({}, ConnectionError("no route"))
    with caplog.at_level("INFO"):
        assert model_weights("org/model") is None
    assert "no route" in caplog.text


# ---------------------------------------------------------------------------------- KV cache


@pytest.mark.parametrize(
    ("config", "tensor_parallel", "elements"),
    [
        (LLAMA_8B, 1, 2 * 32 * 8 * 128),
        (LLAMA_8B, 4, 2 * 32 * 2 * 128),
        (LLAMA_8B, 16, 2 * 32 * 1 * 128),  # each device keeps a head
        (DEEPSEEK_V3, 1, 61 * 576),
        (DEEPSEEK_V3, 8, 61 * 576),  # the latent vector is on every device
        ({"text_config": LLAMA_8B}, 1, 2 * 32 * 8 * 128),
        ({**LLAMA_8B, "head_dim": 64}, 1, 2 * 32 * 8 * 64),
        ({**LLAMA_8B, "num_key_value_heads": None}, 1, 2 * 32 * 32 * 128),
    ],
)
def test_what_a_token_keeps(config, tensor_parallel, elements):
    shape = parse_kv_shape(config)
    assert shape.elements(tensor_parallel) == elements
    assert shape.type_bytes == 2


def test_layers_of_several_kinds():
    """Sliding ones count in full, those with a state not at all."""
    types = ["linear_attention"] * 6 + ["full_attention"] * 2
    assert parse_kv_shape({**LLAMA_8B, "layer_types": types}).elements(1) == 2 * 2 * 8 * 128
    types = ["sliding_attention"] * 5 + ["full_attention"]
    gemma = {**LLAMA_8B, "layer_types": types, "head_dim": 256, "global_head_dim": 512,
             "num_global_key_value_heads": 2}  # fmt: skip
    assert parse_kv_shape(gemma).elements(1) == 2 * (5 * 8 * 256 + 1 * 2 * 512)


def test_a_sliding_layer_keeps_a_window_of_a_request():
    """5 of 6 layers keep 1024 tokens at most; of a window that is not told, nothing is certain."""
    types = ["sliding_attention"] * 5 + ["full_attention"]
    told = parse_kv_shape({**LLAMA_8B, "layer_types": types, "sliding_window": 1024})
    layer = 2 * 8 * 128
    assert told.request_elements(1000, 1) == 6 * 1000 * layer
    assert told.request_elements(5000, 1) == (5 * 1024 + 5000) * layer
    assert told.request_elements(5000, 2) == (5 * 1024 + 5000) * layer // 2
    unknown = parse_kv_shape({**LLAMA_8B, "layer_types": types})
    assert unknown.request_elements(5000, 1) == 5000 * layer


def test_requests_at_most_where_layers_slide(tmp_path):
    """Room for 10 requests of 5000 tokens in windows of 1024, for 3 if every layer kept all."""
    types = ["sliding_attention"] * 5 + ["full_attention"]
    config = {**LLAMA_8B, "layer_types": types, "sliding_window": 1024}
    request = (5 * 1024 + 5000) * 2 * 8 * 128 * 2
    found = expected_memory(
        checkpoint(tmp_path / "m", config, [("BF16", 2)]),
        device_bytes=10 * request + 2 + 4, utilization=1.0, tokens_per_request=5000,
    )  # fmt: skip
    assert (found.requests, found.kv_tokens // 5000) == (10, 3)


NAMES = [*LLAMA_8B, "layer_types", "head_dim", "text_config"]
VALUES = (st.none(), st.integers(-2, 9), st.text(max_size=3), st.lists(st.integers()), st.just({}))


@given(st.dictionaries(st.sampled_from(NAMES), st.one_of(*VALUES)))
def test_any_config_gives_a_shape_or_none(config):
    shape = parse_kv_shape(config)
    assert shape is None or shape.elements(1) >= 0


# --------------------------------------------------------------------------------- estimates


def test_every_byte_of_an_estimate(tmp_path):
    model = checkpoint(tmp_path / "m", LLAMA_8B, [("BF16", 1000), ("F32", 10)])
    drafter = checkpoint(tmp_path / "d", {**LLAMA_8B, "num_hidden_layers": 1}, [("BF16", 100)])
    found = expected_memory(
        model, drafter, device_bytes=50_000_000, utilization=0.9, tokens_per_request=100
    )
    assert (found.whole_weight_bytes, found.whole_drafter_bytes) == (2040, 200)
    kv = 2 * 33 * 8 * 128 * 2
    assert found.kv_bytes_per_token == kv == 135_168
    assert found.usable_bytes == 45_000_000
    assert found.left_bytes == 45_000_000 - 2240
    assert (found.kv_tokens, found.requests, found.fits) == (332, 3, True)  # 44997760 / 135168


def test_two_devices_take_half_each(tmp_path):
    model = checkpoint(tmp_path / "m", LLAMA_8B, [("BF16", 1001)])
    found = expected_memory(model, tensor_parallel=2, kv_cache_dtype="fp8", device_bytes=10)
    assert (found.weight_bytes, found.drafter_bytes) == (1001, 0)
    assert found.kv_bytes_per_token == 2 * 32 * 4 * 128
    assert (found.fits, found.left_bytes, found.kv_tokens) == (False, 9 - 1001, 0)
    assert "unknown" not in found.figures()


def test_weights_are_counted_as_they_are_loaded(tmp_path):
    """float32 checkpoints are half as large in bfloat16; quantised tensors stay as they are."""
    model = checkpoint(tmp_path / "m", LLAMA_8B, [("F32", 100), ("F8_E4M3", 50)])
    assert expected_memory(model).weight_bytes == 450
    assert expected_memory(model, dtype="torch.bfloat16").weight_bytes == 250
    assert expected_memory(model, dtype="torch.float32").kv_bytes_per_token == 2 * 32 * 8 * 128 * 4


def test_what_is_not_known_is_none(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    nothing = expected_memory("org/absent", "org/other", device_bytes=1)
    assert nothing.fits is nothing.kv_bytes_per_token is nothing.requests is None
    put(tmp_path / "m", "model.safetensors", b"broken")
    damaged = expected_memory(str(tmp_path / "m"), device_bytes=1)
    assert damaged.fits is None and "no usable safetensors" in caplog.text
    model = checkpoint(tmp_path / "ok", LLAMA_8B, [("BF16", 1)])
    assert expected_memory(model).fits is None  # no GPU's memory is known
    assert expected_memory(model, "org/absent", device_bytes=9).left_bytes is None
    assert expected_memory(model, kv_cache_dtype="nvfp4").kv_bytes_per_token is None


# ------------------------------------------------------------------------------- spectune models


def test_models_tells_what_each_method_keeps(tmp_path):
    """2 layers, key and value, 4 heads of 8, 2 bytes: 256; the drafter: 1 x 2 x 2 x 8 x 2 = 64."""
    shape = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 10,
             "dtype": "bfloat16"}  # fmt: skip
    model = checkpoint(tmp_path / "m", {**shape, "num_hidden_layers": 2}, [("BF16", 3 * 2**19)])
    draft = {**shape, "num_hidden_layers": 1, "num_key_value_heads": 2}
    small = checkpoint(tmp_path / "d", draft, [("BF16", 2**18)])
    arguments = ["models", model, "--drafter", f"draft_model={small}"]
    found = CliRunner().invoke(cli, [*arguments, "--json"])
    memory = {m["method"]: m["memory"] for m in json.loads(found.stdout)["methods"]}
    assert memory["ngram"]["weight_bytes"] == memory["draft_model"]["weight_bytes"] == 3 * 2**20
    assert (memory["ngram"]["drafter_bytes"], memory["draft_model"]["drafter_bytes"]) == (0, 2**19)
    assert memory["ngram"]["kv_bytes_per_token"] == 256
    assert memory["draft_model"]["kv_bytes_per_token"] == 256 + 64
    rows = {tuple(line.split()) for line in CliRunner().invoke(cli, arguments).stdout.splitlines()}
    assert ("draft_model", "0.0", "GiB", "0.0", "GiB", "0.3", "KiB", "-", "-") in rows


def test_no_table_of_memory_where_nothing_is_known():
    """ngram has a drafter of 0 bytes: alone that says nothing."""
    found = CliRunner().invoke(cli, ["models", "org/absent"], env={"HF_HUB_OFFLINE": "1"})
    assert "ngram" in found.stdout and "MEMORY" not in found.stdout
