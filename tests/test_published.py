"""docs/published.md: what its figures say, held against the tables themselves; kept current."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from tuner_samples import PUBLISHED, replay

from autotune.store import as_recording, load_study

DOCS = Path(__file__).parent.parent / "docs"
TEXT = (DOCS / "published.md").read_text()


def rows_of(section):
    """The table of a section: one dict a row."""
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [line.strip("| ").split(" | ") for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


PANELS, OTHERS = (rows_of(part) for part in TEXT.split("\n## ")[1:])


def tables():
    """(model, workload, load, hardware) -> throughput by (method, N), straight from the files."""
    for path in PUBLISHED.glob("*.json"):
        document = json.loads(path.read_text())
        model = document["model"].rpartition("/")[2]
        for base in document["baseline"]:
            load = base["concurrency"]
            rates = {("none", 0): [base["output_tokens_per_second"]]}
            for point in document["points"]:
                if point["concurrency"] == load:
                    key = point["method"], point["num_speculative_tokens"]
                    rates.setdefault(key, []).append(point["output_tokens_per_second"])
            where = (document.get("hardware") or "unknown", str(load))
            known = where if not path.stem.startswith("s01-") else ()
            table = {key: sum(values) / len(values) for key, values in rates.items()}
            yield (model, document["workload"], *known), table


TABLES = dict(tables())


def table_of(row):
    known = (row["hardware"], row["load"]) if "load" in row else ()
    return TABLES[row["model"], row["workload"], *known]


def candidate(text):
    found = re.match(r"(\w+) N=(\d+)", text)
    return (found[1], int(found[2])) if found else ("none", 0)


def test_every_recording_has_its_row():
    assert (len(PANELS), len(OTHERS)) == (24, 13)
    assert len(PANELS) + len(OTHERS) == len(TABLES)
    assert {id(table_of(row)) for row in PANELS + OTHERS} == {id(t) for t in TABLES.values()}


@pytest.mark.parametrize(
    "row", PANELS + OTHERS, ids=lambda row: f"{row['model']} {row['workload']}"
)
def test_a_row_says_what_the_table_says(row):
    table = table_of(row)
    top = max(table.values())
    best, chosen = candidate(row["best"]), candidate(row["chosen"])
    assert table[best] == top
    for key, text in ((best, row["best"]), (chosen, row["chosen"])):
        assert text.endswith(f", {table[key] / table['none', 0]:.2f}x")
    ties = {candidate(text) for text in row["ties"].split(", ")} if row["ties"] != "-" else set()
    assert ties == {key for key, rate in table.items() if rate >= 0.99 * top} - {best}
    regret = 1 - table[chosen] / top
    assert row["regret"] == f"{regret:.2%}"
    assert regret <= 0.01
    methods = len({method for method, _ in table}) - 1
    assert int(row["starts"]) <= methods + 2


@pytest.mark.slow
def test_the_document_is_current():
    spec = importlib.util.spec_from_file_location("published", DOCS / "published.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.document() == TEXT, "stale: run `make docs`"


PLAYED_AGAIN = (
    "s01-gemma-4-31b-it-humaneval", "s01-minimax-m3-mxfp8-gsm8k", "s13-deepseek-v4-flash-unknown",
    "s23-gemma-4-26b-a4b-speed-bench", "s24-qwen3-4b-repo-default-aime25-2048-tok",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED_AGAIN)
def test_what_a_study_recorded_leads_to_the_same_choice(stage, tmp_path, name):
    """studies show --recording -> run --engine replay, which sees only what was measured."""
    first = stage.tune(replay(PUBLISHED / f"{name}.json"))
    study = load_study(stage.url)
    file = tmp_path / "again.json"
    file.write_text(json.dumps(as_recording(study.plan, study.windows)))
    second = stage.tune(replay(file))
    for before, after in zip(first.per_concurrency, second.per_concurrency, strict=True):
        assert (after.concurrency, after.method) == (before.concurrency, before.method)
        assert after.num_speculative_tokens == before.num_speculative_tokens
        if before.speedup is not None:
            assert after.speedup.value == pytest.approx(before.speedup.value)
