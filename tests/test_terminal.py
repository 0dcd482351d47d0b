"""What a terminal shows: live progress and a coloured answer, with the words of the plain text."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from store_samples import make_plan, make_recommendation
from tuner_samples import PUBLISHED

from autotune.cli import invoke
from autotune.cli.progress import Progress
from autotune.cli.render import recommendation_parts
from autotune.cli.terminal import plain, print_rich
from autotune.engines.simulate import SimulateEngine
from autotune.records import CandidateResult, Status

ENGINE_WORDS = "[/opt/rocm/x] RuntimeError: [rank0]: no [bold]kernel[/bold] :boom:"
RECORDING = PUBLISHED / "s01-minimax-m3-mxfp8-gsm8k.json"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def words(text):
    """Without colours and the lines under table headings."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|─", " ", text).split()


def failed(error):
    return CandidateResult(
        method="ngram", num_speculative_tokens=2, concurrency=8, status=Status.FAILED, error=error
    )


@pytest.fixture
def recommendation():
    made = make_recommendation(make_plan(), "abc", exhausted=True, warnings=("[b]N=2[/b] ties",))
    return made.model_copy(update={"candidates": (*made.candidates, failed("[/opt/x] died"))})


def shown(parts, **settings):
    console = Console(file=io.StringIO(), force_terminal=True, legacy_windows=False, **settings)
    print_rich(parts, console)
    return console.file.getvalue()


def test_an_engines_words_are_not_markup(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "200")
    with Progress() as progress:
        progress(f"starting {ENGINE_WORDS} (3 s)")
        progress(f"ngram N=2 failed: {ENGINE_WORDS}")
    assert ENGINE_WORDS in sys.stderr.getvalue()
    assert f"ngram N=2 failed: {ENGINE_WORDS}" in sys.stderr.getvalue()


def test_both_forms_have_the_same_words(recommendation):
    parts = recommendation_parts(recommendation, Path("logs"))
    coloured, text = shown(parts, width=200), plain(parts)
    assert words(coloured) == words(text)
    assert coloured.startswith(f"\x1b[1m{text.splitlines()[0]}\x1b[0m\n")  # the answer is bold
    assert "[/opt/x] died" in text and "[b]N=2[/b] ties" in text
    assert "\x1b[33m" in coloured and "\x1b" not in text


def test_nothing_is_cut_on_a_narrow_terminal(recommendation):
    out = shown(recommendation_parts(recommendation), width=50)
    assert recommendation.serve_command in out  # in one piece, to be copied
    assert "…" not in out
    plain_words = "".join(words(plain(recommendation_parts(recommendation))))
    assert sorted("".join(words(out))) == sorted(plain_words)


def test_no_color_is_respected(recommendation, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[33m" not in shown(recommendation_parts(recommendation), width=200)


def test_the_log_folder_is_named_where_something_failed(recommendation):
    said = "engine logs are in logs"
    assert said in plain(recommendation_parts(recommendation, Path("logs")))
    assert said not in plain(recommendation_parts(recommendation))
    fine = recommendation.model_copy(update={"candidates": recommendation.candidates[:-1]})
    assert said not in plain(recommendation_parts(fine, Path("logs")))


def test_the_log_folder_of_an_engine(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SimulateEngine, "log_dir", tmp_path / "logs", raising=False)
    assert invoke(["run", "--engine", "simulate", "--simulation", "faulty"]) == 0
    assert f"engine logs are in {tmp_path}/logs\n" in capsys.readouterr().out

    def died(*arguments):
        from autotune.errors import EngineDiedError

        raise EngineDiedError("gone")

    monkeypatch.setattr("autotune.tuner.tune", died)
    assert invoke(["run", "--engine", "simulate", "--fresh"]) == 3
    assert f"error: gone\nhint: engine logs are in {tmp_path}/logs\n" in capsys.readouterr().err


def test_a_real_terminal(tmp_path):
    """stdout is a terminal, stderr is not."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPECTUNE_")}
    environment |= {"TERM": "xterm", "COLUMNS": "160"}
    environment.pop("NO_COLOR", None)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "autotune", "run", "--engine", "replay"]
    process = subprocess.Popen(
        [*command, "--recording", str(RECORDING)],
        cwd=tmp_path, env=environment, stdout=theirs, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(theirs)
    out = b""
    try:
        while chunk := os.read(ours, 4096):
            out += chunk
    except OSError:  # Linux's end of file of a terminal
        pass
    finally:
        os.close(ours)
    _, progress = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.startswith(b"\x1b[1mMiniMaxAI/MiniMax-M3-MXFP8 on GSM8K: use eagle3")
    assert b"\x1b" not in progress
