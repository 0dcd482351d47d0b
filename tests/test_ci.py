"""The examples of docs/ci.md: their YAML parses and their shell lines run, with a simulator."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

ROOT = Path(__file__).parent.parent
MARK = "<!-- executed by tests/test_ci.py -->"
NOISE = "0.003"
pytestmark = pytest.mark.slow  # whole checks in processes of their own


def blocks(language):
    text = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    return re.findall(rf"{MARK}\n```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """What the page tells to keep: a careful measurement, here of a simulated engine."""
    from autotune.cli import invoke

    folder = tmp_path_factory.mktemp("golden")
    simulated = ["--engine", "simulate", "--replay-noise", NOISE]
    found, kept = str(folder / "recommended.json"), folder / "golden.json"
    storage = ["--storage", f"sqlite:///{folder}/s.db"]
    narrow = ["--methods", "eagle3", "--num-speculative-tokens", "3"]
    assert invoke(["run", *simulated, *storage, *narrow, "-o", found]) == 0
    careful = ["--cycles", "2", "--all-cycles", "--seed", "1", "-o", str(kept)]
    assert invoke(["check", found, *simulated, *careful]) == 0
    return kept.read_text()


@pytest.fixture
def shell(tmp_path, golden):
    """shell(lines, speed-up of the new result) -> a finished process, in a checkout of its own."""
    (tmp_path / "ci").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "ci/golden.json").write_text(golden)
    for name, text in (
        ("spectune", f'exec "{sys.executable}" -m autotune "$@"'),
        ("pip", "exit 0"),
    ):
        file = tmp_path / "bin" / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def run(lines, factor=1.0):
        new = json.loads(golden)
        for row in new["measured"]["rows"]:
            if row["method"] != "none":
                row["speedup"]["value"] *= factor
        (tmp_path / "ci/new.json").write_text(json.dumps(new))
        environment = {
            **os.environ,
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SPECTUNE_ENGINE": "simulate",
            "SPECTUNE_REPLAY_NOISE": NOISE,
            "SPECTUNE_SEED": "2",
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        }
        script = ["bash", "-e", "-o", "pipefail", "-c", "\n".join(lines)]
        return subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


def test_the_github_workflow(shell, tmp_path):
    workflow = yaml.safe_load(blocks("yaml")[0])
    jobs = workflow["jobs"]
    for name in ("measure", "compare"):
        done = shell([step["run"] for step in jobs[name]["steps"] if "run" in step])
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "summary.md").read_text().count("### spectune check: no regression") == 2
    uploaded = jobs["measure"]["steps"][-1]["with"]["path"].split()
    assert all((tmp_path / name).exists() for name in uploaded)
    compare = [step["run"] for step in jobs["compare"]["steps"] if "run" in step]
    assert shell(compare, 0.9).returncode == 1


def test_the_gitlab_pipeline(shell, tmp_path):
    pipeline = yaml.safe_load(blocks("yaml")[1])
    for job in pipeline.values():
        lines = [*job["before_script"], *job["script"]]
        assert shell(lines).returncode == 0
        report = tmp_path / job["artifacts"]["reports"]["junit"]
        assert ElementTree.parse(report).getroot().get("failures") == "0"
    job = pipeline["compare-results"]
    assert shell(job["script"], 0.9).returncode == 1
    report = tmp_path / job["artifacts"]["reports"]["junit"]
    assert ElementTree.parse(report).getroot().get("failures") != "0"
    assert job["allow_failure"]["exit_codes"] == 4


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (0.9, 1)])
def test_the_pytest_example(shell, tmp_path, factor, code):
    (tmp_path / "test_gate.py").write_text(blocks("python")[0])
    done = shell([f'"{sys.executable}" -m pytest -q -p no:cacheprovider test_gate.py'], factor)
    assert done.returncode == code, done.stdout
    assert ("regression: speedup" in done.stdout) == (code == 1)
