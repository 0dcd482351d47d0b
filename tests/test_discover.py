"""`--discover`, against a small server that stands in for the Hub."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

from autotune.cli import cli
from autotune.models.catalog import resolve_model
from autotune.models.discover import candidates, with_discovered

constants = pytest.importorskip("huggingface_hub.constants")
COMMIT = "a" * 40
TARGET = "me/Base-7B"
EAGLE3 = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64}
DFLASH = {"architectures": ["DFlashDraftModel"], "block_size": 8}


class Hub:
    """Models by id: (downloads, tags, config.json or None); `asked` holds what was requested."""

    def __init__(self):
        self.models, self.asked, self.broken = {}, [], None

    def add(self, name, downloads=0, config=None, base=TARGET, tags=()):
        tags = [*tags, *([f"base_model:{base}", f"base_model:finetune:{base}"] if base else [])]
        self.models[name] = (downloads, tags, config)

    def listed(self, query):
        wanted, search = query.get("filter", [""])[0], query.get("search", [""])[0].lower()
        found = [
            {"id": name, "modelId": name, "downloads": downloads, "tags": tags}
            for name, (downloads, tags, _) in self.models.items()
            if search in name.lower() and (not wanted or wanted in tags)
        ]
        found.sort(key=lambda item: -item["downloads"])
        return found[: int(query["limit"][0])]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A Hub on the loopback interface, an empty cache, and a client that has seen neither."""
    here = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            url = urlsplit(self.path)
            here.asked.append(self.path)
            if url.path == "/api/models" and here.broken is not None:
                return self.answer(*here.broken)
            if url.path == "/api/models":
                return self.answer(200, json.dumps(here.listed(parse_qs(url.query))).encode())
            name = "/".join(url.path.split("/")[1:3])
            config = here.models.get(name, (0, [], None))[2]
            if config is None or not url.path.endswith("/config.json"):
                return self.answer(404, b"{}")
            return self.answer(200, json.dumps(config).encode())

        do_HEAD = do_GET

        def answer(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hash(body) & 0xFFFFFFFF:x}"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    pattern = "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + pattern)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("autotune.models.config_json._hub_down", [])
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "SPECTUNE_CATALOG", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    here.add(TARGET, 5000, {"model_type": "llama", "hidden_size": 64, "vocab_size": 8}, base=None)
    yield here
    server.shutdown()
    thread.join()
    server.server_close()


def found(name=TARGET):
    model, said = with_discovered(resolve_model(name))
    return {m: [d.id for d in known] for m, known in model.discovered.items()}, said


def test_the_most_downloaded_drafter_of_each_method_comes_first(hub):
    hub.add("x/Base-7B-eagle3-old", 10, EAGLE3)
    hub.add("y/some-eagle3", 900, EAGLE3)
    hub.add("z/Base-7B-DFlash", 7, DFLASH)
    drafters, said = found()
    assert drafters == {"dflash": ["z/Base-7B-DFlash"],
                        "eagle3": ["y/some-eagle3", "x/Base-7B-eagle3-old"]}  # fmt: skip
    assert any("eagle3: y/some-eagle3" in text and "900 downloads" in text for text in said)


def test_what_is_left_out(hub):
    hub.add("x/Other-7B-eagle3", 99, EAGLE3, base="me/Other-7B")  # another base
    hub.add("x/Big-Base-7B-eagle3-other", 98, EAGLE3, base="me/Big")  # the name alone is no proof
    hub.add("x/Base-7B-eagle3-GGUF", 97, EAGLE3)  # no checkpoint of vLLM's
    hub.add("x/Base-7B-finetune", 96, {"architectures": ["LlamaForCausalLM"]})  # no drafter
    hub.add("x/Base-7B-eagle3-wide", 95, {**EAGLE3, "target_hidden_size": 128})  # does not fit
    hub.add("x/Base-7B-eagle3-gated", 94, None)  # config.json cannot be had
    hub.add("x/Base-7B-eagle3-odd", 93, {"architectures": "no list"})  # damaged
    hub.add("x/Base-7B-eagle3-of-another", 92, {
        "speculators_model_type": "eagle3",
        "speculators_config": {"verifier": {"name_or_path": "me/Another-7B"}},
    })  # fmt: skip
    hub.add("x/Base-7B-assistant", 91, {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 12,
    })  # a language model  # fmt: skip
    drafters, said = found()
    assert drafters == {}
    assert "no drafter that names me/Base-7B" in said[0]


