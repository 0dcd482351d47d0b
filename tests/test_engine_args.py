"""What a user may write after `--`, in every spelling that vLLM understands."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from autotune.engines.arguments import OWNED, check_engine_args, data_parallel_size, read_flags
from autotune.errors import ConfigurationError

FREE = (
    "--dtype", "float32", "--enforce-eager", "--max-num-seqs=8", "--max_model_len", "1024",
    "-tp", "2", "-dp", "1", "-O3", "--disable-log-requests", "--model-impl", "transformers",
    "--scheduling-policy", "fcfs", "--worker-cls", "auto", "--api-server-count", "1",
    "--compilation-config.mode", "3", "--hf-overrides", '{"rope_theta": -1}', "--seed", "-1",
    "--structured-outputs-config.backend", "auto", "--",
)  # fmt: skip


def refused(*arguments: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        check_engine_args(arguments)
    return caught.value


def test_everything_else_is_free():
    check_engine_args(FREE)


@pytest.mark.parametrize("flag", sorted(OWNED))
def test_an_owned_flag_in_every_spelling(flag):
    underscored = "--" + flag[2:].replace("-", "_") if flag.startswith("--") else flag
    for spelled in (flag, underscored, f"{flag}=x", f"{flag}.method", f"{flag}.a.b+=x"):
        error = refused("--dtype", "float32", spelled, "value")
        assert flag in error.message and error.hint


@pytest.mark.parametrize(
    ("typed", "owned"),
    [
        ("--hos", "--host"),
        ("--por=80", "--port"),
        ("--mode", "--model"),
        ("--speculative", "--speculative-config"),
        ("--speculative_c", "--speculative-config"),
        ("--spec", "--speculative-config"),
        ("--speculative.method", "--speculative-config"),
        ("-s", "-sc"),
        ("--worker-ext", "--worker-extension-cls"),
        ("--ssl", "--ssl-keyfile"),
        ("--api-k", "--api-key"),
        ("--ro", "--root-path"),
        ("--disable-log", "--disable-log-stats"),
    ],
)
def test_an_abbreviation_means_the_flag(typed, owned):
    error = refused(typed, "x")
    assert typed.split("=")[0].split(".")[0].replace("_", "-") in error.message
    assert owned in error.message


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--speculative-config", "decided by spectune"),
        ("--ssl-certfile", "plain HTTP"),
        ("--api-key", "plain HTTP"),
        ("--disable-log-stats", "counters"),
    ],
)
def test_the_reason_is_said(flag, words):
    assert words in refused(flag, "x").message


def vllm_flags() -> set[str]:
    """Read from vLLM's source, without importing it: literals, and fields of the server's own."""
    spec = importlib.util.find_spec("vllm")
    folder = Path(spec.origin).parent if spec and spec.origin else Path("nowhere")
    server = folder / "entrypoints" / "launchers" / "cli_args.py"
    if not server.exists():
        pytest.skip("vLLM is not installed, or has its flags elsewhere")
    source = (folder / "engine" / "arg_utils.py").read_text() + server.read_text()
    fields = re.findall(r"^    ([a-z_]+): ", server.read_text(), re.MULTILINE)
    found = {f"--{field.replace('_', '-')}" for field in fields}
    return found | set(re.findall(r'"(--?[a-z][a-z-]+)"', source))


def test_the_owned_flags_are_vllms_and_no_flag_begins_one():
    """Else refusing every beginning would forbid what cannot be misread."""
    flags = vllm_flags()
    assert set(OWNED) <= flags
    assert not [f for f in flags - set(OWNED) if any(owned.startswith(f) for owned in OWNED)]


# ------------------------------------------------------------------------------ config files


def config(tmp_path, text: str) -> str:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    return str(path)


def test_a_config_file_is_read_like_flags(tmp_path):
    path = config(tmp_path, "max_num_seqs: 8\ndata-parallel-size: 2\n")
    assert read_flags(["--config", path, "-dp", "1"]) == [
        ("--max-num-seqs", "8"),
        ("--data-parallel-size", "2"),
        ("--config", path),
        ("-dp", "1"),
    ]
    check_engine_args(["--config", path])
    assert data_parallel_size(["--config", path]) == 2
    assert data_parallel_size(["--config", path, "-dp", "1"]) == 1  # the command line wins


def test_a_config_file_may_not_hold_owned_flags(tmp_path):
    path = config(tmp_path, "speculative-config:\n  method: ngram\n")
    assert "--speculative-config" in refused("--config", path).message
    assert "--host" in refused(f"--config={config(tmp_path, 'host: 0.0.0.0')}").message


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [", "just text", ""])
def test_a_damaged_config_file(tmp_path, text):
    assert "serve.yaml" in refused("--config", config(tmp_path, text)).message


def test_a_missing_config_file(tmp_path):
    assert "nowhere.yaml" in refused("--config", str(tmp_path / "nowhere.yaml")).message


# ---------------------------------------------------------------------------- data parallelism


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ((), 1),
        (("-tp", "4"), 1),
        (("--data-parallel-size", "2"), 2),
        (("--data_parallel_size=4",), 4),
        (("-dp", "8"), 8),
        (("-dp=8", "--data-parallel-size", "2"), 2),
        (("--data-parallel-size-local", "2"), 1),
    ],
)
def test_data_parallel_size(arguments, size):
    assert data_parallel_size(arguments) == size


@pytest.mark.parametrize("value", ["two", "-1", ""])
def test_data_parallel_size_must_be_a_number(value):
    with pytest.raises(ConfigurationError, match="not a number"):
        data_parallel_size([f"--data-parallel-size={value}"])
