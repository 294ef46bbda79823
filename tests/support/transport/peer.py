"""The other process of a test: `python -m tests.support.transport.peer ROLE JSON`, with inherited descriptors."""

from __future__ import annotations

import json
import os
import select
import sys
import time

import numpy as np

from stagepipe.timing import HISTOGRAM_WORDS, RECEIVE_PHASES, SEND_PHASES, DurationRecorder
from stagepipe.transport import Arena, PipeWaiter, Receiver, Sender, SharedMemoryPool, TransportRule, WakeEvent


def print_result(result: dict) -> None:
    """Print the result as JSON, for the test."""
    sys.stdout.write(json.dumps(result))


def recorder(columns: int) -> DurationRecorder:
    return DurationRecorder(np.zeros(columns * HISTOGRAM_WORDS, np.uint64), columns)


def write(settings: dict) -> None:
    """Write `count` packets as fast as the pipe takes them. The packet's number determines its length."""
    waiter = PipeWaiter(settings["write_fd"], select.EPOLLOUT)
    for number in range(settings["count"]):
        filler = bytes([settings["number"] % 256]) * (number * 37 % 4000)
        packet = settings["number"].to_bytes(4, "little") + number.to_bytes(4, "little") + filler
        while True:
            try:
                os.write(settings["write_fd"], packet)
            except BlockingIOError:
                waiter.wait(5)
            else:
                break


def read(settings: dict) -> None:
    """Read packets until the end marker. Print the writer and number of each, the torn packets and the longest wait."""
    wake_event = WakeEvent(settings["wake_event_fd"])
    waiter = PipeWaiter(settings["read_fd"], select.EPOLLIN)
    seen = []
    torn_count = 0
    longest_wait_s = 0.0
    while True:
        try:
            data = os.read(settings["read_fd"], 5000)
        except BlockingIOError:
            begin = time.monotonic()
            waiter.wait(5)
            if seen:  # before the first packet the writers are still starting
                longest_wait_s = max(longest_wait_s, time.monotonic() - begin)
            continue
        writer, number = int.from_bytes(data[:4], "little"), int.from_bytes(data[4:8], "little")
        if writer == 0xFFFF:
            break
        seen.append((writer, number))
        torn_count += data[8:] != bytes([writer % 256]) * (number * 37 % 4000)
        wake_event.set()
    print_result({"seen": seen, "torn_count": torn_count, "longest_wait_s": longest_wait_s})


def make_pool(settings: dict) -> SharedMemoryPool:
    """The pool of process `number`: its own arena, and those of the others."""
    own = settings["number"]
    arena_fds = {int(number): fd for number, fd in settings["arena_fds"].items()}
    release_fds = {int(number): ends[int(number) != own] for number, ends in settings["release_pipes"].items()}
    return SharedMemoryPool(Arena(own, arena_fds[own], settings["limit_bytes"]), arena_fds, release_fds)


def echo(settings: dict) -> None:
    """Send back every item received, until the item is None."""
    pool = make_pool(settings)
    wake_event = WakeEvent()
    receiver = Receiver(settings["read_fd"], pool, wake_event, bool, recorder(len(RECEIVE_PHASES)))
    rule = TransportRule(threshold_bytes=2048)
    sender = Sender(settings["write_fd"], pool, rule, wake_event, bool, recorder(len(SEND_PHASES)))
    while True:
        received = receiver.receive(1, 20)
        if received is None or received.value is None:
            break
        item_box = [received.value]
        received.value = None
        sender.send(item_box, 1, received.key, 1, b"")
    pool.flush_releases()
    print_result({"copied": sender.counts.copied_bytes, "zero_copy": sender.counts.zero_copy_bytes})


def take(settings: dict) -> None:
    """Receive items until the item is None, and print their sums. Holds the last three for a while, as a stage does."""
    pool = make_pool(settings)
    wake_event = WakeEvent()
    receiver = Receiver(settings["read_fd"], pool, wake_event, bool, recorder(len(RECEIVE_PHASES)))
    sums = []
    kept = []
    while True:
        received = receiver.receive(1, 20)
        if received is None or received.value is None:
            break
        sums.append([received.key[0], int(received.value.sum())])
        kept.append(received.value)
        del received, kept[:-3]
    kept.clear()
    pool.flush_releases()
    print_result({"sums": sums})


if __name__ == "__main__":
    {"write": write, "read": read, "echo": echo, "take": take}[sys.argv[1]](json.loads(sys.argv[2]))
