"""Every packet arrives once and complete, and waits end when a pipe is ready."""

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

from stagepipe.transport import PipeWaiter, WakeEvent, make_byte_pipe, make_packet_pipe
from stagepipe.transport.packet import PACKET_BYTES
from stagepipe.transport.pipe import make_socket_pair

LONG_S = 20.0
"""How long a thread sleeps that nothing wakes. One that is woken takes half of it at most, on the busiest machine."""


@pytest.fixture(params=[make_packet_pipe, make_socket_pair])
def pipe(request):
    ends = request.param(16)
    yield ends
    ends.close()


def start_peer(role: str, fds: list[int], **settings: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.transport.peer", role, json.dumps(settings)]
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
    wake_event = WakeEvent()
    writer_count = reader_count = 3
    packet_count = 3000
    fds = [pipe.read_fd, pipe.write_fd, wake_event.fd]
    begin = time.monotonic()
    readers = [start_peer("read", fds, read_fd=pipe.read_fd, wake_event_fd=wake_event.fd) for _ in range(reader_count)]
    writers = [
        start_peer("write", fds, write_fd=pipe.write_fd, number=number, count=packet_count)
        for number in range(writer_count)
    ]
    for process in writers:
        process.communicate(timeout=60)
        assert process.returncode == 0
    waiter = PipeWaiter(pipe.write_fd, select.EPOLLOUT)
    for _ in range(reader_count):
        waiter.wait(10)
        os.write(pipe.write_fd, (0xFFFF).to_bytes(4, "little") * 2)
    waiter.close()
    results = [json.loads(process.communicate(timeout=60)[0]) for process in readers]
    seen = Counter(tuple(pair) for result in results for pair in result["seen"])
    assert seen == Counter((writer, number) for writer in range(writer_count) for number in range(packet_count))
    assert sum(result["torn_count"] for result in results) == 0
    assert max(result["longest_wait_s"] for result in results) < 4.5, "no reader slept while there was data"
    assert time.monotonic() - begin < 60
    wake_event.close()


def test_packets_keep_their_boundaries_and_their_order(pipe):
    for size in (1, 4096, 7, 2000):
        os.write(pipe.write_fd, bytes([size % 251]) * size)
    assert [len(os.read(pipe.read_fd, 4096)) for _ in range(4)] == [1, 4096, 7, 2000]


def test_a_pipe_holds_its_capacity(pipe):
    assert pipe.capacity_packets >= 16
    assert fill(pipe) >= pipe.capacity_packets
    drain(pipe)
    assert fill(pipe) >= pipe.capacity_packets


@pytest.mark.parametrize("packets", [1, 64, 256, 10_000])
def test_a_pipe_has_the_requested_capacity_within_the_limits(packets):
    ends = make_packet_pipe(packets)
    try:
        assert fill(ends) == ends.capacity_packets == min(max(packets, 16), 256)
    finally:
        ends.close()


def test_a_kernel_without_packet_pipes_gets_sockets(monkeypatch):
    def refuse(flags):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "pipe2", refuse)
    ends = make_packet_pipe(16)
    with contextlib.closing(ends):
        os.write(ends.write_fd, b"one")
        os.write(ends.write_fd, b"two")
        assert os.read(ends.read_fd, 100) == b"one"


def test_a_full_byte_pipe_raises_instead_of_waiting():
    read_fd, write_fd = make_byte_pipe()
    while select.select([], [write_fd], [], 0)[1]:
        os.write(write_fd, bytes(4096))
    with pytest.raises(BlockingIOError):
        os.write(write_fd, bytes(16))
    os.close(read_fd)
    os.close(write_fd)


def test_descriptors_are_not_inheritable(pipe):
    assert not os.get_inheritable(pipe.read_fd)
    assert not os.get_inheritable(pipe.write_fd)


def test_closing_twice_is_harmless_and_leaves_no_descriptor():
    def count_descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(5):  # threads of earlier tests may open and close some meanwhile
        before = count_descriptors()
        ends = make_socket_pair(16)
        wake_event = WakeEvent()
        waiter = PipeWaiter(ends.read_fd, select.EPOLLIN, wake_event)
        waiter.close()
        wake_event.close()
        ends.close()
        ends.close()
        if count_descriptors() == before:
            break
        time.sleep(0.2)
    assert count_descriptors() == before
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > before


# ---------------------------------------------------------------------------------------------- waits


def start_waits(count, fd, event, act):
    """Start threads that wait for a pipe end until `act` succeeds. Returns the threads and the list of their waits."""
    waits_s: list[float] = []

    def wait():
        waiter = PipeWaiter(fd, event)
        begin = time.monotonic()
        while time.monotonic() - begin < LONG_S:
            waiter.wait(LONG_S - (time.monotonic() - begin))
            try:
                act()
            except BlockingIOError:
                continue
            break
        waits_s.append(time.monotonic() - begin)
        waiter.close()

    threads = [threading.Thread(target=wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    return threads, waits_s


def test_every_writer_is_woken_when_a_full_pipe_is_emptied(pipe):
    """The kernel reports free space once, at the first read: a writer not woken then sleeps while the pipe is empty."""
    fill(pipe)
    threads, waits_s = start_waits(4, pipe.write_fd, select.EPOLLOUT, lambda: os.write(pipe.write_fd, b"x"))
    drain(pipe)
    for thread in threads:
        thread.join()
    assert len(waits_s) == 4
    assert max(waits_s) < LONG_S / 2


def test_every_packet_wakes_a_reader(pipe):
    threads, waits_s = start_waits(4, pipe.read_fd, select.EPOLLIN, lambda: os.read(pipe.read_fd, 10))
    for _ in range(4):
        os.write(pipe.write_fd, b"x")
    for thread in threads:
        thread.join()
    assert max(waits_s) < LONG_S / 2


def test_a_wait_ends_at_its_deadline(pipe):
    waiter = PipeWaiter(pipe.read_fd, select.EPOLLIN)
    begin = time.monotonic()
    waiter.wait(0.05)
    assert 0.045 < time.monotonic() - begin < LONG_S / 2
    waiter.close()


def test_a_wake_event_ends_the_current_or_the_next_wait(pipe):
    wake_event = WakeEvent()
    waiter = PipeWaiter(pipe.read_fd, select.EPOLLIN, wake_event)
    for set_event in (wake_event.set, lambda: threading.Timer(0.05, wake_event.set).start()):
        set_event()
        begin = time.monotonic()
        waiter.wait(LONG_S)
        assert time.monotonic() - begin < LONG_S / 2
    begin = time.monotonic()
    waiter.wait(0.05)
    assert time.monotonic() - begin > 0.045, "a set event ends one wait only"
    waiter.close()
    wake_event.close()


def test_a_process_can_wait_for_a_wake_event_without_a_pipe():
    wake_event = WakeEvent()
    begin = time.monotonic()
    wake_event.wait(0.05)
    assert time.monotonic() - begin > 0.045
    for _ in range(3):
        wake_event.set()
    wake_event.wait(LONG_S)
    assert time.monotonic() - begin < LONG_S / 2
    wake_event.close()


def test_a_wake_event_can_be_set_from_another_process(pipe):
    wake_event = WakeEvent()
    code = f"from stagepipe.transport import WakeEvent; WakeEvent({wake_event.fd}).set()"
    child = subprocess.Popen([sys.executable, "-c", code], pass_fds=[wake_event.fd])
    begin = time.monotonic()
    wake_event.wait(20)
    assert time.monotonic() - begin < 19
    assert child.wait(20) == 0
    wake_event.close()
