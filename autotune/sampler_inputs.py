"""What a SpectuneSampler is given: lengths by method, the baseline, prices; checked and typed."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence

from pydantic import ValidationError

from autotune.errors import SamplerError
from autotune.knowledge import Load
from autotune.priors import prior
from autotune.records import MethodSpace
from autotune.search import Prices

Spaces = Mapping[str, Sequence[int]] | Sequence[MethodSpace]


def as_spaces(spaces: Spaces) -> tuple[MethodSpace, ...]:
    """MethodSpace records, made from lengths by method where that is what was given.

    Raises SamplerError where there is no method, or one without lengths or with one below 1.
    """
    from autotune.methods import all_methods

    if not spaces:
        raise SamplerError("no method was given", hint='SpectuneSampler({"mtp": range(1, 9)})')
    if not isinstance(spaces, Mapping):
        for space in spaces:
            _lengths(space.method, space.lengths)
        return tuple(spaces)
    parallel = {method.name for method in all_methods() if method.parallel}
    return tuple(
        MethodSpace(
            method=name,
            lengths=_lengths(name, lengths),
            parallel=name in parallel,
            prior=prior(name),
        )
        for name, lengths in spaces.items()
    )


def _lengths(method: str, given: Iterable[int]) -> tuple[int, ...]:
    """The N of a method, ascending, each once."""
    try:
        lengths = sorted({operator.index(n) for n in given})
    except TypeError:  # not a series, or not of whole numbers
        lengths = []
    if not lengths or lengths[0] < 1:
        raise SamplerError(
            f"the lengths of {method} are {given!r}",
            hint='one or more whole numbers from 1 on: SpectuneSampler({"mtp": range(1, 9)})',
        )
    return tuple(lengths)


def as_prices(start_seconds: float, probe_seconds: float) -> Prices:
    try:
        return Prices(start_seconds=start_seconds, probe_seconds=probe_seconds)
    except ValidationError as error:
        raise SamplerError(
            f"start_seconds is {start_seconds!r} and probe_seconds is {probe_seconds!r}",
            hint="seconds: start_seconds 0 or more, probe_seconds above 0",
        ) from error


def by_load(
    baseline: float | Mapping[Load, float], concurrencies: Sequence[Load]
) -> dict[Load, float]:
    given = baseline if isinstance(baseline, Mapping) else dict.fromkeys(concurrencies, baseline)
    missing = [load for load in concurrencies if not given.get(load, 0.0) > 0]
    if missing or not concurrencies:
        raise SamplerError(
            f"no positive baseline at concurrency {', '.join(map(str, missing))}",
            hint="baseline={8: 2310.0, 32: 5400.0}, or one number for all loads",
        )
    return {load: float(given[load]) for load in concurrencies}
