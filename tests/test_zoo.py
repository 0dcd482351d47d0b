"""A real vLLM with every kind of drafter that runs on a CPU: tiny trained checkpoints.

One `spectune run` for each target, all of its methods in it; beside it, in one process, live N
against fresh starts.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest
from families import GEMMA4, MIMO, QWEN3, measure_inside, run_arguments, write_workload
from study_process import StudyProcess
from vllm_samples import NEEDS_VLLM, engine_environment
from zoo import checkpoints

from autotune.machine.environment import probe_engine
from autotune.methods import get_method
from autotune.records import BASELINE

LENGTHS = (2, 6)
FIRST = 0.3  # of the first drafts accepted, at least: one of 512 tokens is right by chance
# test_vllm.py looks at draft models, and at n-grams
OTHERS = {m: kind for m, kind in QWEN3.drafters.items() if m != "draft_model"}
FAMILIES = (replace(QWEN3, drafters=OTHERS), MIMO, GEMMA4)
EVERY = [(family, method) for family in FAMILIES for method in family.methods]
EACH_METHOD = pytest.mark.parametrize(("family", "method"), EVERY, ids=[m for _, m in EVERY])
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES, ids=[f.name for f in FAMILIES])
ON_VLLM = [*NEEDS_VLLM, pytest.mark.slow]


# ------------------------------------------------------------------------------ `spectune run`


@pytest.fixture(scope="module")
def _environment(tmp_path_factory):
    with engine_environment(tmp_path_factory):
        yield


@pytest.fixture(scope="module")
def measuring(_environment, tmp_path_factory):
    """Runs beside the studies: no test here is about speed, and an engine uses one core."""
    checkpoints.checkpoints()  # all at once: two are trained at a time
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(measure_inside, FAMILIES, LENGTHS, tmp_path_factory.mktemp("inside"))


@pytest.fixture(scope="module")
def studies(measuring, tmp_path_factory):
    """By target, each run when it is first asked for."""
    made: dict[str, StudyProcess] = {}

    def study(family) -> StudyProcess:
        if family.name not in made:
            folder = tmp_path_factory.mktemp(family.name)
            arguments = run_arguments(family, write_workload(folder / "stories.jsonl"), LENGTHS)
            made[family.name] = process = StudyProcess(folder / "here", arguments)
            code = process.run("--json", seconds=900)
            assert code in (0, 4), process.stderr[-3000:]
        return made[family.name]

    yield study
    for process in made.values():
        process.clean_up()


def measured(study: StudyProcess, method: str) -> list[dict]:
    """Rows of the recommendation that were measured."""
    rows = [row for row in study.document["candidates"] if row["method"] == method]
    return [row for row in rows if row["status"] in ("probed", "confirmed")]


class TestSpectuneRun:
    pytestmark = ON_VLLM

    @EACH_METHOD
    def test_every_method_is_measured(self, studies, family, method):
        rows = measured(studies(family), method)
        assert rows and {row["num_speculative_tokens"] for row in rows} <= set(LENGTHS)
        for row in rows:
            assert row["output_tokens_per_second"] > 0
            assert 1 < row["acceptance_length"] <= row["num_speculative_tokens"] + 1
            assert row["draft_seconds_per_step"] > 0 and row["verify_seconds_per_step"] > 0

    @EACH_METHOD
    def test_acceptance_starts_high_and_never_rises(self, studies, family, method):
        for row in measured(studies(family), method):
            rates = row["per_position_acceptance_rates"][: row["num_speculative_tokens"]]
            assert len(rates) == row["num_speculative_tokens"]
            assert FIRST < rates[0] <= 1 and rates[-1] >= 0
            assert all(later <= earlier for earlier, later in pairwise(rates))
            assert row["acceptance_length"] == pytest.approx(1 + sum(rates))

    @EACH_METHOD
    def test_one_start_serves_all_n_or_each_has_its_own(self, studies, family, method):
        starts = Counter(s.arm for s in studies(family).study.engine_starts if s.method == method)
        searching = {arm for arm in starts if arm.endswith(":0")}
        live = {f"{method}:{max(LENGTHS)}:live:0"}
        own = {f"{method}:{n}:static:0" for n in LENGTHS}
        assert searching == live if get_method(method).live_n else searching <= own
        assert searching and set(starts.values()) == {1}
        probed = {w.n for w in studies(family).windows(method) if w.arm in searching}
        assert probed == {
            row["num_speculative_tokens"] for row in measured(studies(family), method)
        }

    @EACH_FAMILY
    def test_no_start_failed_and_nothing_is_left(self, studies, family):
        study = studies(family)
        assert [start.error for start in study.study.engine_starts if start.error] == []
        assert study.study.failures == ()
        assert study.vanished()

    @EACH_FAMILY
    def test_the_recommendation_follows_from_its_interval(self, studies, family):
        document = studies(family).document
        speedup, chosen = document["speedup"], document["method"]
        if document["decision"] == "speculate":
            rows = measured(studies(family), chosen)
            confirmed = [r["num_speculative_tokens"] for r in rows if r["status"] == "confirmed"]
            assert document["num_speculative_tokens"] in confirmed
            assert 1 < speedup["low"] <= speedup["value"] <= speedup["high"]
            config = document["speculative_config"]
            assert config["num_speculative_tokens"] == document["num_speculative_tokens"]
            assert config["method"] == get_method(chosen).vllm_method
            assert json.loads(document["vllm_serve_args"][-1]) == config
            return
        assert speedup["low"] <= 1
        if document["decision"] == "do_not_speculate":
            assert (chosen, document["num_speculative_tokens"]) == (BASELINE, 0)
            assert document["speculative_config"] is None

    @EACH_FAMILY
    def test_the_finalist_says_greedily_what_the_target_says(self, studies, family):
        greedy = [w for w in studies(family).windows() if w.window.block.startswith("greedy")]
        texts = [tuple(r.text for r in w.window.requests) for w in greedy]
        if len(texts) == 1:
            pytest.skip("this time nothing was worth a confirmation")
        assert len(texts[0]) == 4 and all(texts[0])
        assert set(texts) == {texts[0]}
        assert not any("greedy outputs" in w for w in studies(family).document["warnings"])


# ------------------------------------------------------------------------ live N, fresh starts


@pytest.fixture(scope="module")
def inside(measuring):
    return measuring.result()


def drafted(answer: dict, n: int) -> tuple:
    """A live engine counts all positions that it could draft, a fresh one its own."""
    assert not any(answer["accepted"][n:])
    return answer["drafts"], answer["draft_tokens"], *answer["accepted"][:n]


class TestLiveAndFresh:
    pytestmark = ON_VLLM

    @EACH_METHOD
    def test_greedy_answers_are_those_without_speculation(self, inside, family, method):
        texts, starts = inside[family.name]["none"], inside[family.name][method]
        assert len(texts) > 3 and all(texts)
        for by_length in starts.values():
            assert set(by_length) == {str(n) for n in LENGTHS}
            assert [answer["texts"] for answer in by_length.values()] == [texts] * len(LENGTHS)

    @EACH_METHOD
    def test_live_n_drafts_exactly_as_a_fresh_start_with_that_n(self, inside, family, method):
        starts = inside[family.name][method]
        if not get_method(method).live_n:
            assert set(starts) == {"fresh"}
            return
        for n in LENGTHS:
            ours, fresh = (starts[kind][str(n)] for kind in ("live", "fresh"))
            assert drafted(ours, n) == drafted(fresh, n)
            assert fresh["drafts"] > 30

    @EACH_METHOD
    def test_what_was_accepted_makes_up_the_answers(self, inside, family, method):
        """A request's first token comes without a draft, then each draft yields one and those
        accepted; of the last draft some may be beyond the end.
        """
        for n, answer in inside[family.name][method]["fresh"].items():
            requests = len(answer["texts"])
            beyond = answer["drafts"] + sum(answer["accepted"]) - (answer["tokens"] - requests)
            assert 0 <= beyond <= int(n) * requests


# ---------------------------------------------------------------------- what cannot run on a CPU


@pytest.fixture
def qwen3_8b(tmp_path):
    """The config.json of a target and of a DSpark drafter for it; there are no weights."""
    common = {"vocab_size": 151936, "hidden_size": 4096, "max_position_embeddings": 40960}
    configs = {
        "target": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
        "drafter": {"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "block_size": 7},
    }
    for name, config in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(common | config))
    return tmp_path / "target", tmp_path / "drafter"


def test_dspark_is_refused_on_a_cpu_before_any_start(tmp_path, qwen3_8b):
    if probe_engine(None).platform != "cpu":
        pytest.skip("this interpreter has no vLLM for CPUs")
    target, drafter = qwen3_8b
    arguments = [
        *("--model", str(target), "--workload", "math"),
        *("--methods", "dspark", "--drafter", f"dspark={drafter}"),
    ]
    process = StudyProcess(tmp_path / "here", arguments)
    assert process.run(seconds=60) == 2
    assert "dspark cannot be used" in process.stderr
    assert "V2 model runner, which does not run on a CPU" in process.stderr
    assert process.commands == {} and list(process.folder.iterdir()) == []


# ------------------------------------------------------------------------------ the zoo itself


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """A copy of the sources, which may be changed."""
    copy = shutil.copytree(checkpoints.HERE, tmp_path / "zoo")
    monkeypatch.setattr(checkpoints, "HERE", copy)
    return copy


@pytest.mark.parametrize(
    ("file", "kinds"),
    [
        ("kinds/medusa.py", {"medusa"}),
        ("kinds/draft.py", {"draft", "pard"}),
        ("kinds/gemma4.py", {"gemma4", "gemma4_assistant"}),
        ("kinds/target.py", {"target", "dflash", "eagle3", "eagle", "medusa", "pard"}),
        ("language.py", set(checkpoints.USES)),
        ("checkpoints.py", set()),
    ],
)
def test_a_recipe_counts_for_its_kind_and_those_that_use_it(recipes, file, kinds):
    before = {kind: checkpoints.digest(kind) for kind in checkpoints.USES}
    with (recipes / file).open("a") as source:
        source.write("# another recipe\n")
    assert {k for k, digest in before.items() if checkpoints.digest(k) != digest} == kinds


def test_what_is_there_is_not_made_again(tmp_path):
    there = tmp_path / f"target-{checkpoints.digest('target')}"
    there.mkdir()
    assert checkpoints.checkpoint("target", tmp_path, pytest.fail) == there
    with pytest.raises(KeyError, match="unicorn"):
        checkpoints.checkpoint("unicorn", tmp_path)
