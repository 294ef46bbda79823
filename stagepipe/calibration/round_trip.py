"""A hop to another process and back, which measures the cost of messages.

`RoundTrip` runs in the caller's process. The echo process sends back each message: `python -m
stagepipe.calibration.round_trip FD...`. It inherits these descriptors, in this order: the pipe to it, the pipe from it,
the caller's arena, its own arena, the pipe to release the caller's blocks, the pipe that releases its own blocks, and
the shared page with the ledgers.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
from collections.abc import Sequence
from statistics import median
from time import perf_counter_ns
from typing import Any, Self

import numpy as np

from stagepipe.core import PACKAGE_DIR, RunError
from stagepipe.costs import CostMeasurement, summarize_ledgers
from stagepipe.timing import (
    HISTOGRAM_WORDS,
    LEDGER_WORDS,
    RECEIVE_PHASES,
    SEND_PHASES,
    CostLedger,
    DurationRecorder,
    Histogram,
    TransferKind,
)
from stagepipe.transport import (
    ALWAYS_PIPE_THRESHOLD_BYTES,
    Arena,
    Lease,
    PacketKind,
    Receiver,
    Sender,
    SharedMemoryPool,
    TransportRule,
    WakeEvent,
    make_arena_fd,
    make_byte_pipe,
    make_packet_pipe,
)

ARENA_LIMIT_BYTES = 1 << 30
"""The size of each arena: room for some blocks of 64 MB each. Untouched pages take no memory."""
_MAX_MESSAGES_IN_FLIGHT = 4
RESPONSE_TIMEOUT_S = 10.0
CACHE_FOOTPRINT_BYTES = 2 << 20
"""Memory that a process touches between two messages: about the size of a core's private cache."""
WORK_BUFFER_BYTES = 16 << 20
"""Maximum memory that a process touches between two messages."""
LEDGER_COUNT = 4
"""Ledgers on the shared page: outbound sending and receiving, return sending and receiving."""


def simulate_stage_work(work_buffer: np.ndarray[Any, Any], nbytes: int = 0) -> None:
    """Touch memory as a stage does between two messages of `nbytes`. Larger messages touch more."""
    work_buffer[: CACHE_FOOTPRINT_BYTES + 2 * nbytes] += 1


class HopEndpoint:
    """One side of the hop: its shared memory, its sender and its receiver.

    `ledgers` are the (sending, receiving) ledgers of this side. `exit_stack` closes all that the endpoint opens.
    """

    def __init__(
        self, memory: SharedMemoryPool, ledgers: tuple[CostLedger, CostLedger], exit_stack: contextlib.ExitStack
    ) -> None:
        self._memory = memory
        self._exit_stack = exit_stack
        self._wake_event = WakeEvent()
        exit_stack.callback(self._wake_event.close)
        self._phase_counters = [
            np.zeros(len(phases) * HISTOGRAM_WORDS, np.uint64) for phases in (SEND_PHASES, RECEIVE_PHASES)
        ]
        self.send_recorder = DurationRecorder(self._phase_counters[0], len(SEND_PHASES), ledgers[0])
        self.receive_recorder = DurationRecorder(self._phase_counters[1], len(RECEIVE_PHASES), ledgers[1])

    def open_sender(self, fd: int, rule: TransportRule) -> Sender:
        """Open a sender on the pipe `fd`."""
        sender = Sender(fd, self._memory, rule, self._wake_event, bool, self.send_recorder)
        self._exit_stack.callback(sender.close)
        return sender

    def open_receiver(self, fd: int) -> Receiver:
        """Open a receiver on the pipe `fd`."""
        receiver = Receiver(fd, self._memory, self._wake_event, bool, self.receive_recorder)
        self._exit_stack.callback(receiver.close)
        return receiver

    def flush(self) -> None:
        """Write everything recorded so far to the ledgers."""
        self.send_recorder.flush()
        self.receive_recorder.flush()

    def get_median_phase_ns(self, phase: str) -> int:
        """The median of a phase in ns, over all messages that this side sent or received."""
        side = phase not in SEND_PHASES
        index = (SEND_PHASES, RECEIVE_PHASES)[side].index(phase)
        words = self._phase_counters[side][index * HISTOGRAM_WORDS :][:HISTOGRAM_WORDS]
        return Histogram.from_words(words).percentile_ns(50)


