"""Recordings and the replay engine."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from engine_contract import Arms, EngineContract

from autotune.engines import EngineOptions, load_engine
from autotune.engines.replay import ReplayEngine
from autotune.errors import (
    ConfigurationError,
    EngineStartError,
    LiveSwitchError,
    UnusableMeasurementError,
)
from autotune.recording import (
    RecordedBaseline,
    RecordedPoint,
    Recording,
    load_recording,
    save_recording,
)
from autotune.records import Arm, Block, BlockRole, Message, Prompt, Sampling, Target

PUBLISHED = sorted((Path(__file__).parent.parent / "studies/published").glob("*.json"))
TARGET = Target(model="some/model")
PROMPTS = (Prompt(id="p", messages=(Message(role="user", content="Hello."),)),)


def point(method="mtp", n=1, rate=150.0, load=1, **more):
    return {
        "method": method,
        "num_speculative_tokens": n,
        "concurrency": load,
        "output_tokens_per_second": rate,
        **more,
    }


def document(**changes):
    return {
        "schema": "spectune.recording/1",
        "model": "some/model",
        "workload": "chat",
        "hardware": "2x MI300X TP2",
        "engine_version": "vLLM 0.23.1, ROCm 7.2",
        "baseline": [
            {"concurrency": 1, "output_tokens_per_second": 100.0},
            {"concurrency": 8, "output_tokens_per_second": 600.0},
        ],
        "points": [
            point(n=3, rate=190.0, per_position_acceptance=[0.8, 0.6, 0.5]),
            point(n=1, rate=150.0, per_position_acceptance=[0.8], mean_acceptance_length=1.81),
            point(n=1, load=8, rate=700.0),
            point("dflash", n=7, rate=210.0, mean_acceptance_length=4.2),
        ],
        **changes,
    }


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "recording.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


@pytest.fixture
def engine(write):
    def engine(content=None, **options):
        return ReplayEngine(EngineOptions(recording=str(write(content or document())), **options))

    return engine


def block(load=1, index=0, role=BlockRole.SEARCH):
    return Block(role=role, index=index, concurrency=load, prompts=PROMPTS, sampling=Sampling())


def start(engine, method="none", n=0, live=False, generation=0):
    arm = Arm(method=method, num_speculative_tokens=n, live=live, generation=generation)
    return engine.open(TARGET, arm, lambda line: None)


def rate(engine, method="none", n=0, load=1, **more):
    return start(engine, method, n, **more).run(block(load)).output_tokens_per_second


# ---------------------------------------------------------------------------------- recording


def test_there_are_35_published_recordings():
    assert len(PUBLISHED) == 35


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_every_published_recording_survives_a_round_trip(path, tmp_path):
    recording = load_recording(path)
    save_recording(recording, tmp_path / "copy.json")
    assert load_recording(tmp_path / "copy.json") == recording
    assert json.loads((tmp_path / "copy.json").read_text()) == json.loads(path.read_text())


def test_sha256_is_of_the_content_not_of_the_layout(write):
    first = load_recording(write(json.dumps(document(), indent=3))).sha256
    second = load_recording(write(json.dumps(document(), sort_keys=True))).sha256
    other = document()
    other["points"][0]["output_tokens_per_second"] += 1
    assert first == second != load_recording(write(other)).sha256


def test_a_recording_can_be_written_from_measurements(tmp_path):
    recording = Recording(
        model="m",
        workload="w",
        baseline=(RecordedBaseline(output_tokens_per_second=10.0),),
        points=(
            RecordedPoint(
                method="ngram",
                num_speculative_tokens=2,
                output_tokens_per_second=12.0,
                draft_seconds_per_step=0.001,
            ),
        ),
    )
    save_recording(recording, tmp_path / "r.json")
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["schema"] == "spectune.recording/1"
    assert written["baseline"] == [{"concurrency": None, "output_tokens_per_second": 10.0}]
    assert written["points"][0]["draft_seconds_per_step"] == 0.001
    assert "verify_seconds_per_step" not in written["points"][0]


BAD = {
    "not JSON": ("{", "not JSON"),
    "a list": ([], "schema None"),
    "no schema": ({"model": "m"}, "schema None"),
    "empty baseline": (document(baseline=[]), "no baseline"),
    "no baseline key": (
        {key: value for key, value in document().items() if key != "baseline"},
        "baseline: Field required",
    ),
    "unknown key": (document(remark="x"), "remark"),
    "unknown point key": (document(points=[point(temperature=0)]), r"temperature \(mtp N=1\)"),
    "zero": (document(points=[point(rate=0)]), r"points.0.output_tokens_per_second \(mtp N=1\)"),
    "negative": (document(points=[point(rate=-1.0)]), "greater than"),
    "NaN": (document(points=[point(rate=math.nan)]), "finite"),
    "infinite": (document(points=[point(rate=math.inf)]), "finite"),
    "text": (document(points=[point(rate="150")]), "valid number"),
    "zero baseline": (
        document(baseline=[{"concurrency": 1, "output_tokens_per_second": 0}]),
        "baseline.0",
    ),
    "N=0": (document(points=[point(n=0)]), "num_speculative_tokens"),
    "fractional N": (document(points=[point(n=1.5)]), "num_speculative_tokens"),
    "zero load": (document(points=[point(load=0)]), "concurrency"),
    "baseline as a point": (document(points=[point("none")]), "belongs under `baseline`"),
    "rate above 1": (document(points=[point(per_position_acceptance=[1.2])]), "less than or equal"),
    "too many rates": (
        document(points=[point(per_position_acceptance=[0.9, 0.8])]),
        "2 acceptance rates for 1",
    ),
    "impossible length": (document(points=[point(mean_acceptance_length=2.5)]), r"above N \+ 1"),
    "length without bonus": (document(points=[point(mean_acceptance_length=0.8)]), "or equal to 1"),
    "copied point": (document(points=[point(), point()]), "same row twice"),
    "mixed loads": (document(points=[point(load=None)]), "null in some rows"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_recording_is_refused_with_file_and_reason(write, content, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_recording(write(content))
    assert "recording.json" in caught.value.message
    assert caught.value.exit_code == 2


def test_both_schema_versions_are_named(write):
    with pytest.raises(ConfigurationError, match=r"recording/2.*recording/1"):
        load_recording(write(document(schema="spectune.recording/2")))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "nowhere.json", tmp_path):
        with pytest.raises(ConfigurationError, match="cannot read"):
            load_recording(path)


def test_many_errors_are_cut_short(write):
    with pytest.raises(ConfigurationError, match="and 5 more"):
        load_recording(write(document(points=[point(rate=-i) for i in range(8)])))


# ------------------------------------------------------------------------------------- engine


def test_a_recording_is_required():
    with pytest.raises(ConfigurationError, match="needs a recording"):
        load_engine("replay", EngineOptions())


@pytest.mark.parametrize("noise", [-0.1, math.nan, math.inf])
def test_impossible_noise_is_refused(engine, noise):
    with pytest.raises(ConfigurationError, match="noise"):
        engine(noise=noise)


def test_offer_is_what_was_recorded(engine):
    offer = engine().offer()
    assert (offer.model, offer.workload, offer.concurrencies) == ("some/model", "chat", (1, 8))
    mtp, dflash = offer.spaces
    assert (mtp.method, mtp.lengths, mtp.parallel, mtp.live_n) == ("mtp", (1, 3), False, True)
    assert (dflash.method, dflash.lengths, dflash.parallel) == ("dflash", (7,), True)
    assert mtp.config == {} and offer.skipped == ()
    assert offer.environment.model_dump(exclude_none=True) == {
        "gpu": "MI300X TP2",
        "gpu_count": 2,
        "vllm": "0.23.1",
        "runtime": "ROCm 7.2",
    }


def test_unknown_hardware_stays_unknown(engine):
    offer = engine(document(hardware="unknown", engine_version="SGLang (2026-04)")).offer()
    assert offer.environment.model_dump(exclude_none=True) == {"runtime": "SGLang (2026-04)"}


def test_points_without_a_baseline_are_skipped_aloud(engine):
    offer = engine(document(points=[point(n=1), point("eagle", n=2, load=4)])).offer()
    assert [space.method for space in offer.spaces] == ["mtp"]
    (skipped,) = offer.skipped
    assert (skipped.method, skipped.num_speculative_tokens) == ("eagle", 2)
    assert "concurrency 4" in skipped.reason


def test_exact_answers(engine):
    replay = engine()
    assert rate(replay) == 100.0
    assert rate(replay, load=8) == 600.0
    assert rate(replay, "mtp", 3) == 190.0
    assert rate(replay, "mtp", 1, load=8) == 700.0
    window = start(replay, "mtp", 1).run(block())
    assert window.acceptance_length == 1.81
    assert window.per_position_acceptance_rates == (0.8,)
    assert window.duration_seconds is window.counters is window.steps is None
    assert start(replay, "dflash", 7).run(block()).acceptance_length == 4.2


def test_acceptance_length_follows_from_a_full_vector(engine):
    assert start(engine(), "mtp", 3).run(block()).acceptance_length == pytest.approx(2.9)
    partial = document(points=[point(n=3, per_position_acceptance=[0.8, 0.6])])
    assert start(engine(partial), "mtp", 3).run(block()).acceptance_length is None


def test_repeated_measurements_are_averaged(engine):
    content = document(
        baseline=[
            {"concurrency": 1, "output_tokens_per_second": 90.0},
            {"concurrency": 1, "output_tokens_per_second": 110.0},
        ],
        points=[
            point(rate=140.0, per_position_acceptance=[0.7], mean_acceptance_length=1.7),
            point(rate=160.0, per_position_acceptance=[0.9]),
        ],
    )
    window = start(engine(content), "mtp", 1).run(block())
    assert window.output_tokens_per_second == 150.0
    assert window.per_position_acceptance_rates == pytest.approx((0.8,))
    assert window.acceptance_length == 1.7
    assert rate(engine(content)) == 100.0


def test_missing_points_name_what_exists(engine):
    replay = engine()
    with pytest.raises(UnusableMeasurementError, match=r"N=2 of mtp is not recorded.*: 1, 3"):
        rate(replay, "mtp", 2)
    with pytest.raises(UnusableMeasurementError, match=r"at concurrency 8; recorded N: 1$"):
        rate(replay, "mtp", 3, load=8)
    with pytest.raises(UnusableMeasurementError, match=r"recorded concurrency: 1$"):
        rate(replay, "dflash", 7, load=8)
    with pytest.raises(UnusableMeasurementError, match="recorded concurrency: 1, 8"):
        rate(replay, load=4)
    with pytest.raises(EngineStartError, match="no method 'eagle'") as caught:
        start(replay, "eagle", 1)
    assert "mtp, dflash" in caught.value.hint


def test_live_start_switches_but_has_no_n_0(engine):
    session = start(engine(), "mtp", 3, live=True)
    session.set_num_speculative_tokens(1)
    assert session.run(block()).output_tokens_per_second == 150.0
    session.set_num_speculative_tokens(0)
    with pytest.raises(UnusableMeasurementError, match="N=0 of mtp"):
        session.run(block())


def test_live_n_can_be_switched_off(engine):
    replay = engine(live_n=False)
    assert not any(space.live_n for space in replay.offer().spaces)
    with pytest.raises(LiveSwitchError):
        start(replay, "mtp", 3, live=True).set_num_speculative_tokens(1)


def test_cost_and_command(engine):
    replay = engine()
    assert start(replay).start_seconds == 0.0
    assert replay.estimated_start_seconds() == 180.0
    arm = Arm(method="mtp", num_speculative_tokens=3)
    assert replay.command(TARGET, arm) == "replay recording.json (some/model): mtp N=3"


# --------------------------------------------------------------------------------- with noise


def test_noise_has_the_requested_spread(engine):
    session = start(engine(noise=0.02, seed=1), "mtp", 1)
    rates = [session.run(block(index=i)).output_tokens_per_second for i in range(2000)]
    logs = np.log(np.array(rates) / 150.0)
    # standard errors: sd / sqrt(2 n) = 0.0003 and sd / sqrt(n) = 0.00045; four of each
    assert logs.std() == pytest.approx(0.02, abs=0.0013)
    assert logs.mean() == pytest.approx(0.0, abs=0.0018)


def test_noise_depends_on_the_call_not_on_the_order(engine):
    calls = [("mtp", n, i) for n in (1, 3) for i in range(3)]

    def world(order, **options):
        replay = engine(noise=0.05, **{"seed": 3, **options})
        sessions = {n: start(replay, "mtp", n) for n in (1, 3)}
        return {c: sessions[c[1]].run(block(index=c[2])).output_tokens_per_second for c in order}

    assert world(calls) == world(calls[::-1])
    other = world(calls, seed=4)
    assert all(other[call] != value for call, value in world(calls).items())


def test_every_part_of_the_identity_changes_the_noise(engine):
    replay = engine(noise=0.05)
    windows = [
        start(replay, "mtp", 1).run(block()),
        start(replay, "mtp", 1, generation=1).run(block()),
        start(replay, "mtp", 1, live=True).run(block()),
        start(replay, "mtp", 1).run(block(index=1)),
        start(replay, "mtp", 1).run(block(role=BlockRole.CONFIRM)),
    ]
    assert len({window.output_tokens_per_second for window in windows}) == 5


def test_without_noise_there_is_nothing_to_repeat(engine):
    assert not engine().offer().repeats
    assert not engine(noise=0.0).offer().repeats
    assert engine(noise=0.01).offer().repeats


def test_identity(engine):
    one = engine(noise=0.02, seed=3).identity()
    assert one == engine(noise=0.02, seed=3).identity()
    assert one != engine(noise=0.02, seed=4).identity()
    assert one["recording"] == engine().recording.sha256


# ------------------------------------------------------------------------------ published ones


@pytest.mark.parametrize(
    ("name", "method", "n", "speedup"),
    [
        ("s01-gemma-4-26b-a4b-it-math500", "eagle3", 4, 2.27),
        ("s01-gemma-4-26b-a4b-it-gsm8k", "gemma4_mtp", 5, 2.74),
        ("s01-gemma-4-31b-it-math500", "dflash", 7, 2.34),
    ],
)
def test_known_speedups_of_the_amd_study(published, name, method, n, speedup):
    replay = published(name)
    ratio = rate(replay, method, n, load=None) / rate(replay, load=None)
    assert ratio == pytest.approx(speedup, abs=0.005)


def test_repeats_in_the_published_dflash_sweep(published):
    replay = published("s24-qwen3-4b-repo-default-aime25-2048-tok")
    assert rate(replay, "dflash_block_n_1", 11) == pytest.approx((110.46 + 115.95) / 2)
    assert rate(replay, "dflash_block_n_1", 15) == pytest.approx((127.65 + 138.69) / 2)
    assert replay.offer().spaces[0].parallel


def test_every_published_point_is_answered_exactly(published):
    for path in PUBLISHED:
        replay = published(path.stem)
        points = replay.recording.points
        keys = [(p.method, p.num_speculative_tokens, p.concurrency) for p in points]
        for key, recorded in zip(keys, points, strict=True):
            if keys.count(key) == 1:
                assert rate(replay, *key) == recorded.output_tokens_per_second


@pytest.fixture
def published():
    def published(name):
        path = PUBLISHED[0].parent / f"{name}.json"
        return ReplayEngine(EngineOptions(recording=str(path)))

    return published


# ----------------------------------------------------------------------------------- contract


class ReplayContract(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def arms(cls):
        return Arms(
            target=TARGET,
            static=Arm(method="mtp", num_speculative_tokens=1),
            live=Arm(method="mtp", num_speculative_tokens=3, live=True),
            switches=(1, 3),
            concurrency=1,
        )

    @staticmethod
    def replay(folder, **options):
        path = folder.mktemp("replay") / "recording.json"
        path.write_text(json.dumps(document()))
        return ReplayEngine(EngineOptions(recording=str(path), **options))


class TestExactReplay(ReplayContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, tmp_path_factory):
        return cls.replay(tmp_path_factory)


class TestNoisyReplay(ReplayContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, tmp_path_factory):
        return cls.replay(tmp_path_factory, noise=0.02, seed=7)


class TestReplayWithoutLiveN(ReplayContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, tmp_path_factory):
        return cls.replay(tmp_path_factory, live_n=False)

    @pytest.fixture(scope="class")
    @classmethod
    def arms(cls):
        static = Arm(method="mtp", num_speculative_tokens=1)
        return Arms(target=TARGET, static=static, live=None, switches=(), concurrency=1)
