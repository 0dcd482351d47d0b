"""What the windows measured so far say: every candidate pooled, and every candidate predicted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from autotune import stats
from autotune.acceptance import StepRates, window_rates
from autotune.limits import Medians, medians, share_within
from autotune.pooling import acceptance_figures, batch_figures, step_figures
from autotune.prediction import Fit, Predictor
from autotune.records import (
    BASELINE,
    BatchSteps,
    BlockRole,
    Measurement,
    Plan,
    Prediction,
    Window,
)

Key = tuple[str, int]  # (method, N)
Load = int | None

NOT_TRIED = "not tried"  # how the error of a candidate that was given up unseen begins
SEARCH_ROLES = (BlockRole.SEARCH, BlockRole.REFERENCE)


class Knowledge:
    """All windows of a study, pooled by candidate and load."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.spaces = {space.method: space for space in plan.spaces}
        self.loads = plan.concurrencies
        self.failed: dict[tuple[str, int | None], str] = {}
        self.tried_in_vain: set[Key] = set()  # failed when they were run, not given up unseen
        self.out_of_race: set[Key] = set()  # measured, but a further block failed
        # share of requests within the latency limits, seen on held-out blocks: it has the last word
        self.held_out_shares: dict[tuple[str, int, Load], float] = {}
        # by candidate and load, then by block: a window that is added again changes nothing
        self._windows: dict[tuple[str, int, Load], dict[str, Window]] = defaultdict(dict)
        self.fits: dict[str, Fit] = {}  # by method: the predictor keeps its work here
        self._cache: dict[tuple[Any, ...], Any] = {}  # holds until the next window comes
        self._kept: dict[tuple[Any, ...], Any] = {}  # holds while these windows stay the same

    def add(self, window: Window) -> None:
        """Take in one SEARCH or REFERENCE window; others are not for the search."""
        role = window.block.split(":")[0]
        if role in SEARCH_ROLES:
            key = (window.method, window.num_speculative_tokens, window.concurrency)
            self._windows[key][window.block] = window
            self._forget(*key)
            self._cache.clear()

    def _forget(self, method: str, n: int, load: Load) -> None:
        """Of this candidate at this load; everything else at the load is compared with N = 0."""
        everything = method == BASELINE
        stale = [k for k in self._kept if k[3] == load and (everything or k[1:3] == (method, n))]
        for key in stale:
            del self._kept[key]

    def _keep(self, compute: Callable[..., Any], method: str, n: int, load: Load) -> Any:
        """`compute(method, n, load)`, which reads only these windows and the baseline's there."""
        key = (compute.__name__, method, n, load)
        if key not in self._kept:
            self._kept[key] = compute(method, n, load)
        return self._kept[key]

    def fail(self, method: str, n: int | None, error: str) -> None:
        """Take a candidate out (N None: the method); `error` begins with NOT_TRIED if unseen."""
        self.failed[method, n] = error
        if n is not None and not error.startswith(NOT_TRIED):
            self.tried_in_vain.add((method, n))
        self._cache.clear()

    def alive(self, method: str, n: int) -> bool:
        return (method, None) not in self.failed and (method, n) not in self.failed

    def candidates(self) -> Iterator[Key]:
        """Everything that may still be chosen, in the plan's order."""
        for space in self.plan.spaces:
            for n in space.lengths:
                if self.alive(space.method, n):
                    yield space.method, n

    def windows(self, method: str, n: int, load: Load) -> list[Window]:
        return list(self._windows.get((method, n, load), {}).values())

    def share_within_limits(self, method: str, n: int, load: Load) -> float | None:
        """Of the requests of held-out blocks, before the confirmation of the search's.

        None without limits or where none was timed.
        """
        held_out = self.held_out_shares.get((method, n, load))
        return self.search_share(method, n, load) if held_out is None else held_out

    def search_share(self, method: str, n: int, load: Load) -> float | None:
        """`share_within_limits` of the search's requests alone."""
        share: float | None = self._keep(self._search_share, method, n, load)
        return share

    def _search_share(self, method: str, n: int, load: Load) -> float | None:
        return share_within(self.plan.settings.limits, self.windows(method, n, load))

    def baseline_medians(self, load: Load) -> Medians | None:
        """Request times without speculation; None where they were not measured."""
        found: Medians | None = self._keep(self._medians, BASELINE, 0, load)
        return found

    def _medians(self, method: str, n: int, load: Load) -> Medians | None:
        return medians(self.windows(method, n, load))

    def blocks_done(self, method: str, n: int) -> int:
        """Search blocks measured at every load."""
        return min(len(self.windows(method, n, load)) for load in self.plan.concurrencies)

    def measured(self, method: str, n: int) -> bool:
        """Whether the candidate has an answer at every load."""
        return all(self.windows(method, n, load) for load in self.plan.concurrencies)

    def log_ratios(self, method: str, n: int, load: Load) -> list[float]:
        """ln(throughput / baseline) of every window, paired with the same block's baseline.

        A reference window repeats search block 0 and is paired with it.
        """
        ratios: list[float] = self._keep(self._log_ratios, method, n, load)
        return ratios

    def _log_ratios(self, method: str, n: int, load: Load) -> list[float]:
        base: dict[str, list[float]] = defaultdict(list)
        for window in self.windows(BASELINE, 0, load):
            base[_prompts(window)].append(math.log(window.output_tokens_per_second))
        if not base:
            return []
        anywhere = stats.mean([stats.mean(values) for values in base.values()])
        return [
            math.log(window.output_tokens_per_second)
            - (stats.mean(base[_prompts(window)]) if _prompts(window) in base else anywhere)
            for window in self.windows(method, n, load)
        ]

    @property
    def noise(self) -> float:
        """Relative sd of one window: repeats of the same candidate, load and prompts, pooled."""
        noise: float = self._cached(("noise",), self._noise)
        return noise

    def _cached(self, key: tuple[Any, ...], compute: Callable[..., Any], *arguments: Any) -> Any:
        if key not in self._cache:
            self._cache[key] = compute(*arguments)
        return self._cache[key]

    def _noise(self) -> float:
        repeats = [
            stats.within(g) for key in self._windows for g in self._keep(self._repeats, *key)
        ]
        tables = [self._raced(method, load) for method in self.spaces for load in self.loads]
        return stats.pooled_noise([*repeats, *(stats.two_way(t) for t in tables if t)])

    @property
    def wander(self) -> float:
        """Sd by which the machine's speed moves, as a log, from block to block of a candidate.

        What the ratios to the baseline vary beyond the noise of two windows; 0 where noise alone
        explains it (chi-square, 95 %). Two starts differ by at least that.
        """
        wander: float = self._cached(("wander",), self._wander)
        return wander

    def _wander(self) -> float:
        from scipy.stats import chi2

        ratios = [self.log_ratios(*key) for key in self._windows if key[0] != BASELINE]
        spreads = [stats.within(values) for values in ratios if len(values) > 1]
        squares = math.fsum(spread.squares for spread in spreads)
        freedom = sum(spread.freedom for spread in spreads)
        noise = 2 * self.noise**2
        if not freedom or squares <= noise * float(chi2.ppf(0.95, freedom)):
            return 0.0
        return math.sqrt(squares / freedom - noise)

    def _repeats(self, method: str, n: int, load: Load) -> list[list[float]]:
        """ln(throughput) of windows that used the same prompts, where there are several."""
        groups: dict[str, list[float]] = defaultdict(list)
        for window in self.windows(method, n, load):
            groups[_prompts(window)].append(math.log(window.output_tokens_per_second))
        return [group for group in groups.values() if len(group) > 1]

    def _raced(self, method: str, load: Load) -> list[list[float]]:
        """ln(throughput) of a method's candidates (rows) on the blocks all of them ran (columns).

        Candidates are raced in turn, so a column has one time and one set of prompts. Ratios to
        the baseline would not do: they hold the drift since its start. Empty: nothing was raced.
        """
        rows = []
        for n in self.spaces[method].lengths:
            found = {_prompts(w): w for w in self.windows(method, n, load)}
            if len(found) > 1:
                rows.append(found)
        if len(rows) < 2:
            return []
        blocks = sorted(set.intersection(*(set(row) for row in rows)))
        if len(blocks) < 2:
            return []
        return [[math.log(row[b].output_tokens_per_second) for b in blocks] for row in rows]

    def measurement(self, method: str, n: int, load: Load) -> Measurement | None:
        """Pooled figures of one candidate at one load; None when it was not measured."""
        windows, ratios = self.windows(method, n, load), self.log_ratios(method, n, load)
        if not windows or not ratios:
            return None
        return Measurement(
            method=method,
            num_speculative_tokens=n,
            concurrency=load,
            live=windows[-1].live,
            windows=len(windows),
            output_tokens_per_second=math.exp(
                stats.mean([math.log(w.output_tokens_per_second) for w in windows])
            ),
            log_speedup=stats.mean(ratios),
            log_speedup_se=stats.standard_error(ratios),
            **acceptance_figures(windows),
            **step_figures(windows),
        )

    def step_rates(self, method: str, n: int, load: Load) -> list[StepRates]:
        """Acceptance per decode step of every window of a candidate that tells of it."""
        rates: list[StepRates] = self._keep(self._step_rates, method, n, load)
        return rates

    def _step_rates(self, method: str, n: int, load: Load) -> list[StepRates]:
        return [r for r in map(window_rates, self.windows(method, n, load)) if r is not None]

    def step_figures(self, method: str, n: int, load: Load) -> dict[str, float | None]:
        """See pooling.step_figures."""
        figures: dict[str, float | None] = self._keep(self._step_figures, method, n, load)
        return figures

    def _step_figures(self, method: str, n: int, load: Load) -> dict[str, float | None]:
        return step_figures(self.windows(method, n, load))

    def batch_figures(self, method: str, n: int, load: Load) -> dict[int, BatchSteps]:
        """See pooling.batch_figures."""
        figures: dict[int, BatchSteps] = self._keep(self._batch_figures, method, n, load)
        return figures

    def _batch_figures(self, method: str, n: int, load: Load) -> dict[int, BatchSteps]:
        return batch_figures(self.windows(method, n, load))

    def places(self) -> list[tuple[str, int, Load]]:
        """Every (method, N, load) that has a window, the baseline's and N = 0 included."""
        return list(self._windows)

    def predict(self, method: str, n: int, load: Load) -> Prediction:
        """The cost model's ln(speedup) for any candidate at any load, measured or not."""
        predictor: Predictor = self._cached(("predictor",), Predictor, self)
        return predictor.predict(method, n, load)

    def score(self, method: str, n: int) -> tuple[float, float]:
        """Mean and sd of ln(speedup) averaged over the plan's loads."""
        each = [self.predict(method, n, load) for load in self.plan.concurrencies]
        centre = stats.mean([p.log_speedup for p in each])
        # errors of one candidate at several loads go together, so the sds are averaged
        return centre, stats.mean([p.log_speedup_sd for p in each])


def _prompts(window: Window) -> str:
    """Which prompts a window used: reference blocks repeat search block 0."""
    role, index, _ = window.block.split(":")
    return "0" if role == BlockRole.REFERENCE else index