def map_ledgers(ledger_fd: int) -> list[CostLedger]:
    """Map the `LEDGER_COUNT` ledgers on the shared page."""
    words = np.frombuffer(mmap.mmap(ledger_fd, LEDGER_COUNT * LEDGER_WORDS * 8), np.uint64)
    return [CostLedger(row) for row in words.reshape(LEDGER_COUNT, LEDGER_WORDS)]


class RoundTrip:
    """Sends messages to the echo process and receives them back. A context manager.

    >>> with RoundTrip() as round_trip:
    ...     for _ in range(20):
    ...         for size in (64, 4096):
    ...             round_trip.send(TransferKind.COPIED, {"data": np.zeros(size, np.uint8)})
    ...     round_trip.stop()
    ...     outbound, returned = round_trip.summarize()
    >>> sum(measurement.count for measurement in outbound)
    40

    Raises RunError if the echo process cannot be started or does not answer.
    """

    def __init__(self) -> None:
        self._exit_stack = stack = contextlib.ExitStack()
        arena_fds = {index: self._close_fd_on_exit(make_arena_fd(ARENA_LIMIT_BYTES)) for index in range(2)}
        release_fds = {index: tuple(map(self._close_fd_on_exit, make_byte_pipe())) for index in range(2)}
        outbound, returned = make_packet_pipe(256), make_packet_pipe(256)
        stack.callback(outbound.close)
        stack.callback(returned.close)
        ledger_fd = self._close_fd_on_exit(os.memfd_create("stagepipe-ledgers", os.MFD_CLOEXEC))
        os.ftruncate(ledger_fd, LEDGER_COUNT * LEDGER_WORDS * 8)
        self._echo_process = _start_echo_process(
            (
                outbound.read_fd,
                returned.write_fd,
                arena_fds[0],
                arena_fds[1],
                release_fds[0][1],
                release_fds[1][0],
                ledger_fd,
            )
        )
        stack.callback(self._echo_process.wait)
        stack.callback(self._echo_process.kill)
        self._arena = Arena(0, arena_fds[0], ARENA_LIMIT_BYTES)
        self._memory = SharedMemoryPool(self._arena, arena_fds, {0: release_fds[0][0], 1: release_fds[1][1]})
        ledgers = map_ledgers(ledger_fd)
        self._outbound_ledgers = ledgers[:2]
        self._return_ledgers = ledgers[2:]
        self._endpoint = HopEndpoint(self._memory, (ledgers[0], ledgers[3]), stack)
        pipe_rule = TransportRule(threshold_bytes=ALWAYS_PIPE_THRESHOLD_BYTES, large_in_pipe=True)
        self._senders = {
            TransferKind.PIPE: self._endpoint.open_sender(outbound.write_fd, pipe_rule),
            TransferKind.COPIED: self._endpoint.open_sender(outbound.write_fd, TransportRule(threshold_bytes=1)),
        }
        self._receiver = self._endpoint.open_receiver(returned.read_fd)
        self._work_buffer = np.zeros(WORK_BUFFER_BYTES, np.uint8)
        self._in_flight = 0
        # With more messages in flight than the pipe holds, both sides could wait for room at once.
        self._max_in_flight = min(_MAX_MESSAGES_IN_FLIGHT, returned.capacity_packets)
        self._receive_durations_ns: list[int] = []

    def _close_fd_on_exit(self, fd: int) -> int:
        self._exit_stack.callback(os.close, fd)
        return fd

    def __enter__(self) -> Self:
        """Return the round trip itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the echo process and close all descriptors."""
        self._exit_stack.close()

    def send(self, transfer_kind: TransferKind, item: Any) -> None:
        """Send an item, which the caller may keep. An item sent by pipe comes back empty."""
        simulate_stage_work(self._work_buffer, sum(array.nbytes for array in item.values()))
        samples = 2 if transfer_kind is TransferKind.PIPE else 1
        self._senders[transfer_kind].send([item], 1, (0,), samples, b"")
        self._in_flight += 1
        while self._in_flight >= self._max_in_flight:
            self._receive_one()

    def send_loaned(self, nbytes: int) -> None:
        """Send an item that is already in a shared-memory block."""
        simulate_stage_work(self._work_buffer, nbytes)
        self._senders[TransferKind.COPIED].send([{"data": np.asarray(self._memory.loan(nbytes))}], 1, (0,), 1, b"")
        self._in_flight += 1
        self._receive_one()

    def send_cold(self, nbytes: int, item: Any) -> None:
        """Send an item through a block whose pages were never touched. Takes all touched blocks first."""
        allocator = self._arena.allocator
        leases: list[Lease] = []
        while not leases or not allocator.is_last_block_cold:
            leases.append(self._memory.loan(nbytes))
        self.send(TransferKind.COPIED, item)

    def drain(self) -> None:
        """Wait until no message is in flight."""
        while self._in_flight:
            self._receive_one()

    def stop(self) -> None:
        """Wait for all messages in flight and for the echo process to exit."""
        self.drain()
        self._senders[TransferKind.PIPE].send_marker(PacketKind.END_OF_SEGMENT, 1, (0,))
        self._echo_process.wait(RESPONSE_TIMEOUT_S)
        self._endpoint.flush()

    def _receive_one(self) -> None:
        starved_ns = self._receiver.starved_ns
        start_ns = perf_counter_ns()
        received = self._receiver.receive(1, RESPONSE_TIMEOUT_S)
        if self._receiver.starved_ns == starved_ns:
            self._receive_durations_ns.append(perf_counter_ns() - start_ns)
        if received is None or received.kind != PacketKind.ITEM:
            raise RunError(
                "cannot measure this machine: the echo process did not answer "
                f"(exit code {self._echo_process.poll()}); check that memory and processes are free"
            )
        received.value = None
        self._in_flight -= 1

    @property
    def serialization_ns(self) -> int:
        """The median cost of a message except for carrying it: pickling, reading and unpickling. Valid after `stop`.

        It is the same for all transfer kinds, so the ledgers and the curves omit it.
        """
        reading_ns = int(median(self._receive_durations_ns or [0])) - self._endpoint.get_median_phase_ns("receive_ns")
        return self._endpoint.get_median_phase_ns("encode_ns") + max(reading_ns, 0)

    def summarize(self) -> tuple[list[CostMeasurement], list[CostMeasurement]]:
        """The costs of the messages to the echo process, and of those back from it. Valid after `stop`."""
        outbound = summarize_ledgers(self._outbound_ledgers[:1], self._outbound_ledgers[1:])
        returned = summarize_ledgers(self._return_ledgers[:1], self._return_ledgers[1:])
        return outbound, returned


