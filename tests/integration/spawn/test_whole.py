"""The contract, recovery and chaos suites."""

import pytest

from tests.chaos.test_chaos import *  # noqa: F403 - pytest collects the tests and fixtures that it finds here
from tests.integration.test_engine_contract import *  # noqa: F403
from tests.integration.test_recovery import *  # noqa: F403

pytestmark = pytest.mark.slow
