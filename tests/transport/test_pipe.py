"""A packet is whole or not there, whoever writes and reads; whoever waits is woken when there is something to do."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from stagepipe.transport import PACKET_BYTES, Bell, Waiter, make_byte_pipe, make_pipe, make_socket_pair


@pytest.fixture(params=[make_pipe, make_socket_pair])
def pipe(request):
    ends = request.param(16)
    yield ends
    ends.close()


def peer(role: str, fds: list[int], **about: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.transport.peer", role, json.dumps(about)]
    return subprocess.Popen(command, pass_fds=fds, stdout=subprocess.PIPE, text=True)


def fill(pipe, data=bytes(PACKET_BYTES)):
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe.write_fd, data)
            count += 1
    return count


def drain(pipe):
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            os.read(pipe.read_fd, PACKET_BYTES)
            count += 1
    return count


def test_with_many_writers_and_readers_every_packet_arrives_once_and_whole(pipe):
    bell = Bell()
    writers, readers, count = 3, 3, 3000
    fds = [pipe.read_fd, pipe.write_fd, bell.fd]
    begin = time.monotonic()
    taking = [peer("read", fds, read_fd=pipe.read_fd, bell_fd=bell.fd) for _ in range(readers)]
    giving = [peer("write", fds, write_fd=pipe.write_fd, number=number, count=count) for number in range(writers)]
    for process in giving:
        process.communicate(timeout=60)
        assert process.returncode == 0
    waiter = Waiter(pipe.write_fd, select.EPOLLOUT)
    for _ in range(readers):
        waiter.wait(10)
        os.write(pipe.write_fd, (0xFFFF).to_bytes(4, "little") * 2)
    waiter.close()
    found = [json.loads(process.communicate(timeout=60)[0]) for process in taking]
    seen = Counter(tuple(pair) for one in found for pair in one["seen"])
    assert seen == Counter((writer, number) for writer in range(writers) for number in range(count))
    assert sum(one["torn"] for one in found) == 0
    assert max(one["longest"] for one in found) < 4.5, "nobody slept through what there was to read"
    assert time.monotonic() - begin < 60
    bell.close()


def test_packets_keep_their_bounds_and_their_order(pipe):
    for size in (1, 4096, 7, 2000):
        os.write(pipe.write_fd, bytes([size % 251]) * size)
    assert [len(os.read(pipe.read_fd, 4096)) for _ in range(4)] == [1, 4096, 7, 2000]


def test_it_holds_what_it_says(pipe):
    assert pipe.capacity >= 16
    assert fill(pipe) >= pipe.capacity
    drain(pipe)
    assert fill(pipe) >= pipe.capacity


@pytest.mark.parametrize("packets", [1, 64, 256, 10_000])
def test_a_pipe_is_as_long_as_asked_where_the_kernel_lets_it(packets):
    ends = make_pipe(packets)
    try:
        assert fill(ends) == ends.capacity == min(max(packets, 16), 256)
    finally:
        ends.close()


def test_a_kernel_without_packet_pipes_gets_sockets(monkeypatch):
    def refused(flags):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "pipe2", refused)
    ends = make_pipe(16)
    with contextlib.closing(ends):
        os.write(ends.write_fd, b"one")
        os.write(ends.write_fd, b"two")
        assert os.read(ends.read_fd, 100) == b"one"


def test_a_full_byte_pipe_refuses_and_does_not_wait():
    read_fd, write_fd = make_byte_pipe()
    while select.select([], [write_fd], [], 0)[1]:
        os.write(write_fd, bytes(4096))
    with pytest.raises(BlockingIOError):
        os.write(write_fd, bytes(16))
    os.close(read_fd)
    os.close(write_fd)


def test_nothing_is_inherited_that_was_not_passed_on(pipe):
    assert not os.get_inheritable(pipe.read_fd)
    assert not os.get_inheritable(pipe.write_fd)


def test_closing_twice_is_harmless_and_leaves_no_descriptor():
    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    ends, bell = make_socket_pair(16), Bell()
    waiter = Waiter(ends.read_fd, select.EPOLLIN, bell)
    waiter.close()
    bell.close()
    ends.close()
    ends.close()
    assert descriptors() == before
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > before


# ---------------------------------------------------------------------------------------------- waits


def waits(count, fd, event, act):
    """How long each of some threads waited for a pipe end, until it could `act`; and the sum of all wake-ups."""
    took: list[float] = []

    def wait():
        waiter = Waiter(fd, event)
        begin = time.monotonic()
        while time.monotonic() - begin < 3:
            waiter.wait(3 - (time.monotonic() - begin))
            try:
                act()
            except BlockingIOError:
                continue
            break
        took.append(time.monotonic() - begin)
        waiter.close()

    threads = [threading.Thread(target=wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    return threads, took


def test_every_writer_is_woken_when_a_full_pipe_is_emptied(pipe):
    """The kernel tells of room once, at the first read: a writer that is not told then sleeps beside an empty pipe."""
    fill(pipe)
    threads, took = waits(4, pipe.write_fd, select.EPOLLOUT, lambda: os.write(pipe.write_fd, b"x"))
    drain(pipe)
    for thread in threads:
        thread.join()
    assert len(took) == 4
    assert max(took) < 1


def test_every_packet_wakes_a_reader(pipe):
    threads, took = waits(4, pipe.read_fd, select.EPOLLIN, lambda: os.read(pipe.read_fd, 10))
    for _ in range(4):
        os.write(pipe.write_fd, b"x")
    for thread in threads:
        thread.join()
    assert max(took) < 1


def test_a_wait_ends_at_its_deadline(pipe):
    waiter = Waiter(pipe.read_fd, select.EPOLLIN)
    begin = time.monotonic()
    waiter.wait(0.05)
    assert 0.045 < time.monotonic() - begin < 1
    waiter.close()


def test_a_bell_ends_a_wait_also_one_that_begins_later(pipe):
    bell = Bell()
    waiter = Waiter(pipe.read_fd, select.EPOLLIN, bell)
    for ring in (bell.ring, lambda: threading.Timer(0.05, bell.ring).start()):
        ring()
        begin = time.monotonic()
        waiter.wait(5)
        assert time.monotonic() - begin < 1
    begin = time.monotonic()
    waiter.wait(0.05)
    assert time.monotonic() - begin > 0.045, "a ring ends one wait, not the next as well"
    waiter.close()
    bell.close()


def test_a_bell_can_be_waited_for_alone():
    bell = Bell()
    begin = time.monotonic()
    bell.wait(0.05)
    assert time.monotonic() - begin > 0.045
    for _ in range(3):
        bell.ring()
    bell.wait(5)
    assert time.monotonic() - begin < 1
    bell.close()


def test_a_bell_rings_in_another_process(pipe):
    bell = Bell()
    code = f"from stagepipe.transport import Bell; Bell({bell.fd}).ring()"
    child = subprocess.Popen([sys.executable, "-c", code], pass_fds=[bell.fd])
    begin = time.monotonic()
    bell.wait(20)
    assert time.monotonic() - begin < 19
    assert child.wait(20) == 0
    bell.close()
