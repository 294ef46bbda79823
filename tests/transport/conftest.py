"""The hops of `tests.transport.loop` as fixtures, closed at the end of each test."""

import pytest

from stagepipe.transport import Policy
from tests.transport.loop import WAYS, Line, Loop


@pytest.fixture(params=WAYS)
def any_way(request):
    """A loop in each way that a hop can carry items."""
    loop = Loop(*WAYS[request.param])
    with loop.stack:
        yield loop


@pytest.fixture
def loop():
    """A loop in shared memory from 2 KiB on."""
    made = Loop(Policy(2048))
    with made.stack:
        yield made


@pytest.fixture
def line():
    """Two hops in shared memory from 2 KiB on."""
    made = Line(Policy(2048))
    with made.stack:
        yield made
