"""Studies: what was measured comes back, whatever happens to the process."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import signal
import sqlite3
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from store_samples import (
    BASE,
    LIVE,
    make_block,
    make_plan,
    make_recommendation,
    make_window,
)

from autotune.errors import StorageError
from autotune.records import BlockRole, Settings, StepTimes, Window
from autotune.store import (
    as_recording,
    list_studies,
    load_study,
    open_study,
    remove_study,
)

fork = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    """Made once: setting up a database takes longer than most tests."""
    file = tmp_path_factory.mktemp("empty") / "s.db"
    with open_study(f"sqlite:///{file}", make_plan()) as study:
        pass
    remove_study(f"sqlite:///{file}", study.id)
    return file


@pytest.fixture
def file(tmp_path, empty_database):
    return shutil.copy(empty_database, tmp_path / "s.db")


@pytest.fixture
def url(file):
    return f"sqlite:///{file}"


@contextmanager
def locked(file):
    """Another program holds the database's write lock."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def side_files(file):
    return list(file.parent.glob("*.pending.jsonl"))


# ------------------------------------------------------------------------------ round trip


def test_what_is_saved_is_recalled_after_reopening(url):
    block = make_block()
    window = make_window(
        LIVE,
        3,
        block,
        per_position_acceptance_rates=(0.9, 0.1 + 0.2),
        steps=StepTimes(
            num_steps=3,
            draft_seconds_per_step=None,
            verify_seconds_per_step=1e-3,
            step_seconds=2e-3,
            coverage=0.5,
            tokens_per_step=4,
            requests_per_step=1,
        ),
        flags=("é \x00 𝄞",),
    )
    with open_study(url, make_plan()) as study:
        assert study.recall(LIVE, 3, block) is None
        study.save(LIVE, block, 0, window)
        assert study.recall(LIVE, 3, block) == window
    with open_study(url, make_plan()) as study:
        assert study.resumed
        assert study.recall(LIVE, 3, block) == window
        assert study.recall(LIVE, 3, block, repeat=1) is None
        assert study.recall(LIVE, 2, block) is None
        assert study.recall(BASE, 3, block) is None
        assert study.recall(LIVE, 3, make_block(1)) is None


def test_windows_come_in_order_of_measurement(url):
    with open_study(url, make_plan()) as study:
        for index in (3, 1, 2):
            study.save(BASE, make_block(index), 0, make_window(BASE, 0, make_block(index)))
        expected = ["search:3:c8", "search:1:c8", "search:2:c8"]
        assert [stored.block for stored in study.windows()] == expected
    assert [stored.block for stored in load_study(url).windows] == expected


def test_starts_failures_and_seconds_accumulate_over_runs(url):
    for seconds in (1.5, 2.0):
        with open_study(url, make_plan()) as study:
            study.engine_started(LIVE, seconds)
            study.add_seconds(seconds)
    with open_study(url, make_plan()) as study:
        study.engine_started(BASE, 0.5, error="no GPU\x00\udcff")
        study.fail("mtp", 3, "died", last_words="CUDA\x00 out of memory")
        study.fail("ngram", None, "does not apply")
        assert study.total_seconds() == 3.5
        starts, failures = study.engine_starts(), study.failures()
    assert [(s.arm, s.method, s.live, s.seconds) for s in starts] == [
        ("mtp:8:live:0", "mtp", True, 1.5),
        ("mtp:8:live:0", "mtp", True, 2.0),
        ("none:0:static:0", "none", False, 0.5),
    ]
    assert starts[0].error is None
    assert starts[2].error == "no GPU\\x00\\udcff"
    assert [(f.method, f.num_speculative_tokens, f.error) for f in failures] == [
        ("mtp", 3, "died"),
        ("ngram", None, "does not apply"),
    ]
    loaded = load_study(url)
    assert loaded.engine_starts == tuple(starts)
    assert loaded.failures == tuple(failures)
    assert loaded.info.total_seconds == 3.5


