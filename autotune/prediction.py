"""From windows to predictions: what was measured becomes points of the two models, and back.

ln(speedup) = ln tau(N) - ln c(N, load), see acceptance.py and steptime.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from autotune import stats
from autotune.acceptance import Acceptance, StepRates
from autotune.pooling import pool_rates
from autotune.records import BASELINE, BatchSteps, Prediction
from autotune.steptime import CostModel, CostPoint, Part, Place

if TYPE_CHECKING:
    from autotune.knowledge import Knowledge, Load

MIN_COST = 0.05  # a step that drafts and verifies cannot be faster than a plain one by much
MIN_STEPS = 20  # fewer steps at a batch size say too little of its time
BATCH_SD = 0.05  # of a cost read from the steps of a smaller batch: its texts are nearly done


class Fit(NamedTuple):
    """The acceptance of one method, and what it was asked."""

    rates: Mapping[int, StepRates]
    acceptance: Acceptance
    log_taus: dict[int, tuple[float, float]]


class Predictor:
    """All that one state of knowledge implies; a new window makes a new one."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge

    def predict(self, method: str, n: int, load: Load) -> Prediction:
        key = (method, n, load)
        if key not in self._predictions:  # an N or a load that the plan does not ask for
            self._predictions.update(self._predict([key]))
        return self._predictions[key]

    @cached_property
    def _predictions(self) -> dict[Place, Prediction]:
        """Every candidate of the plan at once: that costs hardly more than one."""
        known = self._knowledge
        return self._predict([(m, n, load) for m, n in known.candidates() for load in known.loads])

    def _predict(self, places: list[Place]) -> dict[Place, Prediction]:
        if not places:
            return {}
        answers = [model.costs(places) for model in self._models]
        means = [math.fsum(column) for column in zip(*(mean for mean, _ in answers), strict=True)]
        means = [max(MIN_COST, mean) for mean in means]
        sds = [math.hypot(*column) for column in zip(*(sd for _, sd in answers), strict=True)]
        found = {}
        for place, cost, sd in zip(places, means, sds, strict=True):
            tau, tau_sd = self._log_tau(*place)
            found[place] = Prediction(
                method=place[0],
                num_speculative_tokens=place[1],
                concurrency=place[2],
                log_speedup=tau - math.log(cost),
                log_speedup_sd=math.hypot(tau_sd, sd / cost),
            )
        return found

    # ---------------------------------------------------------------- tokens per step

    def _log_tau(self, method: str, n: int, load: Load) -> tuple[float, float]:
        """Mean of ln tau(n), and its sd beyond what the measured cost has in common with it."""
        known = {(p.n, p.concurrency) for p in self._measured if p.method == method}
        mean, sd = self._tau(method, n)
        if (n, load) in known:
            return mean, 0.0  # the cost was computed with this very tau
        if known and not self._rates[method]:
            anchor = min((m for m, _ in known), key=lambda m: (abs(m - n), m))
            return self._acceptance(method).log_tau_beside(n, anchor)
        return mean, sd

    def _tau(self, method: str, n: int) -> tuple[float, float]:
        log_taus = self._fit(method).log_taus
        if n not in log_taus:
            log_taus[n] = self._acceptance(method).log_tau(n)
        return log_taus[n]

    def _acceptance(self, method: str) -> Acceptance:
        return self._fit(method).acceptance

    def _fit(self, method: str) -> Fit:
        """Kept from window to window as long as the method's own rates stay the same."""
        kept, rates = self._knowledge.fits.get(method), self._rates[method]
        if kept is None or kept.rates != rates:
            space = self._knowledge.spaces[method]
            kept = Fit(rates, Acceptance(rates, space.prior, max(space.lengths)), {})
            self._knowledge.fits[method] = kept
        return kept

    @cached_property
    def _rates(self) -> dict[str, dict[int, StepRates]]:
        """Step rates of each method at each measured N, pooled over windows and loads."""
        known = self._knowledge
        gathered: dict[tuple[str, int], list[StepRates]] = defaultdict(list)
        for method, n, load in known.places():
            if n:
                gathered[method, n] += known.step_rates(method, n, load)
        found: dict[str, dict[int, StepRates]] = defaultdict(dict)
        for (method, n), rows in gathered.items():
            if rows:
                found[method][n] = pool_rates(rows)
        return found

    # ----------------------------------------------------------------------- the step

    @cached_property
    def _models(self) -> list[CostModel]:
        """Drafting and verification apart where step timing has split every measured candidate."""
        split = bool(self._measured) and all(
            self._draft_share(p) is not None for p in self._measured
        )
        parts: tuple[Part, ...] = ("draft", "verify") if split else ("whole",)
        priors = {method: space.prior for method, space in self._knowledge.spaces.items()}
        alone = {p.method for p in self._measured if not self._rates[p.method]}
        return [
            CostModel(
                [*(self._part(p, part) for p in self._measured), *self._smaller_batches(part)],
                priors,
                part,
                alone,
            )
            for part in parts
        ]

    @cached_property
    def _measured(self) -> list[CostPoint]:
        """c = tau / speedup of every measured candidate and load."""
        known, points = self._knowledge, []
        for method, n, load in known.places():
            ratios = known.log_ratios(method, n, load) if method != BASELINE and n else []
            if ratios:
                cost = math.exp(self._tau(method, n)[0] - stats.mean(ratios))
                sd = known.noise / math.sqrt(len(ratios))
                points.append(
                    CostPoint(method=method, n=n, concurrency=load, cost=cost, relative_sd=sd)
                )
        return points

    def _draft_share(self, point: CostPoint) -> float | None:
        """Share of drafting in a step of this candidate; None where it was not timed."""
        steps = self._knowledge.step_figures(point.method, point.n, point.concurrency)
        draft, step = steps.get("draft_seconds_per_step"), steps.get("step_seconds")
        return draft / step if draft is not None and step else None

    def _part(self, point: CostPoint, part: Part) -> CostPoint:
        if part == "whole":
            return point
        share = self._draft_share(point) or 0.0
        return point.model_copy(
            update={"cost": point.cost * (share if part == "draft" else 1 - share)}
        )

    def _smaller_batches(self, part: Part) -> Iterator[CostPoint]:
        """Costs at loads that were not measured, from the steps in which a block ran out.

        Of each candidate's largest load, at powers of two. The ratio of step times is brought to
        the level of the measured cost at the whole batch.
        """
        places = {(p.method, p.n, p.concurrency) for p in self._measured}
        sd = math.hypot(BATCH_SD, self._knowledge.noise / math.sqrt(2))
        for point in self._largest_loads():
            batches = self._batches(point)
            level = _level(point, batches)
            for requests, (ours, base) in batches.items():
                ratio = _seconds(ours, part) / base.step_seconds
                power_of_two = requests & (requests - 1) == 0
                if power_of_two and (point.method, point.n, requests) not in places and ratio > 0:
                    yield point.model_copy(
                        update={"concurrency": requests, "cost": ratio * level, "relative_sd": sd}
                    )

    def _largest_loads(self) -> list[CostPoint]:
        largest: dict[tuple[str, int], CostPoint] = {}
        for point in sorted(self._measured, key=lambda p: p.concurrency or 0):
            largest[point.method, point.n] = point
        return list(largest.values())

    def _batches(self, point: CostPoint) -> dict[int, tuple[BatchSteps, BatchSteps]]:
        """Steps of a candidate and of the baseline that held equally many requests."""
        known, load = self._knowledge, point.concurrency
        ours = known.batch_figures(point.method, point.n, load)
        base = known.batch_figures(BASELINE, 0, load)
        return {
            requests: (ours[requests], base[requests])
            for requests in sorted(ours.keys() & base.keys())
            if min(ours[requests].num_steps, base[requests].num_steps) >= MIN_STEPS
        }


def _level(point: CostPoint, batches: Mapping[int, tuple[BatchSteps, BatchSteps]]) -> float:
    """Measured cost / ratio of step times, at the whole batch; 1 where steps do not tell."""
    if point.concurrency is None or point.concurrency not in batches:
        return 1.0
    ours, base = batches[point.concurrency]
    return point.cost * base.step_seconds / ours.step_seconds


def _seconds(steps: BatchSteps, part: Part) -> float:
    draft = steps.draft_seconds_per_step or 0.0
    return {"whole": steps.step_seconds, "draft": draft, "verify": steps.step_seconds - draft}[part]
