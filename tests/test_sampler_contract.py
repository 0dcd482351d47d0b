"""Optuna's own tests for samplers, on ours: parameters that are not ours, one objective only."""

from __future__ import annotations

import optuna
import pytest
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)

from autotune.sampler import SpectuneSampler

SPACES = {"mtp": (1, 2, 3), "ngram": (2, 4)}

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


class TestDefault(BasicSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self):
        return lambda: SpectuneSampler(SPACES, seed=0)


class TestOverARelativeSampler(
    BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase
):
    """Samplers that choose several parameters together are passed on to."""

    @pytest.fixture
    def sampler(self):
        def make():
            together = optuna.samplers.TPESampler(n_startup_trials=0, multivariate=True, seed=0)
            return SpectuneSampler(SPACES, independent_sampler=together)

        return make
