"""Writes docs/published.md: `spectune run --engine replay` on every published sweep.

Some twenty seconds. A test fails when the file is stale: an exact replay is deterministic.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs/published.md"
STUDIES = ROOT / "studies/published"
sys.path.insert(0, str(ROOT / "studies/bench"))  # replay.py

from replay import Table, replay, truth  # noqa: E402

from autotune.recording import load_recording  # noqa: E402
from autotune.records import BASELINE, CandidateResult, LoadChoice, Recommendation  # noqa: E402

TIE = 0.01
Key = tuple[str, int]

ABOUT = """\
# Published sweeps, played back

What `spectune run --engine replay --recording studies/published/FILE` answers on each published
sweep, beside the best of its table. This file is generated: `make docs`. The figures are those of
the sources named in [studies/published/README.md](../studies/published/README.md); nothing here was
measured by this project.

- **Best** has the highest throughput in the table, no speculation included; **ties** are within 1 %
  of it. A speed-up is throughput over the table's own baseline.
- **Chosen** is what the search answers after the engine starts and measurements of the last
  columns. It sees a figure only by probing it. **Regret** is the throughput lost against the best.
- Starts: one for the baseline, one for each method (N is switched live) and the confirmation.
"""
PANELS = """\
## The {count} panels of the vLLM post on AMD GPUs

"Speculative Decoding in vLLM on AMD GPUs" (vLLM blog, 2026-08-23): MI300X and MI355X, four data
sets each, one load that is not stated.
"""
OTHERS = """\
## The {count} other recordings

Single sources on other engines and machines, at the loads they state.
"""


class Line(NamedTuple):
    """One recording at one load."""

    model: str
    workload: str
    hardware: str
    table: Table
    answer: Recommendation
    choice: LoadChoice

    @property
    def best(self) -> Key:
        return max(self.table, key=lambda key: self.table[key])

    @property
    def chosen(self) -> Key:
        return self.choice.method, self.choice.num_speculative_tokens

    @property
    def regret(self) -> float:
        return 1 - self.table[self.chosen] / self.table[self.best]

    @property
    def ties(self) -> list[Key]:
        least = (1 - TIE) * self.table[self.best]
        return [key for key, rate in self.table.items() if rate >= least and key != self.best]

    def speedup(self, key: Key) -> float:
        return self.table[key] / self.table[BASELINE, 0]


def lines(paths: Iterable[Path]) -> list[Line]:
    """Every load of every recording, each recording replayed once."""
    found = []
    for path in paths:
        recording, answer = load_recording(path), replay(path).answer
        model = recording.model.rpartition("/")[2]
        about = (model, recording.workload, recording.hardware or "unknown")
        for choice in answer.per_concurrency:
            found.append(Line(*about, truth(path, choice.concurrency), answer, choice))
    return found


def document() -> str:
    paths = sorted(STUDIES.glob("*.json"))
    panels = lines(path for path in paths if path.stem.startswith("s01-"))
    others = lines(path for path in paths if not path.stem.startswith("s01-"))
    parts = [
        ABOUT,
        PANELS.format(count=len(panels)),
        table(panels),
        summary(panels),
        OTHERS.format(count=len(paths) - len(panels)),
        table(others, stated=True),
        summary(others),
    ]
    return "\n".join(parts)


def table(rows: Sequence[Line], *, stated: bool = False) -> str:
    """Markdown; `stated`: with the machine and the load."""
    heading = ("model", "workload", *(("hardware", "load") if stated else ()),
               "best", "ties", "chosen", "regret", "starts", "measured")  # fmt: skip
    cells = [heading, ("---",) * len(heading)]
    for row in rows:
        load = row.choice.concurrency
        where = (row.hardware, "unstated" if load is None else str(load)) if stated else ()
        cells.append(
            (
                row.model, row.workload, *where, gained(row, row.best),
                ", ".join(map(named, row.ties)) or "-", gained(row, row.chosen),
                f"{row.regret:.2%}", str(row.answer.cost.engine_starts),
                str(row.answer.cost.probes),
            )
        )  # fmt: skip
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def summary(rows: Sequence[Line]) -> str:
    """The count of best and tied choices; every other one with its figures."""
    exact = sum(row.regret == 0 for row in rows)
    tied = sum(0 < row.regret <= TIE for row in rows)
    beyond = [row for row in rows if row.regret > TIE]
    mean, worst = statistics.fmean(r.regret for r in rows), max(r.regret for r in rows)
    text = (
        f"{exact} of {len(rows)} choices are the table's best, {tied} more are within 1 % of it,"
        f" {len(beyond)} are not. Regret: mean {mean:.2%}, worst {worst:.2%}.\n"
    )
    return "\n".join([text, *(f"- {exception(row)}" for row in beyond), *([""] if beyond else [])])


def exception(row: Line) -> str:
    chosen, best = row.chosen, row.best
    text = (
        f"{row.model} on {row.workload}: {named(chosen)} at {row.table[chosen]:g} tok/s instead of"
        f" {named(best)} at {row.table[best]:g}, {row.regret:.2%} less: the best was "
    )
    if candidate(row, best).output_tokens_per_second is None:
        return text + "not measured; the search expected less of it."
    return text + "measured too, and the choice was thought to be better."


def candidate(row: Line, key: Key) -> CandidateResult:
    load = row.choice.concurrency
    return next(
        c
        for c in row.answer.candidates
        if (c.method, c.num_speculative_tokens, c.concurrency) == (*key, load)
    )


def named(key: Key) -> str:
    return "no speculation" if key[0] == BASELINE else f"{key[0]} N={key[1]}"


def gained(row: Line, key: Key) -> str:
    return f"{named(key)}, {row.speedup(key):.2f}x"


if __name__ == "__main__":
    FILE.write_text(document(), encoding="utf-8")
    print(FILE.relative_to(ROOT))
