"""Generated documents are current, and real documents fit their schemas."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import jsonschema
import pytest
from tuner_samples import PUBLISHED, Scripted, plan_of, replay, simulate

from autotune import acceptance
from autotune.plan import Request, make_plan
from autotune.recording import Recording, save_recording
from autotune.store import as_recording, open_study
from autotune.tuner import tune

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generated(generate):
    return generate.documents()


NAMES = (
    "check.schema.json",
    "cli.md",
    "doctor.md",
    "methods.md",
    "models.md",
    "recommendation.schema.json",
    "recording.schema.json",
)


@pytest.mark.parametrize("name", NAMES)
def test_generated_documents_are_current(generated, name):
    assert (DOCS / name).read_text() == generated[name], "stale: run `make docs`"


def test_nothing_generated_is_unchecked(generated):
    assert tuple(generated) == NAMES


def test_the_example_of_the_readme_is_what_is_printed(generate):
    assert (DOCS.parent / "README.md").read_text() == generate.readme(), "stale: run `make docs`"


def example_of_the_sampler():
    text = (DOCS / "science.md").read_text()
    section = text[text.index("## The Optuna sampler") :]
    return section.split("```python\n")[1].split("```")[0]


def test_the_example_of_the_sampler_runs(capsys):
    """dflash N=7 has the largest of the 13 recorded speed-ups, 2.342."""
    names = {}
    exec(example_of_the_sampler(), names)
    assert names["study"].best_params == {"method": "dflash", "dflash.num_speculative_tokens": 7}
    assert "2.342" in capsys.readouterr().out
    assert len(names["study"].trials) < len(names["MEASURED"]) == 13


def test_the_figures_of_the_example_are_the_recorded_ones():
    names = {}
    exec(example_of_the_sampler(), names)
    document = json.loads((PUBLISHED / "s01-gemma-4-31b-it-math500.json").read_text())
    base = document["baseline"][0]["output_tokens_per_second"]
    points = {(p["method"], p["num_speculative_tokens"]): p for p in document["points"]}
    for key, (speedup, length) in names["MEASURED"].items():
        assert points[key]["output_tokens_per_second"] / base == pytest.approx(speedup, abs=5e-4)
        assert points[key]["mean_acceptance_length"] == length


def checker(name):
    schema = json.loads((DOCS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """(recommendation, recording) of studies that end in different ways."""
    url = f"sqlite:///{tmp_path_factory.mktemp('docs')}/study.db"
    engines = [
        replay(PUBLISHED / "s01-gemma-4-26b-a4b-it-math500.json"),
        simulate("no-gain"),
        simulate("faulty"),
    ]
    made = []
    for engine in engines:
        plan = make_plan(Request(), engine)
        with open_study(url, plan) as study:
            recommendation = tune(plan, engine, study, lambda text: None)
            made.append((recommendation, as_recording(plan, study.windows())))
    plan = plan_of(settings={"greedy_prompts": 1}, mtp=[1])
    rates = {("none", 0): 100.0, ("mtp", 1): 100.0}
    with open_study(url, plan) as study:
        recommendation = tune(plan, Scripted(rates, outputs=True), study, lambda text: None)
    return [*made, (recommendation, as_recording(plan, study.windows()))]


def test_recommendations_fit_their_schema(studies):
    check = checker("recommendation")
    decisions = set()
    for recommendation, _ in studies:
        document = json.loads(recommendation.model_dump_json(by_alias=True))
        check.validate(document)
        assert document["schema"] == "spectune.recommendation/1"
        decisions.add(document["decision"])
    assert decisions >= {"speculate", "do_not_speculate"}


# the keys that users and machines may rely on
REQUIRED = """schema model workload environment decision method num_speculative_tokens
speculative_config speedup per_concurrency schedule candidates baseline cost vllm_serve_args
warnings"""
CANDIDATE = """method num_speculative_tokens concurrency status predicted_output_tokens_per_second
output_tokens_per_second acceptance_length per_position_acceptance_rates draft_seconds_per_step
verify_seconds_per_step"""


def test_the_promised_keys_are_required():
    schema = json.loads((DOCS / "recommendation.schema.json").read_text())
    assert set(REQUIRED.split()) <= set(schema["required"])
    assert set(CANDIDATE.split()) <= set(schema["$defs"]["CandidateResult"]["required"])
    for name, keys in [
        ("Interval", "value low high confidence"),
        ("WorkloadSummary", "name sha256 num_prompts temperature"),
        ("Environment", "gpu runtime vllm torch"),
        ("LoadChoice", "concurrency method num_speculative_tokens speedup"),
        ("BaselineResult", "concurrency output_tokens_per_second"),
        ("Cost", "engine_starts probes probe_seconds total_seconds"),
    ]:
        assert set(keys.split()) <= set(schema["$defs"][name]["required"])


@pytest.mark.parametrize(
    ("key", "value"),
    [("schema", "spectune.recommendation/2"), ("decision", "maybe"), ("method", None),
     ("speedup", 2.0), ("cost", {}), ("surprise", 1)],
)  # fmt: skip
def test_the_schema_refuses(studies, key, value):
    document = json.loads(studies[0][0].model_dump_json(by_alias=True))
    with pytest.raises(jsonschema.ValidationError):
        checker("recommendation").validate({**document, key: value})


def test_a_missing_key_is_refused(studies):
    document = json.loads(studies[0][0].model_dump_json(by_alias=True))
    del document["warnings"]
    with pytest.raises(jsonschema.ValidationError, match="warnings"):
        checker("recommendation").validate(document)


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.json")), ids=lambda path: path.stem)
def test_published_recordings_fit_their_schema(path):
    checker("recording").validate(json.loads(path.read_text()))


def test_written_recordings_fit_their_schema(studies, tmp_path):
    for _, document in studies:
        checker("recording").validate(document)
        save_recording(Recording.model_validate_json(json.dumps(document)), tmp_path / "r.json")
        checker("recording").validate(json.loads((tmp_path / "r.json").read_text()))


@pytest.mark.parametrize(
    "change",
    [{"schema": "spectune.recording/2"}, {"baseline": None}, {"points": [{"method": "mtp"}]},
     {"surprise": 1}],
)  # fmt: skip
def test_the_recording_schema_refuses(change):
    document = json.loads(next(iter(sorted(PUBLISHED.glob("*.json")))).read_text())
    with pytest.raises(jsonschema.ValidationError):
        checker("recording").validate({**document, **change})
    del document["schema"]
    with pytest.raises(jsonschema.ValidationError, match="schema"):
        checker("recording").validate(document)


def test_the_panels_that_the_docs_speak_of_are_counted():
    sweeps = [json.loads(path.read_text()) for path in PUBLISHED.glob("s01-*.json")]
    panels = sum(len({point["method"] for point in sweep["points"]}) for sweep in sweeps)
    for text in ((DOCS / "science.md").read_text(), acceptance.__doc__):
        assert f"On the {panels} method panels of the vLLM" in " ".join(text.split())