def test_finish_makes_the_study_done(url):
    plan = make_plan()
    with open_study(url, plan) as study:
        assert study.recommendation() is None
        assert study.state == "running"
        recommendation = make_recommendation(plan, study.id)
        study.finish(recommendation)
        assert study.state == "done"
        assert study.recommendation() == recommendation
    loaded = load_study(url, study.id)
    assert loaded.recommendation == recommendation
    assert loaded.plan == plan
    info = loaded.info
    assert (info.state, info.decision, info.method) == ("done", "speculate", "mtp")
    assert (info.num_speculative_tokens, info.speedup) == (3, 2.0)


# ---------------------------------------------------------------------------- numbers


def test_numpy_values_are_stored_as_plain_numbers(url, file):
    block = make_block()
    window = make_window(LIVE, 2, block).model_copy(
        update={
            "num_speculative_tokens": np.int64(2),
            "output_tokens_per_second": np.float64(250.5),
            "acceptance_length": np.float32(2.5),
            "per_position_acceptance_rates": np.array([0.75, 0.5]),
        }
    )
    with open_study(url, make_plan()) as study:
        study.save(LIVE, block, np.int64(0), window)
        study.engine_started(LIVE, np.float32(1.5))
        study.fail("mtp", np.int64(2), "x")
        study.add_seconds(np.float64(0.25))
        recommendation = make_recommendation(study.plan, study.id).model_copy(
            update={"speculative_config": {"num_speculative_tokens": np.int64(3)}}
        )
        study.finish(recommendation)
    with open_study(url, make_plan()) as study:
        recalled = study.recall(LIVE, np.int64(2), block)
        assert recalled == make_window(
            LIVE, 2, block, 250.5, acceptance_length=2.5, per_position_acceptance_rates=(0.75, 0.5)
        )
        assert study.failures()[0].num_speculative_tokens == 2
        assert study.recommendation().speculative_config == {"num_speculative_tokens": 3}
    with closing(sqlite3.connect(file)) as raw:
        assert raw.execute("SELECT typeof(n), content FROM spectune_window").fetchone()[0] == (
            "integer"
        )


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_non_finite_numbers_are_refused_before_writing(url, number):
    block = make_block()
    with open_study(url, make_plan()) as study:
        with pytest.raises(StorageError, match=r"Window\.acceptance_length is -?(nan|inf)"):
            study.save(BASE, block, 0, make_window(BASE, 0, block, acceptance_length=number))
        with pytest.raises(StorageError, match="seconds is"):
            study.engine_started(BASE, number)
        with pytest.raises(StorageError, match="seconds is"):
            study.add_seconds(number)
        with pytest.raises(StorageError, match=r"Recommendation\.speculative_config\.x is"):
            study.finish(
                make_recommendation(study.plan, study.id, speculative_config={"x": number})
            )
        assert study.recall(BASE, 0, block) is None
        assert study.total_seconds() == 0
        assert study.engine_starts() == []
        assert study.state == "running"


def test_a_measurement_is_never_overwritten(url):
    block = make_block()
    with open_study(url, make_plan()) as study:
        study.save(BASE, block, 0, make_window(BASE, 0, block, 100.0))
        study.save(BASE, block, 0, make_window(BASE, 0, block, 100.0))
        with pytest.raises(StorageError, match="another window"):
            study.save(BASE, block, 0, make_window(BASE, 0, block, 101.0))
        study.save(BASE, block, 1, make_window(BASE, 0, block, 101.0))
        rates = [stored.window.output_tokens_per_second for stored in study.windows()]
    assert rates == [100.0, 101.0]


# ---------------------------------------------------------------------- resume and fresh


def test_the_same_plan_resumes_and_another_one_does_not(url):
    with open_study(url, make_plan()) as first:
        pass
    with open_study(url, make_plan(settings=Settings(budget_seconds=60))) as again:
        assert again.id == first.id == make_plan().sha256[:10]
    with open_study(url, make_plan(concurrencies=(1,))) as other:
        assert other.id != first.id
        assert not other.resumed
    stored = load_study(url, first.id)
    assert stored.plan.settings.budget_seconds == 60


