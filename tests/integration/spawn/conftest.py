"""The suites of this folder run as elsewhere, but every worker starts with an interpreter of its own."""

import pytest

from tests.support.pipelines import START_VARIABLE


@pytest.fixture(autouse=True, scope="module")
def _spawn():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(START_VARIABLE, "spawn")
        yield
