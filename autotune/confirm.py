"""Confirmation: the finalist on a fresh static start, on prompts the search never saw.

The winner of a noisy search is optimistic (winner's curse), so its final figure must not come
from the windows that chose it. The baseline's figures on the same prompts were taken during its
own start; a reference block tells whether the machine has drifted since, and only then the
baseline is started once more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from autotune import stats
from autotune.errors import EngineError, UnusableMeasurementError
from autotune.knowledge import Key, Knowledge, Load
from autotune.measure import Lab
from autotune.records import (
    Arm,
    BlockRole,
    Confirmation,
    GreedyCheck,
    Window,
)

MAX_REFERENCES = 3
SUSPICIOUS_Z, DRIFT_Z = 2.0, 3.0  # in standard deviations of the noise
MAX_FINALISTS = 3  # finalists that may fail on their static start before the search gives up


def choose(knowledge: Knowledge) -> Key | None:
    """The measured candidate to recommend over all loads; None when not speculating is as good.

    Within the tie margin of the best the smallest N wins.
    """
    scored = {
        key: knowledge.score(*key)[0] for key in knowledge.candidates() if knowledge.measured(*key)
    }
    best = max(scored.values(), default=0.0)
    margin = tie_margin(knowledge)
    if best <= margin:
        return None
    tied = [key for key, score in scored.items() if score >= best - margin]
    return min(tied, key=lambda key: (key[1], -scored[key]))


def tie_margin(knowledge: Knowledge) -> float:
    """ln(1 + margin): the plan's, or the standard error of the search if that is larger."""
    settings = knowledge.plan.settings
    asked = math.log1p(settings.tie_margin)
    if not settings.repeats:
        return asked  # there is no uncertainty of our own to speak of
    windows = settings.search_blocks * len(knowledge.plan.concurrencies)
    return max(asked, knowledge.noise / math.sqrt(windows))


def confirm(lab: Lab, knowledge: Knowledge) -> Confirmation | None:
    """Confirm the chosen candidate; one that fails is given up and the next one is tried."""
    for _ in range(MAX_FINALISTS):
        chosen = choose(knowledge)
        if chosen is None:
            return None
        method, n = chosen
        try:
            measured = _measure(lab, knowledge, method, n)
        except EngineError as error:
            lab.progress(f"{method} N={n} failed its confirmation: {error.message}")
            lab.study.fail(method, n, error.message, error.last_words)
            knowledge.fail(method, n, error.message)
        else:
            return _compare(lab, knowledge, measured)
    return None


class Measured(NamedTuple):
    """The finalist's side of the comparison."""

    method: str
    n: int
    windows: dict[Load, tuple[Window, ...]]
    drift: dict[Load, float]
    greedy: GreedyCheck | None


def _measure(lab: Lab, knowledge: Knowledge, method: str, n: int) -> Measured:
    """Run the finalist on its own start; raises EngineError when it cannot do it."""
    arm, settings = lab.confirm_arm(knowledge.spaces[method], n), lab.plan.settings
    lab.progress(f"confirming {method} N={n} on a fresh start")
    drift = _drifts(lab, knowledge, arm, n) if settings.repeats else {}
    greedy = _greedy_check(lab, arm, n) if settings.greedy_prompts else None
    return Measured(method, n, _held_out(lab, arm, n), drift, greedy)


def _compare(lab: Lab, knowledge: Knowledge, finalist: Measured) -> Confirmation:
    """Set it against the baseline; an EngineError here is the baseline's, not the finalist's."""
    generation = int(_drifted(lab, knowledge, finalist.drift))
    if generation:
        lab.progress("the machine has drifted: measuring the baseline once more")
    base = _held_out(lab, lab.baseline_arm(generation), 0)
    windows = finalist.windows
    return Confirmation(
        method=finalist.method,
        num_speculative_tokens=finalist.n,
        log_ratios={load: _log_ratios(windows[load], base[load]) for load in windows},
        windows=windows,
        drift=finalist.drift,
        baseline_generation=generation,
        greedy=finalist.greedy,
    )


def _held_out(lab: Lab, arm: Arm, n: int) -> dict[Load, tuple[Window, ...]]:
    blocks, loads = range(lab.plan.settings.confirm_blocks), lab.plan.concurrencies
    taken: dict[Load, list[Window]] = {load: [] for load in loads}
    for index in blocks:
        for load in loads:
            taken[load].append(lab.window(arm, n, BlockRole.CONFIRM, index, load))
    return {load: tuple(windows) for load, windows in taken.items()}


def _log_ratios(ours: tuple[Window, ...], base: tuple[Window, ...]) -> tuple[float, ...]:
    return tuple(
        math.log(a.output_tokens_per_second / b.output_tokens_per_second)
        for a, b in zip(ours, base, strict=True)
    )


def _drift(lab: Lab, knowledge: Knowledge, arm: Arm, n: int, load: Load, references: int) -> float:
    """ln(reference block now / the same prompts when the candidate was probed).

    `now` is the mean of the first `references` windows.
    """
    now = [lab.window(arm, n, BlockRole.REFERENCE, i, load) for i in range(references)]
    then = knowledge.windows(arm.method, n, load)[0]
    rates = [math.log(window.output_tokens_per_second) for window in now]
    return stats.mean(rates) - math.log(then.output_tokens_per_second)


def _drifts(lab: Lab, knowledge: Knowledge, arm: Arm, n: int) -> dict[Load, float]:
    """Drift by load. A suspicious one is looked at again: a window costs less than a start."""
    loads, drift = lab.plan.concurrencies, dict[Load, float]()
    for references in range(1, MAX_REFERENCES + 1):
        drift = {load: _drift(lab, knowledge, arm, n, load, references) for load in loads}
        if not _drifted(lab, knowledge, drift, SUSPICIOUS_Z):
            break
    return drift


def _drifted(lab: Lab, knowledge: Knowledge, drift: dict[Load, float], z: float = DRIFT_Z) -> bool:
    """Whether the references moved by more than the margin and more than noise explains."""
    if not drift:
        return False
    moved = abs(stats.mean(list(drift.values())))
    noise = z * knowledge.noise * math.sqrt(2 / len(drift))
    return moved > max(lab.plan.settings.drift_margin, noise)


def _greedy_check(lab: Lab, arm: Arm, n: int) -> GreedyCheck:
    """Compare outputs at batch 1; raises UnusableMeasurementError for degenerate output."""
    ours = lab.window(arm, n, BlockRole.GREEDY, 0, 1)
    base = lab.window(lab.baseline_arm(), 0, BlockRole.GREEDY, 0, 1)
    if "degenerate_output" in ours.flags and "degenerate_output" not in base.flags:
        raise UnusableMeasurementError(
            f"{arm.method} N={n} repeats itself where the baseline does not: broken output"
        )
    differences = [
        f"{a.prompt_id} at character {_first_difference(a.text or '', b.text or '')}"
        for a, b in zip(ours.requests, base.requests, strict=True)
        if a.text != b.text
    ]
    return GreedyCheck(
        compared=len(ours.requests),
        equal=len(ours.requests) - len(differences),
        first_difference=differences[0] if differences else None,
    )


def _first_difference(left: str, right: str) -> int:
    same = (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
    return next(same, min(len(left), len(right)))
