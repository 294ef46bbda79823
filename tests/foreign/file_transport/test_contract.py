"""The transport of files keeps the contract of all transports."""

import gc
from pathlib import Path

import pytest

from stagepipe.transport import TransportRule, open_transports
from tests.foreign.file_transport import FileTransport
from tests.support.transport.hops import LoopbackHop, TwoHops
from tests.unit.transport.test_contract import *  # noqa: F403 - the suite, with the fixtures below
from tests.unit.transport.test_contract import np

TARGET = "tests.foreign.file_transport:FileTransport"
RULE = TransportRule(mode="file", threshold_bytes=2048)


@pytest.fixture(scope="module")
def folder():
    shared = FileTransport.prepare()
    yield shared
    FileTransport.remove(shared)


@pytest.fixture(scope="module")
def loop(folder):
    loop = LoopbackHop(RULE, transports=open_transports([(TARGET, folder)]))
    with loop.stack:
        yield loop


@pytest.fixture
def any_transfer(folder):
    loop = LoopbackHop(RULE, transports=open_transports([(TARGET, folder)]))
    with loop.stack:
        yield loop
        gc.collect()  # an item may be recursive
        loop.settle()


@pytest.fixture(autouse=True)
def no_file_is_left(folder, loop):
    yield
    loop.settle()
    assert not list(Path(folder).iterdir())


def test_a_buffer_is_handed_on_without_a_copy(folder):
    line = TwoHops(RULE, transports=open_transports([(TARGET, folder)]))
    with line.stack:
        box = [line.first.transfer({"a": np.arange(5000)})]
        [first] = Path(folder).iterdir()
        line.second.send_from(box)
        assert [path.name.split("-")[1] for path in Path(folder).iterdir()] == [first.name.split("-")[1]]
        arrived = line.second.receive()
        assert (arrived["a"] == np.arange(5000)).all()
        assert line.second.sender.counts.zero_copy_bytes == 40_000
        del arrived
        line.settle()