def test_a_drafter_without_a_base_counts_by_its_whole_name(hub):
    hub.add("x/Base-7B-eagle3", 5, EAGLE3, base=None)
    hub.add("x/Base-70B-eagle3", 6, EAGLE3, base=None)
    hub.add("x/SuperBase-7B-eagle3", 7, EAGLE3, base=None)
    assert [item.id for item in candidates(TARGET)] == ["x/Base-7B-eagle3"]


def test_one_of_the_right_verifier_is_taken(hub):
    hub.add("x/spec", 1, EAGLE3)
    hub.add("x/base-7b-speculator.eagle3", 2, {
        "speculators_model_type": "eagle3",
        "speculators_config": {"verifier": {"name_or_path": "ME/base-7b"}},
    })  # fmt: skip
    assert found()[0] == {"eagle3": ["x/base-7b-speculator.eagle3"]}


def test_models_lists_them_and_run_takes_the_best(hub):
    hub.add("y/good-eagle3", 900, EAGLE3)
    hub.add("x/worse-eagle3", 10, EAGLE3)
    result = CliRunner().invoke(cli, ["models", TARGET, "--discover"])
    assert result.exit_code == 0
    assert "y/good-eagle3" in result.stdout
    assert "--drafter eagle3=x/worse-eagle3  (10 downloads)" in result.stdout
    assert "warning: eagle3: y/good-eagle3 was found by --discover" in result.stdout
    run = ["run", "--model", TARGET, "--workload", "code", "--methods", "eagle3", "--dry-run"]
    refused = CliRunner().invoke(cli, run)
    assert refused.exit_code != 0  # no drafter is known
    shown = CliRunner().invoke(cli, [*run, "--discover"])
    assert shown.exit_code == 0, shown.output
    assert '"model":"y/good-eagle3"' in shown.stdout
    assert "found by --discover" in shown.stdout
    assert "unverified" in shown.stdout


def test_the_catalogue_and_the_user_come_first(hub, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(
        f'[[model]]\nid = "{TARGET}"\n[model.drafters]\neagle3 = [{{ id = "me/known" }}]\n'
    )
    hub.add("y/other-eagle3", 900, EAGLE3)
    hub.add("me/known", 1, EAGLE3)
    arguments = ["models", TARGET, "--discover", "--catalog", str(own), "--json"]
    document = json.loads(CliRunner().invoke(cli, arguments).stdout)
    used = {space["method"]: space["drafter"] for space in document["methods"]}
    assert used["eagle3"] == "me/known"
    assert "y/other-eagle3" in [other["id"] for other in document["alternatives"]]
    assert not any("found by --discover" in warning for warning in document["warnings"])
    arguments += ["--drafter", "eagle3=y/other-eagle3"]
    document = json.loads(CliRunner().invoke(cli, arguments).stdout)
    assert {s["method"]: s["drafter"] for s in document["methods"]}["eagle3"] == "y/other-eagle3"


@pytest.mark.parametrize(
    "broken", [(503, b"{}"), (200, b"<html>"), (200, b'{"error": 1}'), (401, b"{}")]
)
def test_a_hub_that_cannot_be_asked_is_said_and_the_rest_goes_on(hub, broken):
    hub.broken = broken
    result = CliRunner().invoke(cli, ["models", "Qwen/Qwen3-8B", "--discover"])
    assert result.exit_code == 0
    assert "warning: --discover found nothing: the Hub" in result.stdout
    assert "z-lab/Qwen3-8B-DFlash-b16" in result.stdout
    assert sum(path.startswith("/api/models") for path in hub.asked) == 1  # not asked again


def test_odd_entries_of_the_list_are_passed_over(hub, monkeypatch):
    odd = [None, 3, {}, {"id": 7}, {"id": "x/base-7b-eagle3", "tags": None, "downloads": "many"}]
    hub.broken = (200, json.dumps(odd).encode())
    assert [(item.id, item.downloads) for item in candidates(TARGET)] == [("x/base-7b-eagle3", 0)]


def test_offline_asks_nobody(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model, said = with_discovered(resolve_model(TARGET))
    assert model.discovered == {}
    assert "offline" in said[0]
    assert hub.asked == []


def test_a_folder_has_no_name_on_the_hub(hub, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    assert "is a folder" in found("m")[1][0]
    assert hub.asked == []
