"""Each peer delivers every byte, reports the cost of each message, and leaves nothing behind."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest

from stagepipe.bench.measuring import PeerBenchmark, check_received, make_random_bytes
from stagepipe.bench.result import PEER_MECHANISMS
from stagepipe.core import RunError
from tests.support.shared_memory import list_segments


@pytest.mark.parametrize("name", PEER_MECHANISMS)
def test_every_message_has_a_cost(name, monkeypatch):
    segments = []

    class RecordedSharedMemory(SharedMemory):
        def __init__(self, name):
            super().__init__(name)
            segments.append(self.name)

    monkeypatch.setattr("stagepipe.bench.measuring.SharedMemory", RecordedSharedMemory)
    with PeerBenchmark(name, 1 << 20) as peer:
        for nbytes in (64, 4096, 1 << 20):
            costs = peer.measure_costs_ns(nbytes, 2)
            assert len(costs) == 2
            assert min(costs) > 0
    assert len(segments) == (3 * 2 if name == "SharedMemory" else 0)
    assert not list_segments(*segments, "no segment")


@pytest.mark.parametrize("name", PEER_MECHANISMS)
def test_a_wrong_byte_is_detected(name):
    with PeerBenchmark(name, 4096) as peer:
        peer._expected = peer._expected.copy()
        peer._expected[-1] ^= 1
        peer.measure_costs_ns(64, 1)
        with pytest.raises(RunError, match=f"{name} delivered 1 of 4096 bytes wrong"):
            peer.measure_costs_ns(4096, 1)


def test_an_array_of_another_size_is_detected():
    with pytest.raises(RunError, match="of shape"):
        check_received("Pipe", {"data": np.zeros(3, np.uint8)}, np.zeros(4, np.uint8))


def test_a_dead_producer_is_named(monkeypatch):
    with PeerBenchmark("Queue", 64) as peer:
        peer.measure_costs_ns(64, 1)
        monkeypatch.setattr("stagepipe.bench.measuring.RESPONSE_TIMEOUT_S", 0.5)
        peer._producer.kill()
        peer._producer.join()
        with pytest.raises(RunError, match="multiprocessing's Queue"):
            peer.measure_costs_ns(64, 1)


def test_a_small_size_is_a_prefix_of_a_large_one():
    assert np.array_equal(make_random_bytes(100)[:64], make_random_bytes(64))