def test_fresh_makes_the_next_attempt_and_the_latest_is_resumed(url):
    block = make_block()
    with open_study(url, make_plan()) as first:
        first.save(BASE, block, 0, make_window(BASE, 0, block))
    with open_study(url, make_plan(), fresh=True) as second:
        assert second.id == f"{first.id}-2"
        assert not second.resumed
        assert second.recall(BASE, 0, block) is None
    with open_study(url, make_plan()) as resumed:
        assert resumed.id == second.id
        assert resumed.attempt == 2
    with open_study(url, make_plan(), fresh=True) as third:
        assert third.id == f"{first.id}-3"
    assert [info.id for info in list_studies(url)] == [first.id, second.id, third.id]


def test_fresh_on_an_empty_database_is_the_first_attempt(url):
    with open_study(url, make_plan(), fresh=True) as study:
        assert study.attempt == 1


# -------------------------------------------------------------------------- lost processes


def _measure_for_ever(url, pipe):
    study = open_study(url, make_plan())
    for index in range(10_000):
        block = make_block(index)
        study.save(LIVE, block, 0, make_window(LIVE, 3, block, 1.0 + index))
        study.add_seconds(1.0)
        pipe.send(index)


def test_a_killed_process_loses_nothing_that_returned(url):
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_measure_for_ever, args=(url, sender))
    process.start()
    for _ in range(20):
        receiver.recv()
    assert load_study(url).info.state == "running"
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    sender.close()
    last = 19
    while receiver.poll():
        try:
            last = receiver.recv()
        except EOFError:
            break
    assert load_study(url).info.state == "interrupted"
    with open_study(url, make_plan()) as study:
        for index in range(last + 1):
            window = study.recall(LIVE, 3, make_block(index))
            assert window.output_tokens_per_second == 1.0 + index
        assert study.total_seconds() >= last + 1


def _hold(url, pipe):
    with open_study(url, make_plan()):
        pipe.send("open")
        pipe.recv()


def test_a_second_process_on_one_study_is_refused(url):
    ours, theirs = fork.Pipe()
    process = fork.Process(target=_hold, args=(url, theirs))
    process.start()
    assert ours.recv() == "open"
    study_id = make_plan().sha256[:10]
    message = f"study {study_id} is being run by pid {process.pid} "
    with pytest.raises(StorageError, match=message):
        open_study(url, make_plan())
    with pytest.raises(StorageError, match=message):
        remove_study(url, study_id)
    with open_study(url, make_plan("another/model")) as other:
        assert other.state == "running"
    states = {info.id: info.state for info in list_studies(url)}
    assert states == {study_id: "running", other.id: "interrupted"}
    ours.send("close")
    process.join()
    with open_study(url, make_plan()) as study:
        assert study.resumed
    assert not list(Path(study.url.removeprefix("sqlite:///")).parent.glob("*.lock"))


def _fill(url, model, start, outcome):
    try:
        start.wait()
        with open_study(url, make_plan(model)) as study:
            trials = study.optuna_study()
            for index in range(8):
                block = make_block(index)
                study.save(LIVE, block, 0, make_window(LIVE, 3, block))
                study.engine_started(LIVE, 1.0)
                trial = trials.ask()
                trial.suggest_int("n", 1, 8)
                trials.tell(trial, float(index))
        outcome.put("")
    except Exception as error:
        outcome.put(repr(error))
        raise


