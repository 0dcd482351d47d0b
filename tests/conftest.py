"""What all test files share."""

import pytest

pytest.register_assert_rewrite("engine_contract")
