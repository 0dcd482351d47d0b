"""The Makefile: what `help` lists, and that an inconclusive demo is no failure."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "Makefile").read_text()
PHONY = re.search(r"\.PHONY:((?:\\\n|.)*)", TEXT)[1].replace("\\", "").split()


def make(*arguments, cwd=ROOT):
    """Also under `make test`: a make below another one says so unless told otherwise."""
    command = ["make", "--no-print-directory", *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=60, check=False
    )


def test_help_lists_every_target():
    listed = [line.split()[0] for line in make("help").stdout.splitlines()]
    assert sorted(listed) == sorted(PHONY)
    assert {"bench-live-n", "bench-search"} <= set(listed)


@pytest.mark.parametrize("target", [t for t in PHONY if t.startswith("bench-")])
def test_benchmarks_run_a_script_that_is_there(target):
    commands = make("--dry-run", target).stdout
    (script,) = re.findall(r"studies/bench/\S+\.py", commands)
    assert (ROOT / script).is_file()


@pytest.fixture
def demo(tmp_path):
    """`make demo` in a folder where all is installed and spectune is a stand-in."""
    shutil.copy(ROOT / "Makefile", tmp_path)

    def run(code):
        for name in ("pyproject.toml", "studies/demo/install_vllm_cpu.sh",
                     "studies/demo/prepare_model.py", ".venv/.installed", ".venv/.vllm-installed",
                     ".demo/SmolLM2-135M-Instruct/model.safetensors"):  # fmt: skip
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        program = tmp_path / ".venv/bin/spectune"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho the answer\nexit {code}\n")
        program.chmod(0o755)
        return make("demo", cwd=tmp_path)

    return run


@pytest.mark.parametrize(("code", "passes"), [(0, True), (4, True), (3, False), (130, False)])
def test_the_demo(demo, code, passes):
    result = demo(code)
    assert (result.returncode == 0) == passes, result.stderr
    assert "the answer\n" in result.stdout
    assert ("inconclusive is an answer too" in result.stdout.splitlines()[-1]) == (code == 4)
