"""Exported files in the hands of vLLM itself: its parser, and a real engine started from them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from test_export import recommendation, words_of
from vllm_samples import ENGINE_ARGS, ENVIRONMENT, NEEDS_VLLM, engine_environment

from autotune.engines.process import ManagedProcess, free_port, state_dir
from autotune.engines.server import Server
from autotune.export import export
from autotune.machine.environment import probe_engine
from autotune.machine.variables import engine_variables

pytestmark = NEEDS_VLLM

HERE = Path(__file__).parent
SMOLLM = HERE.parent / ".demo/SmolLM2-135M-Instruct"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4,
         "prompt_lookup_min": 2}  # fmt: skip
SCHEDULE = {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 64, 1]]}
NASTY = '{# it\'s #}\n"$HOME": `id` \\ 100% !x: - é'

CASES = {
    "CPU": (ENGINE_ARGS, NGRAM),
    "short flags": (("-tp", "2", "-pp=1", "-O2", "-dp", "2", "-ep", "-q", "fp8"), NGRAM),
    "underscores": (("--max_num_seqs", "8", "--max_model_len=8k", "--seed=-1"), NGRAM),
    "switches": (("--no-enable-prefix-caching", "--trust-remote-code", "--enforce-eager"), NGRAM),
    "last one counts": (("--max-num-seqs", "1", "--max-num-seqs", "9", "--enable-prefix-caching",
                         "--no-enable-prefix-caching"), NGRAM),
    "numbers": (("--gpu-memory-utilization", "0.90", "--max-num-batched-tokens", "2k"), NGRAM),
    "lists": (("--served-model-name", "a", "007", "true", "--cudagraph-capture-sizes", "1", "2",
               "--allowed-origins", '["*", "https://a.b"]'), NGRAM),
    "JSON": (("--hf-overrides", '{"rope_parameters": {"factor": 4.0, "on": true, "x": null}}',
              "--override-generation-config", '{"temperature": 0.5}',
              "--limit-mm-per-prompt", '{"image": 2}'), NGRAM),
    "parts of JSON": (("--compilation-config.mode", "3", "--limit-mm-per-prompt.image", "2",
                       "--compilation-config.cudagraph_capture_sizes+", "1",
                       "--compilation-config.cudagraph_capture_sizes+", "2,4"), NGRAM),
    "text": (("--chat-template", NASTY, "--revision", "1e3", "--tokenizer", "no"), NGRAM),
    "adapters": (("--enable-lora", "--lora-modules", '{"name": "a", "path": "p"}', "b=q"), NGRAM),
    "schedule": ((), SCHEDULE),
    "drafter": ((), {"method": "draft_model", "model": "acme/it's", "num_speculative_tokens": 2}),
    "nothing drafted": (("--per-request-spec-decode-metrics", "detailed", "--seed", "3"), None),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _environment(tmp_path_factory):
    with engine_environment(tmp_path_factory):
        yield


@pytest.fixture(scope="module")
def understood(tmp_path_factory):
    """By case: what vLLM makes of the command, and of the file; one process for all."""
    folder = tmp_path_factory.mktemp("configs")
    own = folder / "own.yaml"
    own.write_text("max_num_seqs: 4\ntrust-remote-code: true\nserved-model-name: [a, b]\n")
    cases = {**CASES, "own file": (("--config", str(own), "--max-num-seqs", "8"), NGRAM)}
    false, without = folder / "false.yaml", folder / "without.yaml"
    false.write_text("model: m\nenable-prefix-caching: false\n")
    without.write_text("model: m\n")
    words = {"x: false": [["serve", "--config", str(path)] for path in (false, without)]}
    for name, (arguments, config) in cases.items():
        r = recommendation(*arguments, config=config, model="acme/model")
        file = folder / f"{name}.yaml"
        file.write_text(export(r, "config") + "\n")
        words[name] = [words_of(export(r, "command"))[1:], ["serve", "--config", str(file)]]
    done = subprocess.run(
        [sys.executable, str(HERE / "parse_with_vllm.py")],
        input=json.dumps([each for pair in words.values() for each in pair]),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("answers:")]
    assert lines, done.stderr[-3000:]
    answers = iter(json.loads(lines[0].removeprefix("answers:")))
    return {name: (dict(next(answers)), dict(next(answers))) for name in words}


@pytest.mark.parametrize("name", [*CASES, "own file"])
def test_vllm_understands_the_file_as_the_command(understood, name):
    command, file = understood[name]
    assert file == command
    assert command["model"] == "'acme/model'"
    config = CASES.get(name, ((), NGRAM))[1]
    assert command["speculative_config"] == repr(config)


def test_the_cases_say_something(understood):
    """Else equal answers would mean little."""
    assert understood["short flags"][1]["tensor_parallel_size"] == "2"
    assert understood["underscores"][1]["max_model_len"] == "8000"
    assert understood["switches"][1]["enable_prefix_caching"] == "False"
    assert understood["lists"][1]["served_model_name"] == "['a', '007', 'true']"
    assert understood["text"][1]["chat_template"] == repr(NASTY)
    assert understood["text"][1]["tokenizer"] == "'no'"
    assert understood["nothing drafted"][1]["per_request_spec_decode_metrics"] == "'none'"
    assert understood["own file"][1]["max_num_seqs"] == "8"
    assert understood["own file"][1]["trust_remote_code"] == "True"


def test_false_in_a_file_says_nothing_to_vllm_serve(understood):
    """Why `no-x: true` is written."""
    false, without = understood["x: false"]
    assert false == without


@pytest.mark.skipif(not SMOLLM.is_dir(), reason="`make demo` prepares the model")
def test_an_engine_started_from_the_files_answers_and_drafts(tmp_path):
    r = recommendation(
        *ENGINE_ARGS, config=NGRAM, model=str(SMOLLM), method="ngram",
        variables=engine_variables(probe_engine()),
    )  # fmt: skip
    assert set(ENVIRONMENT) - set(r.variables) == {"HF_HUB_OFFLINE"}  # no matter of speed
    for form, name in (("config", "serve.yaml"), ("env", "env.sh")):
        (tmp_path / name).write_text(export(r, form) + "\n")
    port = free_port("127.0.0.1")
    serve = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--config", "serve.yaml"]
    serve += ["--host", "127.0.0.1", "--port", str(port)]
    bare = {k: v for k, v in os.environ.items() if k not in r.variables}
    process = ManagedProcess.start(
        ["sh", "-c", f"cd {shlex.quote(str(tmp_path))} && . ./env.sh && exec {shlex.join(serve)}"],
        bare,
        log_path=tmp_path / "log",
        state_dir=state_dir(),
        grace_seconds=20.0,
    )
    try:
        server = Server(f"http://127.0.0.1:{port}", 120.0)
        deadline = time.monotonic() + 300
        while not server.healthy():
            assert process.poll() is None and time.monotonic() < deadline, process.last_words(20)
            time.sleep(0.5)
        prompt = "one two three four one two three four one two three"
        body = {"model": str(SMOLLM), "prompt": prompt, "max_tokens": 24, "temperature": 0}
        request = urllib.request.Request(
            f"{server.base_url}/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)
        assert answer["usage"]["completion_tokens"] == 24
        assert server.quiet_snapshot().counters.num_draft_tokens > 0
    finally:
        process.stop()
