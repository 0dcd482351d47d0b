"""What is assumed about a drafting method before anything of it is measured.

The table `priors.toml` is learned from published sweeps (`learn`; a test keeps it current);
methods that no sweep covers have figures set by hand, marked there, and wider doubts. A prior
only decides where a search begins and how fast it believes: every answer is measured.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from pydantic import Field

from autotune.errors import ConfigurationError
from autotune.records import Prior, Record

if TYPE_CHECKING:
    from autotune.recording import Recording

HALFWAY = 2.0  # so many models of evidence count as much as the figures of all methods together


@functools.cache
def table() -> Mapping[str, Prior]:
    """Priors by method; "default" stands for methods that are not there."""
    text = (files("autotune") / "priors.toml").read_text(encoding="utf-8")
    return {name: Prior(**fields) for name, fields in tomllib.loads(text).items()}


def prior(method: str, known: Mapping[str, Prior] | None = None) -> Prior:
    """The prior of a method; a variant may begin with its family's name (`dflash_w4a16`)."""
    known = table() if known is None else known
    families = [name for name in known if method == name or method.startswith(f"{name}_")]
    return known[max(families, key=len)] if families else known["default"]


class Panel(Record):
    """One method on one model, workload and load, as a sweep found it."""

    method: str
    model: str
    conditional: tuple[tuple[int, tuple[float, ...]], ...]  # by N: acceptance given the one before
    costs: tuple[tuple[int, float], ...] = Field(min_length=1)  # by N: tau / speedup


def learn(recordings: Iterable[Recording]) -> dict[str, Prior]:
    """Priors of every method with published rates per position, and of "default".

    A figure is the mean over models (each model the mean of its panels), shrunk towards the mean
    of all methods, so that a method seen on one model does not count for certain.
    Raises ConfigurationError when no recording has such rates at three N of a method.
    """
    panels = [panel for recording in recordings for panel in _panels(recording)]
    if not panels:
        raise ConfigurationError(
            "no recording holds one method's acceptance rates for all positions at three N or more",
            hint="give `per_position_acceptance` with N rates at each N",
        )
    everything = _by_model(panels)
    centre = _mean_of(everything.values())
    found = {"default": centre}
    for method in sorted({panel.method for panel in panels}):
        own = _by_model([panel for panel in panels if panel.method == method])
        weight = HALFWAY / (HALFWAY + len(own))
        found[method] = {
            key: weight * centre[key] + (1 - weight) * value
            for key, value in _mean_of(own.values()).items()
        }
    return {method: _as_prior(values) for method, values in found.items()}


def _panels(recording: Recording) -> Iterable[Panel]:
    """Methods with rates for every position at three N or more, so that a line can be fitted."""
    from statistics import fmean

    for load in recording.concurrencies:
        base = fmean(
            b.output_tokens_per_second for b in recording.baseline if b.concurrency == load
        )
        for method in recording.methods:
            points = [
                p
                for p in recording.points
                if (p.method, p.concurrency) == (method, load)
                and len(p.per_position_acceptance or ()) == p.num_speculative_tokens
            ]
            if len({p.num_speculative_tokens for p in points}) >= 3:
                yield Panel(
                    method=method,
                    model=recording.model,
                    conditional=tuple(
                        (p.num_speculative_tokens, _conditional(p.per_position_acceptance or ()))
                        for p in points
                    ),
                    costs=tuple(
                        (
                            p.num_speculative_tokens,
                            (1 + math.fsum(p.per_position_acceptance or ()))
                            * base
                            / p.output_tokens_per_second,
                        )
                        for p in points
                    ),
                )


def _conditional(rates: Sequence[float]) -> tuple[float, ...]:
    return tuple(
        after / before for before, after in zip((1.0, *rates), rates, strict=False) if before > 0
    )


def _by_model(panels: Sequence[Panel]) -> dict[tuple[str, str], dict[str, float]]:
    """Mean figures by (method, model)."""
    keys = {(panel.method, panel.model) for panel in panels}
    return {
        key: _mean_of([_figures(p) for p in panels if (p.method, p.model) == key]) for key in keys
    }


def _mean_of(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    rows = list(rows)
    return {key: math.fsum(row[key] for row in rows) / len(rows) for key in rows[0]}


def _figures(panel: Panel) -> dict[str, float]:
    """First acceptance, its increments over positions, the carry, and the line of the cost."""
    import numpy as np

    longest = max(n for n, _ in panel.conditional)
    rows, values = [], []
    for _, ratios in panel.conditional:  # a_i(N) = alpha_i + carry * p_N, least squares
        whole = math.prod(ratios)
        for i, ratio in enumerate(ratios):
            rows.append([float(i == j) for j in range(longest)] + [whole])
            values.append(ratio)
    *alpha, carry = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0].tolist()
    steps = np.diff(alpha).tolist() + [0.0] * max(0, 4 - longest)
    lengths, costs = zip(*panel.costs, strict=True)
    slope, intercept = np.polyfit(np.array(lengths), np.array(costs), deg=1).tolist()
    return {
        "first": alpha[0],
        "second_step": steps[0],
        "third_step": steps[1],
        "later_step": math.fsum(steps[2:]) / len(steps[2:]),
        "carry": carry,
        "cost_intercept": intercept,
        "cost_slope": slope,
    }


def _as_prior(values: Mapping[str, float]) -> Prior:
    return Prior(**{key: round(value, 3) for key, value in values.items()})
