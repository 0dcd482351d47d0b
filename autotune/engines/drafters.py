"""Simulated drafters: how often they are right and what they cost."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from autotune.engines.roofline import Machine, NotNegative, drafter_seconds
from autotune.records import BASELINE, Record

Rate = Annotated[float, Field(ge=0, le=1)]


class Acceptance(Record):
    """Unconditional rates per position: explicit `rates`, or first * decay^(i-1).

    `drift` is how the rates fall with N, because long rounds leave the hard places for the next
    round's start: p_i(N) = p_i exp(-drift (N - 1)), at most 1. Negative: they rise.
    """

    rates: tuple[Rate, ...] | None = Field(default=None, min_length=1)
    first: Rate | None = None
    decay: Rate | None = None
    drift: float = Field(default=0.0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _one_form(self) -> Acceptance:
        geometric = self.first is not None and self.decay is not None
        if geometric == (self.rates is not None) or (self.first is None) != (self.decay is None):
            raise ValueError("acceptance needs either `rates`, or `first` and `decay`")
        if any(later > earlier for earlier, later in pairwise(self.rates or ())):
            raise ValueError("a later position cannot be accepted more often than an earlier one")
        return self

    def at(self, n: int) -> tuple[float, ...]:
        """The n rates in force when n tokens are drafted."""
        rates = self.rates
        if rates is None:
            first, decay = self.first or 0.0, self.decay or 0.0
            rates = tuple(first * decay**i for i in range(n))
        return tuple(min(1.0, rate * math.exp(-self.drift * (n - 1))) for rate in rates[:n])


class Drafting(Record):
    """Cost of drafting. Sequential: N passes over one token a request. Parallel: one over N + 1.

    `launch_seconds` is paid once a pass whatever its size, `request_seconds` once a pass and
    request (drafters on the CPU, such as n-gram lookup, have nothing else).
    """

    style: Literal["sequential", "parallel"]
    parameters_billion: NotNegative = 0.0
    launch_seconds: NotNegative = 0.0
    request_seconds: NotNegative = 0.0

    def seconds(self, machine: Machine, n: int, requests: int) -> float:
        """Seconds to draft n tokens for each request. N=0 is not free: one pass still runs."""
        passes, tokens = (1, n + 1) if self.style == "parallel" else (max(n, 1), 1)
        one = drafter_seconds(self.parameters_billion, machine, requests * tokens)
        return passes * (one + self.launch_seconds + self.request_seconds * requests)


class SimulatedMethod(Record):
    method: str = Field(min_length=1)
    lengths: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    live_n: bool = True
    acceptance: Acceptance
    drafting: Drafting

    @model_validator(mode="after")
    def _consistent(self) -> SimulatedMethod:
        if self.method == BASELINE:
            raise ValueError(f"{BASELINE!r} is the baseline, not a method")
        if list(self.lengths) != sorted(set(self.lengths)):
            raise ValueError("lengths must ascend")
        rates = self.acceptance.rates
        if rates is not None and len(rates) < self.lengths[-1]:
            raise ValueError(f"{len(rates)} rates for up to {self.lengths[-1]} drafted tokens")
        return self
