"""Across real processes: every kind of object comes back equal, without needless copies and without leaks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from stagepipe.timing import RECEIVE_PHASES, SEND_PHASES
from stagepipe.transport import (
    Arena,
    Receiver,
    Sender,
    SharedMemoryPool,
    TransportRule,
    WakeEvent,
    make_arena_fd,
    make_byte_pipe,
    make_packet_pipe,
)
from tests.support.transport.payloads import PAYLOADS, is_equal
from tests.support.transport.peer import recorder

LIMIT_BYTES = 256 << 20


class Peers:
    """This process (number 0), and others that read from one pipe and write to another."""

    def __init__(self, count: int = 1) -> None:
        self.arena_fds = {number: make_arena_fd(LIMIT_BYTES) for number in range(count + 1)}
        self.release_pipes = {number: make_byte_pipe() for number in self.arena_fds}
        self.out = make_packet_pipe(64)
        self.back = make_packet_pipe(64)
        arena = Arena(0, self.arena_fds[0], LIMIT_BYTES)
        self.memory = SharedMemoryPool(arena, self.arena_fds, self._release_fds(0))
        self.wake_event = WakeEvent()
        policy = TransportRule(threshold_bytes=2048)
        self.sender = Sender(self.out.write_fd, self.memory, policy, self.wake_event, bool, recorder(len(SEND_PHASES)))
        self.receiver = Receiver(self.back.read_fd, self.memory, self.wake_event, bool, recorder(len(RECEIVE_PHASES)))

    def _release_fds(self, own: int) -> dict[int, int]:
        return {number: ends[0] if number == own else ends[1] for number, ends in self.release_pipes.items()}

    def start(self, role: str, number: int = 1) -> subprocess.Popen[str]:
        fds = [*self.arena_fds.values(), *(fd for ends in self.release_pipes.values() for fd in ends)]
        fds += [self.out.read_fd, self.back.write_fd]
        settings = {"number": number, "arena_fds": self.arena_fds, "release_pipes": self.release_pipes}
        settings |= {"limit_bytes": LIMIT_BYTES, "read_fd": self.out.read_fd, "write_fd": self.back.write_fd}
        command = [sys.executable, "-m", "tests.support.transport.peer", role, json.dumps(settings)]
        return subprocess.Popen(command, pass_fds=fds, stdout=subprocess.PIPE, text=True)

    def send(self, item, key=(0,)):
        assert self.sender.send([item], 1, key, 1, b"")

    def live_bytes(self):
        self.memory.flush_releases()
        self.memory.collect_releases()
        return self.memory.arena.allocator.live_bytes

    def close(self):
        self.sender.close()
        self.receiver.close()
        self.wake_event.close()
        self.out.close()
        self.back.close()
        for fd in (*self.arena_fds.values(), *(fd for ends in self.release_pipes.values() for fd in ends)):
            os.close(fd)


@pytest.fixture
def peers():
    peers = Peers(3)
    with contextlib.closing(peers):
        yield peers


@pytest.mark.filterwarnings(
    "ignore:TypedStorage is deprecated:UserWarning",
    "ignore:torch.quantize_per_tensor:UserWarning",
    "ignore:Sparse C:UserWarning",
    "ignore:ComplexHalf support:UserWarning",
)
def test_every_kind_of_object_comes_back_equal_from_another_process(peers):
    child = peers.start("echo")
    unequal = []
    for name, make in PAYLOADS.items():
        item = make()
        peers.send({"item": item})
        received = peers.receiver.receive(1, 30)
        if not is_equal(received.value["item"], item):
            unequal.append(name)
        del received
    peers.send(None)
    result = json.loads(child.communicate(timeout=60)[0])
    assert unequal == []
    assert result["zero_copy"] > result["copied"], "forwarded items are not copied"
    assert peers.live_bytes() == 0


def test_memory_stays_flat_over_many_items_of_many_sizes(peers):
    children = [peers.start("take", number) for number in (1, 2)]
    rng = np.random.default_rng(0)
    resident_bytes = []
    for number in range(1500):
        array = np.full(int(rng.integers(3000, 300_000)), number % 200, np.uint8)
        peers.send(array, (number,))
        while peers.memory.arena.allocator.live_bytes > 8 << 20:
            time.sleep(0.001)
            peers.memory.collect_releases()
        resident_bytes.append(os.fstat(peers.arena_fds[0]).st_blocks * 512)
    for _ in children:
        peers.send(None)
    sums = [pair for child in children for pair in json.loads(child.communicate(timeout=60)[0])["sums"]]
    assert sorted(number for number, _ in sums) == list(range(1500))
    assert all(total % (number % 200 or 1) == 0 for number, total in sums)
    assert peers.live_bytes() == 0
    assert resident_bytes[-1] < 40 << 20


def test_idle_readers_of_a_pipe_share_its_items(peers):
    children = [peers.start("take", number) for number in (1, 2, 3)]
    time.sleep(1.5)  # all of them wait by now
    for number in range(300):
        peers.send(np.full(10_000, 1, np.uint8), (number,))
        time.sleep(0.0005)
    for _ in children:
        peers.send(None)
    sums = [json.loads(child.communicate(timeout=60)[0])["sums"] for child in children]
    assert sum(map(len, sums)) == 300
    assert {total for child_sums in sums for _, total in child_sums} == {10_000}
    assert peers.live_bytes() == 0


def test_a_killed_reader_loses_only_what_it_held(peers):
    victim = peers.start("take", 1)
    for number in range(40):
        peers.send(np.full(10_000, 1, np.uint8), (number,))
    time.sleep(1.0)
    victim.send_signal(signal.SIGKILL)
    victim.wait(10)
    victim.stdout.close()
    child = peers.start("take", 2)
    for number in range(40, 80):
        peers.send(np.full(10_000, 1, np.uint8), (number,))
    peers.send(None)
    sums = json.loads(child.communicate(timeout=60)[0])["sums"]
    assert {number for number, _ in sums} >= set(range(40, 80))
    assert {total for _, total in sums} == {10_000}
    assert peers.live_bytes() <= 4 * 10_240, "at most what the killed reader held"
