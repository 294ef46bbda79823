"""Across real processes: every kind of object comes back equal, nothing is copied that need not be, nothing leaks."""

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

from stagepipe.transport import Arena, Bell, Memory, Policy, Receiver, Sender, make_arena, make_byte_pipe, make_pipe
from tests.transport.peer import recorder
from tests.transport.things import THINGS, same

LIMIT = 256 << 20


class Peers:
    """This process (number 0) and others, which read from one pipe and write to another."""

    def __init__(self, count: int = 1) -> None:
        self.arenas = {number: make_arena(LIMIT) for number in range(count + 1)}
        self.returns = {number: make_byte_pipe() for number in self.arenas}
        self.out, self.back = make_pipe(64), make_pipe(64)
        self.memory = Memory(Arena(0, self.arenas[0], LIMIT), self.arenas, self._returns_for(0))
        self.bell = Bell()
        self.sender = Sender(self.out.write_fd, self.memory, Policy(2048), self.bell, bool, recorder())
        self.receiver = Receiver(self.back.read_fd, self.memory, self.bell, bool, recorder())

    def _returns_for(self, own: int) -> dict[int, int]:
        return {number: ends[0] if number == own else ends[1] for number, ends in self.returns.items()}

    def start(self, role: str, number: int = 1) -> subprocess.Popen[str]:
        fds = [*self.arenas.values(), *(fd for ends in self.returns.values() for fd in ends)]
        fds += [self.out.read_fd, self.back.write_fd]
        about = {"number": number, "arenas": self.arenas, "returns": self.returns, "limit": LIMIT}
        about |= {"read_fd": self.out.read_fd, "write_fd": self.back.write_fd}
        command = [sys.executable, "-m", "tests.transport.peer", role, json.dumps(about)]
        return subprocess.Popen(command, pass_fds=fds, stdout=subprocess.PIPE, text=True)

    def send(self, item, key=(0,)):
        assert self.sender.send([item], 1, key, 1, b"")

    def live(self):
        self.memory.flush()
        self.memory.collect()
        return self.memory.arena.allocator.live

    def close(self):
        self.sender.close()
        self.receiver.close()
        self.bell.close()
        self.out.close()
        self.back.close()
        for fd in (*self.arenas.values(), *(fd for ends in self.returns.values() for fd in ends)):
            os.close(fd)


@pytest.fixture
def peers():
    made = Peers(3)
    with contextlib.closing(made):
        yield made


@pytest.mark.filterwarnings(
    "ignore:TypedStorage is deprecated:UserWarning",
    "ignore:torch.quantize_per_tensor:UserWarning",
    "ignore:Sparse C:UserWarning",
    "ignore:ComplexHalf support:UserWarning",
)
def test_every_kind_of_object_comes_back_equal_from_another_process(peers):
    child = peers.start("echo")
    wrong = []
    for name, make in THINGS.items():
        item = make()
        peers.send({"item": item})
        received = peers.receiver.receive(1, 30)
        if not same(received.value["item"], item):
            wrong.append(name)
        del received
    peers.send(None)
    said = json.loads(child.communicate(timeout=60)[0])
    assert wrong == []
    assert said["zero_copy"] > said["copied"], "what a stage passes on is described"
    assert peers.live() == 0


def test_memory_stays_flat_over_many_items_of_many_sizes(peers):
    children = [peers.start("take", number) for number in (1, 2)]
    rng = np.random.default_rng(0)
    resident = []
    for number in range(1500):
        array = np.full(int(rng.integers(3000, 300_000)), number % 200, np.uint8)
        peers.send(array, (number,))
        while peers.memory.arena.allocator.live > 8 << 20:
            time.sleep(0.001)
            peers.memory.collect()
        resident.append(os.fstat(peers.arenas[0]).st_blocks * 512)
    for _ in children:
        peers.send(None)
    sums = [pair for child in children for pair in json.loads(child.communicate(timeout=60)[0])["sums"]]
    assert sorted(number for number, _ in sums) == list(range(1500))
    assert all(total % (number % 200 or 1) == 0 for number, total in sums)
    assert peers.live() == 0
    assert resident[-1] < 40 << 20


def test_readers_that_sleep_on_one_pipe_share_its_items(peers):
    children = [peers.start("take", number) for number in (1, 2, 3)]
    time.sleep(1.5)  # all of them sleep by now
    for number in range(300):
        peers.send(np.full(10_000, 1, np.uint8), (number,))
        time.sleep(0.0005)
    for _ in children:
        peers.send(None)
    sums = [json.loads(child.communicate(timeout=60)[0])["sums"] for child in children]
    assert sum(map(len, sums)) == 300
    assert {total for some in sums for _, total in some} == {10_000}
    assert peers.live() == 0


def test_a_reader_that_is_killed_disturbs_nobody_but_what_it_held(peers):
    victim, child = peers.start("take", 1), None
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
    assert peers.live() <= 4 * 10_240, "at most what the dead one held"
