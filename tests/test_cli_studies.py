"""`spectune studies`: what it prints, and that --json is exactly one document."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import time
from contextlib import closing

import pytest
from click.testing import CliRunner
from store_samples import BASE, LIVE, make_block, make_plan, make_recommendation, make_window

from autotune.cli.studies import command
from autotune.documents import save
from autotune.errors import ConfigurationError, StorageError
from autotune.records import (
    CandidateResult,
    Environment,
    Interval,
    MethodSpace,
    Recommendation,
    Settings,
    Status,
    Target,
)
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
    assert "2 windows, 1 engine start, " in text
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
    with pytest.raises(ConfigurationError, match="has no recommendation: it is interrupted"):
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
    with pytest.raises(ConfigurationError, match="cannot write"):
        run(url, "show", done, "-o", str(tmp_path / "no" / "r.json"))


def test_text_that_is_no_utf8_is_written_escaped(tmp_path):
    """Of a path that the file system gave: JSON reads the escape as the very same path."""
    save(json.dumps({"path": "caf\udce9"}, ensure_ascii=False), tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text()) == {"path": "caf\udce9"}


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
    assert [info["id"] for info in removed["removed"]] == [left]
    assert listed(url) == []


def test_help_names_the_verbs(url):
    text = run(url, "--help").stdout
    for verb in ("list", "show", "path", "rm"):
        assert verb in text


# ------------------------------------------------------------------------------------ rm, several


@pytest.fixture(scope="module")
def three_studies(tmp_path_factory):
    """Studies begun 40 days ago, 2 days ago and now: (folder, their ids)."""
    folder, ids = tmp_path_factory.mktemp("three"), []
    for model in ("a/a", "b/b", "c/c"):
        with open_study(f"sqlite:///{folder}/s.db", make_plan(model)) as study:
            ids.append(study.id)
    for name, days in zip(ids, (40, 2, 0), strict=True):
        sql(folder, "UPDATE spectune_study SET created_at = ? WHERE name = ?",
            time.time() - days * 86400, name)  # fmt: skip
    return folder, ids


@pytest.fixture
def three(tmp_path, three_studies):
    """Their ids, in a copy of that database."""
    folder, ids = three_studies
    shutil.copy(folder / "s.db", tmp_path)
    return ids


def sql(folder, statement, *values):
    with closing(sqlite3.connect(folder / "s.db")) as raw:
        raw.execute(statement, values)
        raw.commit()


def ids(url):
    return [info["id"] for info in listed(url)]


def test_rm_several(url, three):
    result = run(url, "rm", three[0][:5], three[2], three[2], input="y\n")
    assert f"Remove 2 studies ({three[0]}, {three[2]}; 0 windows)?" in result.stderr
    assert result.stdout == f"removed {three[0]}\nremoved {three[2]}\n"
    assert ids(url) == [three[1]]


def test_rm_one_unknown_removes_nothing(url, three):
    with pytest.raises(StorageError, match="no study 'zzz'"):
        run(url, "rm", three[0], "zzz", "-y")
    assert ids(url) == three


@pytest.mark.parametrize(
    ("age", "kept"), [("30d", 2), ("6w", 3), ("1d", 1), ("24h", 1), ("0h", 0), ("1.5d", 1)]
)
def test_rm_by_age(url, three, age, kept):
    result = run(url, "rm", "--older-than", age, "-y", "--json")
    removed = [info["id"] for info in json.loads(result.stdout)["removed"]]
    assert removed + ids(url) == three
    assert len(ids(url)) == kept


def test_rm_by_age_and_by_name(url, three):
    run(url, "rm", three[2], "--older-than", "30d", "-y")
    assert ids(url) == [three[1]]
    result = run(url, "rm", "--older-than", "30d", "-y")
    assert (result.stdout, result.stderr) == ("", "there was nothing to remove\n")


@pytest.mark.parametrize("age", ["30", "d", "-1d", "1y", "soon"])
def test_rm_wants_an_age(url, three, age):
    with pytest.raises(ConfigurationError, match="is not an age"):
        run(url, "rm", "--older-than", age, "-y")
    assert ids(url) == three


def test_rm_wants_to_know_what(url):
    result = run(url, "rm", "-y")
    assert result.exit_code == 2
    assert "--older-than" in result.stderr


def test_a_running_study_is_not_removed(url, three, tmp_path):
    with open_study(url, make_plan("a/a")):
        with pytest.raises(StorageError, match=f"{three[0]} is being run: nothing was removed"):
            run(url, "rm", three[0], three[2], "-y")
        assert ids(url) == three
        result = run(url, "rm", "--older-than", "1d", "-y")
        assert f"study {three[0]} is being run and stays" in result.stderr
        assert ids(url) == [three[0], three[2]]
    run(url, "rm", three[0], "-y")
    assert ids(url) == [three[2]]


# --------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("content", ["{", "[]", '{"target": {}}', '"text"', "null"])
def test_a_damaged_study_is_shown_and_can_be_removed(url, three, tmp_path, content):
    sql(tmp_path, "UPDATE spectune_study SET plan = ? WHERE name = ?", content, three[1])
    assert [info["state"] for info in listed(url)] == ["interrupted", "damaged", "interrupted"]
    assert "damaged" in run(url, "list").stdout.splitlines()[2]
    with pytest.raises(StorageError, match="a stored Plan cannot be read"):
        run(url, "show", three[1])
    assert run(url, "show", three[2]).stdout.startswith(f"study {three[2]}")
    result = run(url, "rm", three[1], input="y\n")
    assert f"Remove study {three[1]} (damaged, 0 windows)?" in result.stderr
    assert ids(url) == [three[0], three[2]]


def test_a_study_with_a_broken_time_is_listed(url, three, tmp_path):
    sql(tmp_path, "UPDATE spectune_study SET created_at = ? WHERE name = ?", "[]", three[1])
    assert {info["id"]: info["created"] for info in listed(url)}[three[1]] == ""
    assert run(url, "show", three[1]).stdout.startswith(f"study {three[1]}")


def test_a_file_that_is_no_database(url, tmp_path):
    (tmp_path / "s.db").write_bytes(b"not a database " * 300)
    for arguments in (["list"], ["show"], ["rm", "x", "-y"], ["rm", "--older-than", "1d", "-y"]):
        with pytest.raises(StorageError, match="is not a SQLite database"):
            run(url, *arguments)
    assert run(url, "path").stdout == f"{tmp_path}/s.db\n"


# --------------------------------------------------------------------------------- side by side


def interval(value):
    return Interval(value=value, low=value - 0.1, high=value + 0.1, confidence=0.95)


def candidate(method, n, rate, load=8, **more):
    status = Status.PROBED if rate else Status.PREDICTED
    return CandidateResult(
        method=method, num_speculative_tokens=n, concurrency=load, status=status,
        output_tokens_per_second=rate, speedup=interval(rate / 100) if rate else None, **more,
    )  # fmt: skip


@pytest.fixture
def pair(url):
    """Two finished studies, the second with other flags, another GPU and another choice."""
    plans = [
        make_plan(engine="vllm", target=Target(model="a/a", engine_args=("--max-num-seqs", "8"))),
        make_plan(
            engine="vllm",
            target=Target(model="a/a"),
            environment=Environment(gpu="Acme G2", gpu_count=2, vllm="0.32.0"),
            settings=Settings(seed=3),
            spaces=(MethodSpace(method="mtp", lengths=(1, 2)),),
        ),
    ]
    rows = [
        (candidate("mtp", 1, 150.0), candidate("mtp", 2, 180.0, acceptance_length=2.5),
         candidate("mtp", 3, 200.0), candidate("eagle3", 1, None)),
        (candidate("mtp", 1, 165.0), candidate("mtp", 2, 171.0), candidate("mtp", 2, 90.0, load=1)),
    ]  # fmt: skip
    made = []
    for plan, candidates in zip(plans, rows, strict=True):
        with open_study(url, plan) as study:
            study.finish(make_recommendation(plan, study.id, candidates=candidates))
            made.append(study.id)
    return made


def test_two_studies_side_by_side(url, pair):
    document = json.loads(run(url, "show", pair[0][:6], pair[1][:6], "--json").stdout)
    assert [info["id"] for info in document["studies"]] == pair
    found = {d["field"]: (d["first"], d["second"]) for d in document["differences"]}
    assert found == {
        "target.engine_args": (["--max-num-seqs", "8"], []),
        "environment.gpu": ("Acme G1", "Acme G2"),
        "settings.seed": (0, 3),
        "methods.mtp.lengths": ([1, 2, 3], [1, 2]),
    }
    pairs = {(c["method"], c["num_speculative_tokens"], c["concurrency"]): c
             for c in document["candidates"]}  # fmt: skip
    assert set(pairs) == {("mtp", 1, 8), ("mtp", 2, 8)}
    assert pairs["mtp", 1, 8]["ratio"] == pytest.approx(1.1)
    assert pairs["mtp", 2, 8]["ratio"] == pytest.approx(0.95)
    assert pairs["mtp", 2, 8]["first_speedup"]["high"] == pytest.approx(1.9)
    assert pairs["mtp", 2, 8]["first_acceptance_length"] == 2.5
    assert pairs["mtp", 2, 8]["second_acceptance_length"] is None
    assert (document["only_first"], document["only_second"]) == (1, 1)
    one, eight = document["loads"]
    assert (one["first"], one["concurrency"], eight["concurrency"]) == (None, 1, 8)
    assert eight["first"]["speedup"]["value"] == 2.0
    assert eight["second_baseline_tokens_per_second"] == 100.0


def test_two_studies_for_people(url, pair):
    text = run(url, "show", *pair).stdout
    assert "environment.gpu" in text and "Acme G2" in text
    assert "mtp N=3 2.00x [1.90, 2.10]" in text
    row = next(line for line in text.splitlines() if line.startswith("mtp     1"))
    assert row.split()[:6] == ["mtp", "1", "8", "150.0", "165.0", "1.100"]
    assert "2.50 / -" in text
    assert f"measured in one only: 1 in {pair[0]}, 1 in {pair[1]}" in text
    verdicts = re.compile(r"\b(better|worse|faster|slower|regress|improve|significant)", re.I)
    assert not verdicts.search(text)


def test_the_loads_of_two_studies_are_in_order(url):
    ids = []
    for loads in ((32, 8), (1, 64)):
        with open_study(url, make_plan(concurrencies=loads)) as study:
            study.finish(make_recommendation(study.plan, study.id))
            ids.append(study.id)
    document = json.loads(run(url, "show", *ids, "--json").stdout)
    assert [pair["concurrency"] for pair in document["loads"]] == [1, 8, 32, 64]


def test_a_study_beside_itself_and_beside_one_without_answer(url, pair, tmp_path):
    text = run(url, "show", pair[0], pair[0]).stdout
    assert "both were asked the same" in text
    assert "measured in one only: 0" in text
    with open_study(url, make_plan("a/a", engine="vllm")) as study:
        pass
    text = run(url, "show", pair[0], study.id).stdout
    assert "no candidate was measured in both" in text
    file = tmp_path / "pair.json"
    assert run(url, "show", pair[0], study.id, "-o", str(file)).stdout == ""
    assert json.loads(file.read_text())["candidates"] == []
    with pytest.raises(StorageError, match="no study 'zzz'"):
        run(url, "show", pair[0], "zzz")
    assert run(url, "show", *pair, "--recording").exit_code == 2
