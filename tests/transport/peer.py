"""The other process of a test: `python -m tests.transport.peer ROLE JSON`, with descriptors that were inherited."""

from __future__ import annotations

import json
import os
import select
import sys
import time

import numpy as np

from stagepipe.timing import WORDS, Recorder
from stagepipe.transport import Arena, Bell, Memory, Policy, Receiver, Sender, Waiter


def say(answer: dict) -> None:
    """The answer, to whoever started this process."""
    sys.stdout.write(json.dumps(answer))


def recorder() -> Recorder:
    return Recorder(np.zeros(4 * WORDS, np.uint64), 4)


def write(about: dict) -> None:
    """Write `count` packets of its own, each as long as its number says, as fast as the pipe takes them."""
    waiter = Waiter(about["write_fd"], select.EPOLLOUT)
    for number in range(about["count"]):
        filler = bytes([about["number"] % 256]) * (number * 37 % 4000)
        packet = about["number"].to_bytes(4, "little") + number.to_bytes(4, "little") + filler
        while True:
            try:
                os.write(about["write_fd"], packet)
            except BlockingIOError:
                waiter.wait(5)
            else:
                break


def read(about: dict) -> None:
    """Read until told to stop by an empty record; print who wrote what, and whether any packet was torn."""
    waiter, bell = None, Bell(about["bell_fd"])
    waiter = Waiter(about["read_fd"], select.EPOLLIN)
    seen, torn, longest = [], 0, 0.0
    while True:
        try:
            data = os.read(about["read_fd"], 5000)
        except BlockingIOError:
            begin = time.monotonic()
            waiter.wait(5)
            if seen:  # before the first packet the writers are still starting
                longest = max(longest, time.monotonic() - begin)
            continue
        writer, number = int.from_bytes(data[:4], "little"), int.from_bytes(data[4:8], "little")
        if writer == 0xFFFF:
            break
        seen.append((writer, number))
        torn += data[8:] != bytes([writer % 256]) * (number * 37 % 4000)
        bell.ring()
    say({"seen": seen, "torn": torn, "longest": longest})


def memory_of(about: dict) -> Memory:
    """Process `number` of the two: its own arena, and the other's."""
    own = about["number"]
    arenas = {int(n): fd for n, fd in about["arenas"].items()}
    returns = {int(n): ends[0] if int(n) == own else ends[1] for n, ends in about["returns"].items()}
    return Memory(Arena(own, arenas[own], about["limit"]), arenas, returns)


def echo(about: dict) -> None:
    """Send back what comes in, until None comes; with `copy`, an equal item of its own memory."""
    memory, bell = memory_of(about), Bell()
    receiver = Receiver(about["read_fd"], memory, bell, bool, recorder())
    sender = Sender(about["write_fd"], memory, Policy(2048), bell, bool, recorder())
    while True:
        received = receiver.receive(1, 20)
        if received is None or received.value is None:
            break
        box, received.value = [received.value], None
        key = received.key
        sender.send(box, 1, key, 1, b"")
    memory.flush()
    say({"copied": sender.counts.copied_bytes, "zero_copy": sender.counts.zero_copy_bytes})


def take(about: dict) -> None:
    """Receive `count` items and say their sums; hold the last ones a while, as a stage does."""
    memory, bell = memory_of(about), Bell()
    receiver = Receiver(about["read_fd"], memory, bell, bool, recorder())
    sums, kept = [], []
    while True:
        received = receiver.receive(1, 20)
        if received is None or received.value is None:
            break
        sums.append([received.key[0], int(received.value.sum())])
        kept.append(received.value)
        del received, kept[:-3]
    kept.clear()
    memory.flush()
    say({"sums": sums})


if __name__ == "__main__":
    {"write": write, "read": read, "echo": echo, "take": take}[sys.argv[1]](json.loads(sys.argv[2]))