@pytest.mark.slow
def test_four_processes_fill_one_new_database_at_once(tmp_path):
    url = f"sqlite:///{tmp_path}/new.db"
    start, outcome = fork.Barrier(4), fork.Queue()
    processes = [
        fork.Process(target=_fill, args=(url, f"acme/m{i}", start, outcome)) for i in range(4)
    ]
    for process in processes:
        process.start()
    assert [outcome.get() for _ in processes] == [""] * 4
    for process in processes:
        process.join()
    assert sorted(info.model for info in list_studies(url)) == [f"acme/m{i}" for i in range(4)]
    for info in list_studies(url):
        assert info.windows == 8
        assert len(load_study(url, info.id).engine_starts) == 8
    with open_study(url, make_plan("acme/m0")) as study:
        assert len(study.optuna_study().trials) == 8
        assert study.running_trials() == []


# -------------------------------------------------------------------------------- locks


def test_a_lock_sends_the_measurement_to_a_side_file_and_back(url, file, caplog):
    first, second, third = make_block(0), make_block(1), make_block(2)
    with open_study(url, make_plan(), busy_timeout_seconds=0.05) as study:
        study.save(BASE, first, 0, make_window(BASE, 0, first))
        with locked(file):
            study.save(BASE, second, 0, make_window(BASE, 0, second))
            study.engine_started(BASE, 2.0)
            study.fail("mtp", None, "gone")
            study.add_seconds(7.0)
            assert len(side_files(file)) == 1
            assert "is locked by another program" in caplog.text
            assert "waits in" in caplog.text
            assert study.recall(BASE, 0, second) == make_window(BASE, 0, second)
            assert [s.block for s in study.windows()] == ["search:0:c8", "search:1:c8"]
            assert len(study.engine_starts()) == len(study.failures()) == 1
            assert study.total_seconds() == 7.0
            seen = load_study(url)
            assert len(seen.windows) == seen.info.windows == 2
        study.save(BASE, third, 0, make_window(BASE, 0, third))
        assert side_files(file) == []
        assert study.total_seconds() == 7.0
        assert len(study.engine_starts()) == len(study.failures()) == 1
    expected = ["search:0:c8", "search:1:c8", "search:2:c8"]
    assert [stored.block for stored in load_study(url).windows] == expected


