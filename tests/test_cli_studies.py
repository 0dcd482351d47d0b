"""`spectune studies`: what it prints, and that --json is exactly one document."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner
from store_samples import BASE, LIVE, make_block, make_plan, make_recommendation, make_window

from autotune.cli.studies import command
from autotune.errors import StorageError
from autotune.records import Recommendation
from autotune.store import open_study


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/s.db"


@pytest.fixture(scope="module")
def filled_database(tmp_path_factory):
    """A finished study; a second, interrupted one is newer."""
    file = tmp_path_factory.mktemp("filled") / "s.db"
    url, block = f"sqlite:///{file}", make_block()
    with open_study(url, make_plan()) as study:
        study.save(BASE, block, 0, make_window(BASE, 0, block, 100.0))
        study.save(LIVE, block, 0, make_window(LIVE, 3, block, 200.0))
        study.engine_started(BASE, 3.0)
        study.fail("ngram", None, "no repetition in these prompts")
        study.finish(make_recommendation(study.plan, study.id, warnings=("N=2 ties",)))
    with open_study(url, make_plan("acme/other")):
        pass
    return file


@pytest.fixture
def done(tmp_path, filled_database):
    """The id of the finished study in a copy of that database."""
    shutil.copy(filled_database, tmp_path / "s.db")
    return make_plan().sha256[:10]


def run(url, *arguments, **options):
    environment = {"SPECTUNE_STORAGE": url}
    return CliRunner().invoke(
        command, arguments, env=environment, catch_exceptions=False, **options
    )


def listed(url):
    return json.loads(run(url, "list", "--json").stdout)["studies"]


def test_list(url, done):
    lines = run(url, "list").stdout.splitlines()
    assert lines[0].startswith("ID  ")
    assert lines[0].endswith("  RESULT")
    assert done in lines[1]
    assert "mtp N=3 2.00x" in lines[1]
    assert "interrupted" in lines[2]
    first, second = listed(url)
    assert (first["id"], first["windows"], first["decision"]) == (done, 2, "speculate")
    assert (second["state"], second["decision"]) == ("interrupted", None)


def test_list_of_nothing_says_where_it_looked(url):
    result = run(url, "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"no studies in {url.removeprefix('sqlite:///')}" in result.stderr
    assert listed(url) == []


def test_storage_option_wins_over_the_environment(url, done):
    option = ("--storage", url)
    text = run("sqlite:////nonexistent/s.db", "list", "--json", *option).stdout
    assert json.loads(text)["studies"][0]["id"] == done


def test_show_for_people(url, done):
    text = run(url, "show", done[:5]).stdout
    assert text.startswith(f"study {done}: mtp N=3 2.00x (done)\n")
    assert "2 windows, 1 engine starts" in text
    assert "ngram: no repetition in these prompts" in text
    assert "N=2 ties" in text
    assert "vllm serve acme/small --speculative-config" in text
    assert "no recommendation (interrupted)" in run(url, "show").stdout


def test_show_json_is_the_recommendation(url, done):
    document = json.loads(run(url, "show", done, "--json").stdout)
    assert document["schema"] == "spectune.recommendation/1"
    assert document["serve_command"].startswith("vllm serve")
    del document["serve_command"]
    assert Recommendation.model_validate(document).study == done
    with pytest.raises(StorageError, match="has no recommendation: it is interrupted"):
        run(url, "show", "--json")


def test_show_writes_files(url, done, tmp_path):
    file = tmp_path / "r.json"
    result = run(url, "show", done, "--recording", "-o", str(file))
    assert result.stdout == ""
    document = json.loads(file.read_text())
    assert document == json.loads(run(url, "show", done, "--recording").stdout)
    assert document["schema"] == "spectune.recording/1"
    assert document["baseline"][0]["output_tokens_per_second"] == 100.0
    run(url, "show", done, "-o", str(file))
    assert json.loads(file.read_text())["study"] == done
    with pytest.raises(StorageError, match="cannot write"):
        run(url, "show", done, "-o", str(tmp_path / "no" / "r.json"))


def test_show_unknown(url, done):
    with pytest.raises(StorageError, match="no study 'zzz'"):
        run(url, "show", "zzz")


def test_path(url, tmp_path):
    assert run(url, "path").stdout == f"{tmp_path}/s.db\n"
    assert json.loads(run(url, "path", "--json").stdout) == {"path": f"{tmp_path}/s.db"}
    assert list(tmp_path.iterdir()) == []


def test_rm_asks_unless_told_not_to(url, done):
    result = run(url, "rm", done, input="n\n")
    assert result.exit_code == 1
    assert f"Remove study {done} (acme/small, 2 windows)?" in result.stderr
    assert len(listed(url)) == 2
    assert run(url, "rm", done, input="y\n").stdout == f"removed {done}\n"
    left = listed(url)[0]["id"]
    removed = json.loads(run(url, "rm", left[:4], "--yes", "--json").stdout)
    assert removed["removed"]["id"] == left
    assert listed(url) == []


def test_help_names_the_verbs(url):
    text = run(url, "--help").stdout
    for verb in ("list", "show", "path", "rm"):
        assert verb in text