def _start_echo_process(fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start the echo process with the descriptors in the order of the module's docstring."""
    import_root = str(PACKAGE_DIR.parent)
    path = os.pathsep.join(filter(None, (import_root, os.environ.get("PYTHONPATH"))))
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "stagepipe.calibration.round_trip", *map(str, fds)],
            pass_fds=fds,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C reaches only the caller, which then kills this process
        )
    except OSError as error:
        raise RunError(f"cannot measure this machine: cannot start the echo process: {error}") from error


def main(inherited_fds: list[int]) -> int:
    """Send items back until the end marker arrives. Returns 1 if nothing arrives for RESPONSE_TIMEOUT_S, else 0."""
    in_fd, out_fd, caller_arena_fd, own_arena_fd, caller_release_fd, own_release_fd, ledger_fd = inherited_fds
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # as workers do in a pipeline that fills the CPUs
    work_buffer = np.zeros(WORK_BUFFER_BYTES, np.uint8)
    with contextlib.ExitStack() as stack:
        memory = SharedMemoryPool(
            Arena(1, own_arena_fd, ARENA_LIMIT_BYTES),
            {0: caller_arena_fd, 1: own_arena_fd},
            {0: caller_release_fd, 1: own_release_fd},
        )
        ledgers = map_ledgers(ledger_fd)
        endpoint = HopEndpoint(memory, (ledgers[2], ledgers[1]), stack)
        sender = endpoint.open_sender(out_fd, TransportRule(threshold_bytes=1))
        receiver = endpoint.open_receiver(in_fd)
        while True:
            received = receiver.receive(1, RESPONSE_TIMEOUT_S)
            if received is None:
                return 1
            if received.kind == PacketKind.END_OF_SEGMENT:
                endpoint.flush()
                return 0
            item = received.value
            nbytes = sum(array.nbytes for array in item.values())
            box = [item if received.samples == 1 else None]
            received.value = None
            del item
            simulate_stage_work(work_buffer, nbytes)
            sender.send(box, 1, (0,), 1, b"")


if __name__ == "__main__":
    sys.exit(main([int(fd) for fd in sys.argv[1:]]))
