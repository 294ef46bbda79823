"""Sends messages over multiprocessing's Pipe, Queue and SharedMemory, on request. Runs in a spawned process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from time import thread_time_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagepipe.calibration import WORK_BUFFER_BYTES, simulate_stage_work

ByteArray = NDArray[np.uint8]
_FEEDER_THREAD_NAME = "QueueFeederThread"
"""CPython's name of the Queue thread that pickles and writes."""


def make_random_bytes(nbytes: int) -> ByteArray:
    """Random bytes, the same in every process. A smaller size is a prefix of a larger one."""
    return np.frombuffer(np.random.default_rng(17).bytes(nbytes), np.uint8)


def run_producer(mechanism: str, max_message_bytes: int, request_connection: Connection, channel: Any) -> None:
    """Run the producer, in the spawned process: send the requested messages and reply with the cost of each, in ns."""
    data = make_random_bytes(max_message_bytes)
    work_buffer = np.zeros(WORK_BUFFER_BYTES, np.uint8)
    send = {"Pipe": send_by_pipe, "Queue": put_in_queue, "SharedMemory": send_by_shared_memory}[mechanism]
    while True:
        try:
            nbytes, count = request_connection.recv()
            request_connection.send(
                [_measure_send_ns(send, channel, data[:nbytes], work_buffer, request_connection) for _ in range(count)]
            )
        except (EOFError, OSError):  # the caller has exited
            return


def _measure_send_ns(
    send: Callable[[Any, ByteArray], None],
    channel: Any,
    data: ByteArray,
    work_buffer: ByteArray,
    request_connection: Connection,
) -> int:
    """Send a message and wait for its receipt. Returns the CPU time of this thread and of a Queue's thread, in ns."""
    simulate_stage_work(work_buffer)
    feeder_start_ns = _read_feeder_cpu_ns()
    start_ns = thread_time_ns()
    send(channel, data)
    send_ns = thread_time_ns() - start_ns
    request_connection.recv()
    return send_ns + _read_feeder_cpu_ns() - feeder_start_ns


def _read_feeder_cpu_ns() -> int:
    for thread in threading.enumerate():
        if thread.name == _FEEDER_THREAD_NAME and thread.ident is not None:
            return time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))
    return 0


def send_by_pipe(writer: Connection, data: ByteArray) -> None:
    """Send an item over a Pipe, which pickles it."""
    writer.send({"data": data})


def put_in_queue(queue: Any, data: ByteArray) -> None:
    """Put an item in a Queue, whose thread pickles it."""
    queue.put({"data": data})


def send_by_shared_memory(writer: Connection, data: ByteArray) -> None:
    """Copy an item into new shared memory and send its name over a Pipe."""
    shared_memory = SharedMemory(create=True, size=data.size)
    np.copyto(np.ndarray(data.shape, np.uint8, shared_memory.buf), data)
    writer.send((shared_memory.name, data.size))
    shared_memory.close()
