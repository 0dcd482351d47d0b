"""The relative cost of a step: c(N, load) = T(N, load) / T0(load), against no speculation.

speedup = tau(N) / c(N), so every measured throughput with a known tau is a measurement of c.
c is modelled as a Gaussian process with an affine mean in N (sequential drafters add one draft
pass per token; parallel drafters mainly add tokens to verify), a residual that admits steps
(tiles, graph-capture sizes), and loads that inform each other by their distance in log2.

Prior figures: the tables of the vLLM blog post of 2026-08-23, "Speculative Decoding in vLLM on
AMD GPUs": over its 55 method panels c is affine in N with intercepts of 1.0 to 2.0, slopes of
0.1 to 0.35 per token and residuals of 2 to 6 % around each panel's own line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.records import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

INTERCEPT, INTERCEPT_SD = 1.3, 0.35
SLOPE, SLOPE_SD = 0.18, 0.09
SMOOTH_SD, SMOOTH_LENGTH = 0.03, 3.0  # relative residual that neighbouring N share
STEP_SD = 0.035  # relative residual of one N alone
LOAD_LENGTH = 2.5  # loads 2.5 doublings apart share exp(-1/2) of what is learned
MIN_COST = 0.2
SCALES = (1.0, 2.0, 4.0, 8.0, 16.0)
MIN_POINTS_FOR_SCALE = 4


class CostPoint(Record):
    """One measurement: c at (n, concurrency) with its relative standard deviation."""

    n: int
    concurrency: int | None
    cost: float
    relative_sd: float


def log_cost(points: Sequence[CostPoint], n: int, concurrency: int | None) -> tuple[float, float]:
    """Mean and standard deviation of ln c(n, concurrency) for one method, given its points."""
    import numpy as np

    prior = INTERCEPT + SLOPE * n
    here = [(n, concurrency)]
    if not points:
        return math.log(prior), math.sqrt(_covariance(here, here)[0, 0]) / prior
    scale = residual_scale(points)
    known = [(p.n, p.concurrency) for p in points]
    across = _covariance(here, known, scale)[0]
    gain = np.linalg.solve(_observed(points, scale), across)
    mean = max(MIN_COST, prior + float(gain @ _surprise(points)))
    variance = _covariance(here, here, scale)[0, 0]
    left = max(1e-12, float(variance - gain @ across))
    return math.log(mean), math.sqrt(left) / mean


def residual_scale(points: Sequence[CostPoint]) -> float:
    """How much rougher than usual this method's cost is: a factor on the residual's sd.

    Empirical Bayes: the scale with the largest marginal likelihood, each doubling penalised by
    one nat. A cliff (a batch above the captured sizes) must not be smoothed away; with few points
    it cannot be told from a slope, so the usual roughness is kept.
    """
    import numpy as np

    if len(points) < MIN_POINTS_FOR_SCALE:
        return 1.0
    surprise, best, chosen = _surprise(points), -math.inf, 1.0
    for doublings, scale in enumerate(SCALES):
        covariance = _observed(points, scale)
        _, log_determinant = np.linalg.slogdet(covariance)
        fit = -0.5 * (float(surprise @ np.linalg.solve(covariance, surprise)) + log_determinant)
        if fit - doublings > best:
            best, chosen = fit - doublings, scale
    return chosen


def _surprise(points: Sequence[CostPoint]) -> NDArray[np.float64]:
    """Measured minus prior cost."""
    import numpy as np

    return np.array([p.cost - (INTERCEPT + SLOPE * p.n) for p in points])


def _observed(points: Sequence[CostPoint], scale: float) -> NDArray[np.float64]:
    """Prior covariance of the measured costs, their noise included."""
    import numpy as np

    known = [(p.n, p.concurrency) for p in points]
    noise = np.diag([(p.relative_sd * p.cost) ** 2 for p in points])
    result: NDArray[np.float64] = _covariance(known, known, scale) + noise
    return result


def _covariance(
    left: Sequence[tuple[int, int | None]],
    right: Sequence[tuple[int, int | None]],
    scale: float = 1.0,
) -> NDArray[np.float64]:
    """Prior covariance of c between two sets of (N, concurrency)."""
    import numpy as np

    n1 = np.array([[float(n)] for n, _ in left])
    n2 = np.array([[float(n) for n, _ in right]])
    load1 = np.array([[math.log2(c or 1)] for _, c in left])
    load2 = np.array([[math.log2(c or 1) for _, c in right]])
    level = (INTERCEPT + SLOPE * n1) * (INTERCEPT + SLOPE * n2)
    affine = INTERCEPT_SD**2 + SLOPE_SD**2 * n1 * n2
    smooth = SMOOTH_SD**2 * np.exp(-0.5 * ((n1 - n2) / SMOOTH_LENGTH) ** 2)
    alone = STEP_SD**2 * (n1 == n2)
    loads = np.exp(-0.5 * ((load1 - load2) / LOAD_LENGTH) ** 2)
    result: NDArray[np.float64] = loads * (affine + level * scale**2 * (smooth + alone))
    return result