def test_the_side_file_of_a_lost_process_is_read_once(url, file):
    block = make_block()
    study = open_study(url, make_plan(), busy_timeout_seconds=0.05)
    with locked(file):
        study.save(BASE, block, 0, make_window(BASE, 0, block))
        study.engine_started(BASE, 2.0)
    study.close()
    side_file = side_files(file)[0]
    content = side_file.read_bytes()
    with open_study(url, make_plan()) as study:
        assert not side_file.exists()
        assert len(study.windows()) == len(study.engine_starts()) == 1
    # killed between writing the rows and removing the side file, and once more inside a line
    side_file.write_bytes(content + content[: len(content) // 2])
    assert len(load_study(url).windows) == len(load_study(url).engine_starts) == 1
    with open_study(url, make_plan()) as study:
        assert len(study.windows()) == len(study.engine_starts()) == 1


def test_a_short_lock_is_waited_for(url, file):
    block = make_block()
    with open_study(url, make_plan()) as study:
        window = make_window(BASE, 0, block)
        thread = threading.Thread(target=study.save, args=(BASE, block, 0, window))
        with locked(file):
            thread.start()
            thread.join(0.2)
            assert thread.is_alive()
        thread.join()
        assert study.recall(BASE, 0, block) == window
    assert side_files(file) == []
    assert len(load_study(url).windows) == 1


def test_finish_on_a_locked_database_is_an_error_and_can_be_repeated(url, file):
    with open_study(url, make_plan(), busy_timeout_seconds=0.05) as study:
        recommendation = make_recommendation(study.plan, study.id)
        with locked(file), pytest.raises(StorageError, match="is locked by another program"):
            study.finish(recommendation)
        study.finish(recommendation)
        assert study.recommendation() == recommendation


# ------------------------------------------------------------------------------- Optuna


def test_optuna_study_is_shared_between_runs(url):
    with open_study(url, make_plan()) as study:
        trials = study.optuna_study()
        assert trials.study_name == study.id
        assert trials.direction.name == "MAXIMIZE"
        assert trials.user_attrs["plan_sha256"] == study.plan.sha256
        trials.tell(trials.ask(), 1.5)
        left = trials.ask()
        left.suggest_int("n", 1, 8)
    with open_study(url, make_plan()) as study:
        trials = study.optuna_study()
        assert trials.best_value == 1.5
        (running,) = study.running_trials(trials)
        assert running.number == left.number
        assert running.suggest_int("n", 1, 8) == left.params["n"]
        trials.tell(running, 2.5)
        assert study.running_trials() == []
        assert trials.best_value == 2.5


def test_optunas_errors_are_explained(url, file):
    with open_study(url, make_plan(), busy_timeout_seconds=0.05) as study:
        trials = study.optuna_study()
        trial = trials.ask()
        refused = pytest.raises(StorageError, match="is locked by another program")
        with locked(file), refused, study.optuna_explained():
            trials.tell(trial, 1.0)
        with study.optuna_explained():
            trials.tell(trial, 1.0)
        assert trials.best_value == 1.0


def test_optuna_study_of_another_plan_is_refused(url):
    import optuna

    with open_study(url, make_plan()) as study:
        study.optuna_study().set_user_attr("plan_sha256", "other")
        with pytest.raises(StorageError, match="belongs to another plan"):
            study.optuna_study()
    assert optuna.get_all_study_names(url) == [study.id]


# ------------------------------------------------------------------- list, load, remove


def test_load_by_prefix_newest_and_unknown(url):
    ids = []
    for model in ("a/a", "b/b"):
        with open_study(url, make_plan(model)) as study:
            ids.append(study.id)
    with open_study(url, make_plan("b/b"), fresh=True) as study:
        ids.append(study.id)
    assert load_study(url).info.id == ids[2]
    assert load_study(url, ids[0][:6]).info.model == "a/a"
    assert load_study(url, ids[1]).info.id == ids[1]  # exact, though ids[2] begins with it
    with pytest.raises(StorageError, match=f"{ids[1]}, {ids[2]}"):
        load_study(url, ids[1][:6])
    typo = ids[0][:4] + "zz" + ids[0][6:]
    with pytest.raises(StorageError, match=f"no study '{typo}'") as caught:
        load_study(url, typo)
    assert caught.value.hint == f"did you mean {ids[0]}?"
    with pytest.raises(StorageError) as caught:
        load_study(url, "")
    assert "spectune studies list" in caught.value.hint


def test_no_database_yet(tmp_path):
    url = f"sqlite:///{tmp_path}/none/s.db"
    assert list_studies(url) == []
    with pytest.raises(StorageError, match="there are no studies in"):
        load_study(url)
    with pytest.raises(StorageError, match="there are no studies in"):
        remove_study(url, "abc")
    assert not (tmp_path / "none").exists()


def test_remove_takes_the_optuna_study_and_the_side_file_along(url, file):
    import optuna

    block = make_block()
    for model in ("a/a", "b/b"):
        with open_study(url, make_plan(model), busy_timeout_seconds=0.05) as study:
            trials = study.optuna_study()
            trials.tell(trials.ask(), 1.0)
            study.save(BASE, block, 0, make_window(BASE, 0, block))
            study.engine_started(BASE, 1.0)
            study.fail("mtp", 1, "x")
            with locked(file):
                study.save(BASE, block, 1, make_window(BASE, 0, block))
    assert remove_study(url, study.id[:6]).id == study.id
    assert [info.model for info in list_studies(url)] == ["a/a"]
    assert len(optuna.get_all_study_names(url)) == 1
    assert len(side_files(file)) == 1
    with closing(sqlite3.connect(file)) as raw:
        for table in ("window", "engine_start", "failure"):
            assert raw.execute(f"SELECT count(*) FROM spectune_{table}").fetchone() == (1,)


def test_records_of_another_version_are_named(url, file):
    block = make_block()
    with open_study(url, make_plan()) as study:
        study.save(BASE, block, 0, make_window(BASE, 0, block))
    with closing(sqlite3.connect(file)) as raw:
        content = json.loads(raw.execute("SELECT content FROM spectune_window").fetchone()[0])
        changed = json.dumps({**content, "watts": 1})
        raw.execute("UPDATE spectune_window SET content = ?", (changed,))
        raw.commit()
    with pytest.raises(StorageError, match="a stored Window cannot be read: watts"):
        load_study(url)
    with pytest.raises(StorageError, match="watts"):
        open_study(url, make_plan())
    with pytest.raises(StorageError, match="watts"):  # and it is not left locked
        open_study(url, make_plan())


# ---------------------------------------------------------------------------- recordings


def test_as_recording_takes_means_and_leaves_out_what_is_no_candidate(url):
    def put(arm, n, rate, block, repeat=0, **changes):
        study.save(arm, block, repeat, make_window(arm, n, block, rate, **changes))

    def steps(draft):
        return StepTimes(
            num_steps=1,
            draft_seconds_per_step=draft,
            verify_seconds_per_step=0.01,
            step_seconds=0.02,
            coverage=1,
            tokens_per_step=1,
            requests_per_step=1,
        )

    static = LIVE.model_copy(update={"live": False, "num_speculative_tokens": 2})
    confirm = make_block(0, BlockRole.CONFIRM)
    with open_study(url, make_plan()) as study:
        with pytest.raises(StorageError, match="no baseline"):
            as_recording(study.plan, study.windows())
        put(BASE, 0, 100.0, make_block(0))
        put(BASE, 0, 104.0, make_block(0, BlockRole.REFERENCE))
        put(BASE, 0, 10.0, make_block(0, concurrency=1))
        put(BASE, 0, 999.0, make_block(0, BlockRole.WARMUP))
        put(BASE, 0, 999.0, make_block(0, BlockRole.GREEDY))
        put(LIVE, 0, 999.0, make_block(0))
        first = {"acceptance_length": 2.5, "per_position_acceptance_rates": (0.9, 0.6)}
        put(LIVE, 2, 200.0, make_block(0), steps=steps(0.002), **first)
        second = {"acceptance_length": 2.3, "per_position_acceptance_rates": (0.8, 0.5)}
        put(static, 2, 210.0, confirm, steps=steps(None), **second)
        put(LIVE, 1, 150.0, make_block(0))
        document = as_recording(study.plan, study.windows())
    assert document["hardware"] == "2x Acme G1"
    assert document["engine_version"] == "vLLM 0.32.0"
    assert document["baseline"] == [
        {"concurrency": 8, "output_tokens_per_second": 102.0},
        {"concurrency": 1, "output_tokens_per_second": 10.0},
    ]
    two, one = document["points"]
    assert one == {
        "method": "mtp",
        "num_speculative_tokens": 1,
        "concurrency": 8,
        "output_tokens_per_second": 150.0,
    }
    assert two["output_tokens_per_second"] == 205.0
    assert two["per_position_acceptance"] == pytest.approx([0.85, 0.55])
    assert two["mean_acceptance_length"] == pytest.approx(2.4)
    assert two["draft_seconds_per_step"] == 0.002
    assert two["verify_seconds_per_step"] == 0.01
    assert json.loads(json.dumps(document)) == document


def test_as_recording_is_what_replay_reads(url):
    recording = pytest.importorskip("autotune.recording")
    block = make_block(concurrency=None)
    plan = make_plan(environment=make_plan().environment.model_copy(update={"gpu": None}))
    with open_study(url, plan) as study:
        study.save(BASE, block, 0, make_window(BASE, 0, block))
        study.save(LIVE, block, 0, make_window(LIVE, 3, block, 150.0, acceptance_length=2.0))
        document = as_recording(plan, study.windows())
    parsed = recording.Recording.model_validate_json(json.dumps(document))
    assert parsed.points[0].num_speculative_tokens == 3
    assert isinstance(study.windows()[0].window, Window)
