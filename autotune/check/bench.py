"""The hands of a check: baseline and configuration in alternating starts, block by block."""

from __future__ import annotations

import time
from typing import NamedTuple

from autotune.check.records import CheckRow
from autotune.check.windows import Cycle, baseline_row, measured_row
from autotune.engines.quality import compare_greedy
from autotune.measure import Lab
from autotune.records import Arm, Block, BlockRole, GreedyCheck, MethodSpace, Tier, Window
from autotune.storage.stored import EngineStart, StoredWindow

FIRST_GENERATION = 1000  # fresh starts, so that nothing is mistaken for a study's own
Load = int | None


class Configuration(NamedTuple):
    """What is checked against no speculation; `tiers` where N follows the batch size."""

    space: MethodSpace
    n: int
    tiers: tuple[Tier, ...] = ()

    def arm(self, generation: int) -> Arm:
        """One of its static starts."""
        if self.tiers:
            scheduled = self.space.schedule_arm(self.tiers)
            return scheduled.model_copy(update={"generation": generation})
        return self.space.arm(self.n, live=False, generation=generation)


class Memory:
    """What a Lab needs of a study, kept in memory: a check is short and starts afresh."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, int, str], StoredWindow] = {}
        self._starts: list[EngineStart] = []
        self._seconds = 0.0

    def recall(self, arm: Arm, n: int, block: Block) -> Window | None:
        found = self._windows.get((arm.key, n, block.key))
        return None if found is None else found.window

    def save(self, arm: Arm, block: Block, repeat: int, window: Window) -> None:
        n, now = window.num_speculative_tokens, time.time()
        self._windows[arm.key, n, block.key] = StoredWindow(
            arm=arm.key, n=n, block=block.key, repeat=repeat, at=now, window=window
        )

    def windows(self) -> list[StoredWindow]:
        return list(self._windows.values())

    def engine_started(self, arm: Arm, seconds: float, error: str | None = None) -> None:
        self._starts.append(
            EngineStart(
                arm=arm.key,
                method=arm.method,
                live=arm.live,
                seconds=seconds,
                error=error,
                at=time.time(),
            )
        )

    def engine_starts(self) -> list[EngineStart]:
        return list(self._starts)

    def add_seconds(self, seconds: float) -> None:
        self._seconds += seconds

    def total_seconds(self) -> float:
        return self._seconds


class Bench:
    """Measures cycles. Each change between baseline and configuration is a fresh start."""

    def __init__(
        self, lab: Lab, configuration: Configuration, blocks: int, *, rival: int = 0
    ) -> None:
        """`rival`: the how manieth other configuration it is, for which nothing is compared."""
        self.lab, self.configuration, self.blocks = lab, configuration, blocks
        self.rival = rival
        self.cycles: dict[Load, list[Cycle]] = {load: [] for load in lab.plan.concurrencies}
        self.greedy: GreedyCheck | None = None
        self._starts = 0
        self._ours: bool | None = None

    def cycle(self) -> None:
        """A B B A; the second half in mirrored order of blocks, and with the next prompts."""
        taken: dict[tuple[Load, int, bool], list[Window]] = {}
        half = 2 * len(next(iter(self.cycles.values())))
        order = range(self.blocks)
        for ours, later in ((False, 0), (True, 0), (True, 1), (False, 1)):
            for block in reversed(order) if later else order:
                index = (half + later) * self.blocks + block
                for load in self.cycles:
                    window = self._window(ours, BlockRole.CONFIRM, index, load)
                    taken.setdefault((load, block, ours), []).append(window)
            if self._wants_greedy() and ours:
                self.greedy = self._compare_greedy()
        for load, cycles in self.cycles.items():
            sides = {
                ours: tuple(tuple(taken[load, block, ours]) for block in order)
                for ours in (True, False)
            }
            cycles.append(Cycle(ours=sides[True], base=sides[False]))

    def rows(self) -> tuple[CheckRow, ...]:
        method, n = self.configuration.space.method, self.configuration.n
        rows: list[CheckRow] = []
        for i, (load, cycles) in enumerate(self.cycles.items()):
            greedy = None if i else self.greedy  # at batch 1, whatever the load
            ours = measured_row(load, method, n, cycles, greedy)
            if self.rival:
                rows.append(ours.model_copy(update={"chosen": False, "prompts": ()}))
            else:
                rows += [baseline_row(load, cycles), ours]
        return tuple(rows)

    def _window(self, ours: bool, role: BlockRole, index: int, load: Load) -> Window:
        if ours != self._ours:
            self._starts += 1
            self._ours = ours
            if not ours and self._wants_greedy():  # answers without speculation
                self._base = self.lab.window(self._arm(False), 0, BlockRole.GREEDY, 0, 1)
        n = self.configuration.n if ours else 0
        return self.lab.window(self._arm(ours), n, role, index, load)

    def _arm(self, ours: bool) -> Arm:
        generation = FIRST_GENERATION * (self.rival + 1) + self._starts
        if not ours:
            return self.lab.baseline_arm(generation)
        return self.configuration.arm(generation)

    def _wants_greedy(self) -> bool:
        asked = self.lab.plan.settings.greedy_prompts > 0
        return asked and self.greedy is None and not self.rival

    def _compare_greedy(self) -> GreedyCheck:
        ours = self._window(True, BlockRole.GREEDY, 0, 1)
        compared = compare_greedy(self._base.requests, ours.requests)
        first = compared.first_differences[0] if compared.first_differences else None
        return GreedyCheck(
            compared=compared.compared,
            equal=compared.equal,
            first_difference=f"{first.prompt_id} at character {first.position}" if first else None,
        )
