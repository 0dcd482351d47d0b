"""What all test files share."""

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("engine_contract")
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
