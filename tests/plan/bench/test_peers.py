"""Each peer brings every byte, tells what a message cost, and leaves nothing behind."""

from pathlib import Path

import numpy as np
import pytest

from stagepipe.core import RunError
from stagepipe.plan.bench import PEERS
from stagepipe.plan.bench.peers import Peer, check, make_bytes


@pytest.mark.parametrize("name", PEERS)
def test_a_cost_for_every_message(name):
    before = set(Path("/dev/shm").glob("psm_*"))
    with Peer(name, 1 << 20) as peer:
        for nbytes in (64, 4096, 1 << 20):
            costs = peer.measure(nbytes, 2)
            assert len(costs) == 2
            assert min(costs) > 0
    assert set(Path("/dev/shm").glob("psm_*")) <= before


@pytest.mark.parametrize("name", PEERS)
def test_a_byte_that_is_wrong_is_noticed(name):
    with Peer(name, 4096) as peer:
        peer._expected = peer._expected.copy()
        peer._expected[-1] ^= 1
        peer.measure(64, 1)
        with pytest.raises(RunError, match=f"{name} delivered 1 of 4096 bytes wrong"):
            peer.measure(4096, 1)


def test_an_array_of_another_size_is_noticed():
    with pytest.raises(RunError, match="of shape"):
        check("Pipe", {"data": np.zeros(3, np.uint8)}, np.zeros(4, np.uint8))


def test_a_producer_that_died_is_named(monkeypatch):
    with Peer("Queue", 64) as peer:
        peer.measure(64, 1)
        monkeypatch.setattr("stagepipe.plan.bench.peers.DEADLINE_S", 0.5)
        peer._process.kill()
        peer._process.join()
        with pytest.raises(RunError, match="multiprocessing's Queue"):
            peer.measure(64, 1)


def test_a_small_size_is_the_beginning_of_a_large_one():
    assert np.array_equal(make_bytes(100)[:64], make_bytes(64))
