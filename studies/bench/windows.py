"""Measured windows of one target as a file: what `predict.py` measures once and evaluates often.

JSON lines: the Plan first, then every Window in the order of its measurement. N is interleaved
block by block on the live engine of a method, with N = 0 as its in-engine reference; the baseline
has a start of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune.engines import Engine, Progress
from autotune.errors import UnusableMeasurementError
from autotune.measure import Lab
from autotune.plan import with_priors
from autotune.records import BlockRole, MethodSpace, Plan, Window
from autotune.store import open_study

Slot = tuple[BlockRole, int]  # which block: its role and index


def save_windows(path: Path, plan: Plan, windows: Iterator[Window]) -> None:
    """Write each window as soon as it is measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.write(plan.model_dump_json() + "\n")
        for window in windows:
            file.write(window.model_dump_json() + "\n")
            file.flush()


def load_windows(path: Path) -> tuple[Plan, list[Window]]:
    plan, *windows = path.read_text().splitlines()
    known = with_priors(Plan.model_validate_json(plan))  # those of today, whatever was stored
    return known, [Window.model_validate_json(line) for line in windows]


def measure(plan: Plan, engine: Engine, progress: Progress) -> Iterator[Window]:
    """The baseline, then every N of every method, at all loads of the plan."""
    with tempfile.TemporaryDirectory() as folder:
        study = open_study(f"sqlite:///{folder}/study.db", plan)
        lab = Lab(plan, engine, study, progress)
        try:
            for slot in slots(plan):
                for load in plan.concurrencies:
                    yield lab.window(lab.baseline_arm(), 0, *slot, load)
            for space in plan.spaces:
                yield from measure_method(lab, space)
        finally:
            lab.close()
            study.close()


def slots(plan: Plan) -> list[Slot]:
    """The blocks of every candidate; the last one repeats the first, which shows the noise."""
    search = [(BlockRole.SEARCH, index) for index in range(plan.settings.search_blocks)]
    return [*search, (BlockRole.REFERENCE, 0)]


def measure_method(lab: Lab, space: MethodSpace) -> Iterator[Window]:
    """Live: block by block through all N, in turns forwards and backwards. Else start by start."""
    if not lab.is_live(space):
        order = [(n, slot) for n in space.lengths for slot in slots(lab.plan)]
    else:
        order = [
            (n, slot)
            for turn, slot in enumerate(slots(lab.plan))
            for n in _turn((0, *space.lengths), turn)
        ]
    for n, slot in order:
        for load in lab.plan.concurrencies:
            try:
                yield lab.window(lab.probe_arm(space, n), n, *slot, load)
            except UnusableMeasurementError as error:
                lab.progress(f"{space.method} N={n} at {load}: {error.message}")


def _turn(lengths: Sequence[int], turn: int) -> Sequence[int]:
    return lengths if turn % 2 == 0 else lengths[::-1]
