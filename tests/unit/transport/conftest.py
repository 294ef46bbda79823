"""Hops as fixtures, closed at the end of each test."""

import pytest

from stagepipe.transport import TransportRule, chunk, native, packet, pipe, receiver, sender
from tests.support.transport.hops import TRANSFER_SETUPS, LoopbackHop, TwoHops

_USE_FUNCTIONS = (
    "test_chunk",
    "test_damaged",
    "test_fragments",
    "test_held",
    "test_pipe",
    "test_receiver",
    "test_sender",
)


def pytest_generate_tests(metafunc):
    """The tests of both ends of a hop run twice."""
    if metafunc.module.__name__.rpartition(".")[2].startswith(_USE_FUNCTIONS):
        metafunc.fixturenames.append("functions")
        metafunc.parametrize("functions", ["C", "Python"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def functions(request):
    """Both ends of a hop with the functions of `native` in C or in Python."""
    if request.param == "C" and native.read_ready is None:
        pytest.skip("installed without a compiler")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "Python":
            patch.setattr(sender, "measure_plain", chunk.measure_plain)
            patch.setattr(sender, "pack_small", packet.pack_small)
            patch.setattr(receiver, "unpack", packet.unpack)
            patch.setattr(pipe, "read_ready", None)
        yield


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
