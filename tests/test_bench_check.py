"""The benchmark of `check`: its engines are what it says they are, and its figures are counted."""

from __future__ import annotations

import math

import check as bench
import pytest
from tuner_samples import Scripted

from autotune.engines.scenario import load_scenario
from autotune.records import BASELINE, Arm, Block, BlockRole, Sampling, Target


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return bench.scenarios(tmp_path_factory.mktemp("scenarios"))


def test_the_worse_drafter_loses_three_per_cent_of_its_acceptance_length(files):
    lengths = [1 + sum(load_scenario(f).acceptance_rates(bench.METHOD, bench.N)) for f in files]
    assert lengths[1] / lengths[0] == pytest.approx(0.97)


def test_only_speculation_is_slower():
    """Medians over 300 starts of one window each: the walk and the wave are common to both."""
    block = Block(role=BlockRole.CONFIRM, index=0, concurrency=8, prompts=(), sampling=Sampling())
    rates = {(BASELINE, 0): 100.0, ("dflash", 3): 100.0}
    field = bench.Field(Scripted(rates), seed=1, slower=0.05)
    seen = {"none": [], "dflash": []}
    for _ in range(300):
        for method, n in ((BASELINE, 0), ("dflash", 3)):
            arm = Arm(method=method, num_speculative_tokens=n)
            session = field.open(Target(model="m"), arm, print)
            seen[method].append(math.log(session.run(block).output_tokens_per_second))
    ratios = sorted(b - a for a, b in zip(seen["none"], seen["dflash"], strict=True))
    assert ratios[150] == pytest.approx(math.log(0.95), abs=0.003)


def test_one_quiet_trial(files):
    found = bench.run_trial(bench.Trial(0.01, 7, files, False))
    assert [f.kind for f in found] == list(bench.KINDS)
    assert [f.outcome for f in found] == ["no regression", "regression", "regression"]
    assert "acceptance_length" in found[2].metrics


def test_the_table_counts():
    def one(kind, metrics, outcome, threshold):
        return bench.Found(0.02, kind, outcome, metrics, threshold, 16)

    found = [
        one("A/A", (), "no regression", False),
        one("A/A", ("tpot_p50",), "regression", True),
        one("5 % slower", ("speedup",), "regression", False),
        one("3 % less accepted", ("speedup",), "regression", True),
    ]
    rows = list(bench.table(found))
    assert rows[2] == "| 2% | A/A | 2 | 50.0% | 50.0% | 0.0% | 50.0% | 16 |"
    assert rows[3] == "| 2% | 5 % slower | 1 | 100.0% | 0.0% | 0.0% | 0.0% | 16 |"
    assert rows[4] == "| 2% | 3 % less accepted | 1 | 0.0% | 0.0% | 0.0% | 100.0% | 16 |"
