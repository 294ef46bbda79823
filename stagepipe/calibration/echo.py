"""The echo process of a measurement: `python -m stagepipe.calibration.echo FD...` sends back what it receives.

`calibration.round_trip` starts it. It inherits these descriptors, in this order: the pipe to it, the pipe from it, the
caller's arena, its own arena, the pipe to release the caller's blocks, the pipe that releases its own blocks, and the
shared page with the ledgers.
"""

from __future__ import annotations

import contextlib
import os
import sys

import numpy as np

from stagepipe.calibration.round_trip import (
    ARENA_LIMIT_BYTES,
    RESPONSE_TIMEOUT_S,
    WORK_BUFFER_BYTES,
    HopEndpoint,
    map_ledgers,
    simulate_stage_work,
)
from stagepipe.transport import Arena, PacketKind, SharedMemoryPool, TransportRule


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
