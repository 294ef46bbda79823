"""Hops as fixtures, closed at the end of each test."""

import pytest

from stagepipe.transport import TransportRule
from tests.support.transport.hops import TRANSFER_SETUPS, LoopbackHop, TwoHops


@pytest.fixture(params=TRANSFER_SETUPS)
def any_transfer(request):
    """A hop for each combination of policy and pipe."""
    loop = LoopbackHop(*TRANSFER_SETUPS[request.param])
    with loop.stack:
        yield loop


@pytest.fixture
def loop():
    """A hop that uses shared memory from 2 KiB up."""
    loop = LoopbackHop(TransportRule(threshold_bytes=2048))
    with loop.stack:
        yield loop


@pytest.fixture
def line():
    """Two hops that use shared memory from 2 KiB up."""
    line = TwoHops(TransportRule(threshold_bytes=2048))
    with line.stack:
        yield line
