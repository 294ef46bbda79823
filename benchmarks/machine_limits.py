"""Measure this machine's cost of the parts of a hop: copies, page faults, system calls, wake-ups.

    python -m benchmarks.machine_limits [--rounds 7] [--json FILE]

No transport can be cheaper than these. docs/explanation/performance.md compares the time of an item with them.

    copy, cached       `np.copyto` of 1 MiB between two buffers that stay in the cache
    copy, memory       the same with 64 MiB, which no cache holds
    page fault         the first write to a page of a shared mapping (memfd): the cost of a cold block per 4 KiB
    system call        `os.getppid`, which the kernel answers without work, including Python's call
    packet, empty pipe writing a packet of 100 bytes to a pipe in packet mode and reading it, in one process: no wait
    wake-up            half of a round trip of one byte between two processes that sleep in `poll`: CPU time and wake-up
    pickle             `pickle.dumps` and `loads` of the small dict of benchmarks.small_items
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
import timeit
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.common.command import finish, make_parser, open_run
from benchmarks.common.figures import format_figures
from benchmarks.common.turn import take_rounds

_SMALL_DICT = {"id": 123, "label": 7, "path": "images/000123.jpg"}
_CACHED_BYTES = 1 << 20
_UNCACHED_BYTES = 64 << 20
_PAGES = 4096
_CALLS = 20_000
_TRIPS = 2_000


def _time_ns(call: Callable[[], object], count: int = _CALLS) -> float:
    return 1e9 * timeit.timeit(call, number=count) / count


def _copy(nbytes: int) -> Callable[[], float]:
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    return lambda: _time_ns(partial(np.copyto, target, source), max((256 << 20) // nbytes, 1))


def _fault() -> float:
    fd = os.memfd_create("limits")
    os.ftruncate(fd, _PAGES * mmap.PAGESIZE)
    with mmap.mmap(fd, _PAGES * mmap.PAGESIZE) as mapping:
        duration_ns = _time_ns(partial(_touch, mapping), 1) / _PAGES
    os.close(fd)
    return duration_ns


def _touch(mapping: mmap.mmap) -> None:
    np.frombuffer(mapping, np.uint8)[:: mmap.PAGESIZE].fill(1)


def _packet() -> float:
    read_fd, write_fd = os.pipe2(os.O_DIRECT)
    data = bytes(100)
    try:
        return _time_ns(lambda: (os.write(write_fd, data), os.read(read_fd, 4096)))
    finally:
        os.close(read_fd)
        os.close(write_fd)


def _wake_up() -> float:
    request_read, request_write = os.pipe()
    answer_read, answer_write = os.pipe()
    child = os.fork()
    if not child:
        os.close(request_write)
        while _wait_and_read(request_read):
            os.write(answer_write, b"x")
        os._exit(0)
    os.close(request_read)
    try:
        return _time_ns(lambda: (os.write(request_write, b"x"), _wait_and_read(answer_read)), _TRIPS) / 2
    finally:
        for fd in (request_write, answer_read, answer_write):
            os.close(fd)
        os.waitpid(child, 0)


def _wait_and_read(fd: int) -> bytes:
    select.select([fd], [], [], 10)
    return os.read(fd, 1)


ROWS: dict[str, Callable[[], float]] = {
    "copy, cached": _copy(_CACHED_BYTES),
    "copy, memory": _copy(_UNCACHED_BYTES),
    "page fault": _fault,
    "system call": lambda: _time_ns(os.getppid),
    "packet, empty pipe": _packet,
    "wake-up": _wake_up,
    "pickle": lambda: _time_ns(lambda: pickle.loads(pickle.dumps(_SMALL_DICT, 5))),
}


if __name__ == "__main__":
    options = make_parser(__doc__, rounds=7).parse_args()
    document = open_run("machine_limits")
    found = take_rounds(list(ROWS), options.rounds, lambda row: {"us": ROWS[row]() / 1000})
    print(*format_figures("wall time", found, ["us"]), sep="\n")
    finish(options.json, {**document, "figures": found})
