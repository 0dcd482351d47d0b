"""The relative cost of a step: c(method, N, load) = T(N, load) / T0(load), against no speculation.

speedup = tau(N) / c(N), so every measured throughput with a known tau is a measurement of c.
All methods of a study are one Gaussian process:

- an affine function of N, mostly the *same* one for every method: at low load verification makes
  most of a step, and it is the target's own; what a drafter adds is the smaller part;
- a residual per N that all methods share: N + 1 tokens fill a tile or a captured graph, or not;
- a smooth residual and one of its own per method;
- loads inform each other by their distance in log2 (an Ornstein-Uhlenbeck process: between two
  loads it does not overshoot), and slopes may be steeper at higher loads.

Where step timing has split the steps, drafting and verification are two such processes and c is
their sum: drafting is the method's own, verification is shared nearly whole.

Figures: maximum likelihood over the panels with acceptance per position of studies/published,
mainly the tables of the vLLM blog post of 2026-08-23, "Speculative Decoding in vLLM on AMD GPUs"
(shared slope .06 of .2 per token, own .02, shared residual 3 %, smooth residual 8 %), widened
where these panels, all at one load each, cannot say how far others may be.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

from autotune.records import Prior, Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Part = Literal["whole", "draft", "verify"]

LOAD_LENGTH = 6.0  # loads 6 doublings apart share exp(-1) of what is learned
STEEPER = 0.25  # a slope's sd grows by this share with every doubling of the load
SCALES = (1.0, 2.0, 4.0, 8.0, 16.0)
MIN_POINTS_FOR_SCALE = 4


class Kernel(NamedTuple):
    """Standard deviations of the process; residuals are relative to the prior cost."""

    shared_intercept: float
    own_intercept: float
    shared_slope: float
    own_slope: float
    shared_step: float
    own_step: float
    own_smooth: float
    smooth_length: float  # in N


KERNELS: Mapping[Part, Kernel] = {
    "whole": Kernel(0.30, 0.12, 0.08, 0.035, 0.03, 0.02, 0.06, 3.5),
    "verify": Kernel(0.20, 0.05, 0.08, 0.02, 0.03, 0.01, 0.03, 3.5),
    "draft": Kernel(0.05, 0.20, 0.03, 0.08, 0.0, 0.03, 0.06, 3.5),
}


class CostPoint(Record):
    """One measurement: c at (method, n, concurrency) with its relative standard deviation."""

    method: str
    n: int
    concurrency: int | None
    cost: float
    relative_sd: float


Place = tuple[str, int, int | None]  # (method, N, concurrency)


class CostModel:
    """The posterior of one part of the cost, given points of all methods."""

    def __init__(
        self,
        points: Sequence[CostPoint],
        priors: Mapping[str, Prior],
        part: Part = "whole",
        alone: Collection[str] = (),
    ) -> None:
        """`priors` must know every method that is asked for. Methods in `alone` share nothing:
        where acceptance is not known, a low speed may as well be bad drafts as long steps.
        """
        self._alone = frozenset(alone)
        self._points = points
        self._priors = priors
        self._kernel = KERNELS[part]
        self._part = part
        self._known = [(p.method, p.n, p.concurrency) for p in points]
        self._scales = {m: self._scale(m) for m in {p.method for p in points}}

    def costs(self, places: Sequence[Place]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Posterior means and standard deviations of c at (method, N, concurrency)."""
        import numpy as np

        prior = self._prior(places)
        variance = self._variance(places, self._scales)
        if not self._points:
            return prior, np.asarray(np.sqrt(variance), dtype=np.float64)
        inverse, weights = self._solved
        across = self._covariance(places, self._known)
        left = np.maximum(1e-12, variance - ((across @ inverse) * across).sum(axis=1))
        means: NDArray[np.float64] = prior + across @ weights
        return means, np.asarray(np.sqrt(left), dtype=np.float64)

    @cached_property
    def _solved(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        import numpy as np

        inverse = np.asarray(np.linalg.inv(self._observed(self._points)), dtype=np.float64)
        return inverse, inverse @ self._surprise(self._points)

    def _scale(self, method: str) -> float:
        """How much rougher than usual this method's cost is: a factor on its residual's sd.

        Empirical Bayes: the scale with the largest marginal likelihood of the method's own points,
        each doubling penalised by one nat. A cliff (a batch above the captured sizes) must not be
        smoothed away; with few points it cannot be told from a slope, so 1.0 is kept.
        """
        import numpy as np

        points = [p for p in self._points if p.method == method]
        if len(points) < MIN_POINTS_FOR_SCALE:
            return 1.0
        surprise, best, chosen = self._surprise(points), -math.inf, 1.0
        for doublings, scale in enumerate(SCALES):
            covariance = self._observed(points, {method: scale})
            _, log_determinant = np.linalg.slogdet(covariance)
            fit = -0.5 * (float(surprise @ np.linalg.solve(covariance, surprise)) + log_determinant)
            if fit - doublings > best:
                best, chosen = fit - doublings, scale
        return chosen

    def _surprise(self, points: Sequence[CostPoint]) -> NDArray[np.float64]:
        """Measured minus prior cost."""
        import numpy as np

        places = [(p.method, p.n, p.concurrency) for p in points]
        return np.array([p.cost for p in points]) - self._prior(places)

    def _observed(
        self, points: Sequence[CostPoint], scales: Mapping[str, float] | None = None
    ) -> NDArray[np.float64]:
        """Prior covariance of the measured costs, their noise included."""
        import numpy as np

        known = [(p.method, p.n, p.concurrency) for p in points]
        noise = np.diag([max(1e-9, p.relative_sd * p.cost) ** 2 for p in points])
        result: NDArray[np.float64] = self._covariance(known, known, scales) + noise
        return result

    def _prior(self, places: Sequence[Place]) -> NDArray[np.float64]:
        """Prior mean of c: the method's line, or its share where drafting is split off."""
        import numpy as np

        lines = []
        for method, n, _ in places:
            prior = self._priors[method]
            whole = prior.cost_intercept + prior.cost_slope * n
            verify = min(whole, 1.1 + 0.6 * prior.cost_slope * n)
            lines.append({"whole": whole, "verify": verify, "draft": whole - verify}[self._part])
        return np.array(lines)

    def _covariance(
        self,
        left: Sequence[Place],
        right: Sequence[Place],
        scales: Mapping[str, float] | None = None,
    ) -> NDArray[np.float64]:
        """Prior covariance of c between two lists of places."""
        import numpy as np

        scales = self._scales if scales is None else scales
        k, a, b = self._kernel, self._columns(left, scales), self._columns(right, scales)
        same = (a.method[:, None] == b.method).astype(float)
        shared = np.maximum(same, np.outer(a.shares, b.shares))
        distance = a.n[:, None] - b.n
        affine = shared * (
            k.shared_intercept**2 + k.shared_slope**2 * np.outer(a.steep, b.steep)
        ) + same * (k.own_intercept**2 + k.own_slope**2 * np.outer(a.steep, b.steep))
        at_same_n = (distance == 0).astype(float)
        smooth = k.own_smooth**2 * np.exp(-0.5 * (distance / k.smooth_length) ** 2)
        own = same * np.outer(a.scale, b.scale) * (smooth + k.own_step**2 * at_same_n)
        residual = np.outer(a.level, b.level) * (shared * k.shared_step**2 * at_same_n + own)
        loads = np.exp(-np.abs(a.octave[:, None] - b.octave) / LOAD_LENGTH)
        result: NDArray[np.float64] = loads * (affine + residual)
        return result

    def _variance(
        self, places: Sequence[Place], scales: Mapping[str, float]
    ) -> NDArray[np.float64]:
        """The diagonal of `_covariance` of places with themselves."""
        k, a = self._kernel, self._columns(places, scales)
        affine = (
            k.shared_intercept**2
            + k.own_intercept**2
            + (k.shared_slope**2 + k.own_slope**2) * a.steep**2
        )
        own = a.scale**2 * (k.own_smooth**2 + k.own_step**2)
        result: NDArray[np.float64] = affine + a.level**2 * (k.shared_step**2 + own)
        return result

    def _columns(self, places: Sequence[Place], scales: Mapping[str, float]) -> _Columns:
        import numpy as np

        names = list(self._priors)
        priors = [(self._priors[m], n) for m, n, _ in places]
        n = np.array([float(n) for _, n, _ in places])
        octave = np.array([math.log2(load or 1) for _, _, load in places])
        return _Columns(
            method=np.array([names.index(m) for m, _, _ in places]),
            n=n,
            octave=octave,
            steep=n * (1 + STEEPER * octave),
            level=np.array([p.cost_intercept + p.cost_slope * n for p, n in priors]),
            scale=np.array([scales.get(m, 1.0) for m, _, _ in places]),
            shares=np.array([float(m not in self._alone) for m, _, _ in places]),
        )


class _Columns(NamedTuple):
    """Places as arrays: method (a number), N, log2 of the load (an unstated one is 1), N as slopes
    see it, the prior cost that residuals are relative to, the residual's scale, and whether the
    method shares with others.
    """

    method: NDArray[np.int64]
    n: NDArray[np.float64]
    octave: NDArray[np.float64]
    steep: NDArray[np.float64]
    level: NDArray[np.float64]
    scale: NDArray[np.float64]
    shares: NDArray[np.float64]
