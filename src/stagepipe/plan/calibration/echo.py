"""The other process of a measurement: `python -m stagepipe.plan.calibration.echo FD...` sends back what comes.

It is started by `calibration.trip`. Its descriptors, all inherited:
the pipe to it, the pipe from it, the two arenas, where it tells of the other's blocks,
where it is told of its own, and the page of ledgers.
"""

from __future__ import annotations

import contextlib
import os
import sys

import numpy as np

from stagepipe.plan.calibration.trip import DEADLINE_S, LIMIT_BYTES, WORK_BYTES, Process, ledgers_at, rest
from stagepipe.transport import Arena, Kind, Memory, Policy


def main(fds: list[int]) -> int:
    """Echo until the end is told; 1 if nothing comes for too long."""
    in_fd, out_fd, other_arena, own_arena, other_returns, own_returns, page = fds
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # as workers of a full pipeline are
    work = np.zeros(WORK_BYTES, np.uint8)
    with contextlib.ExitStack() as stack:
        memory = Memory(
            Arena(1, own_arena, LIMIT_BYTES), {0: other_arena, 1: own_arena}, {0: other_returns, 1: own_returns}
        )
        ledgers = ledgers_at(page)
        process = Process(memory, (ledgers[2], ledgers[1]), stack)
        sender, receiver = process.sender(out_fd, Policy(1)), process.receiver(in_fd)
        while True:
            received = receiver.receive(1, DEADLINE_S)
            if received is None:
                return 1
            if received.kind == Kind.END:
                process.flush()
                return 0
            item = received.value
            nbytes = sum(array.nbytes for array in item.values())
            box, received.value = [item if received.samples == 1 else None], None
            del item
            rest(work, nbytes)
            sender.send(box, 1, (0,), 1, b"")


if __name__ == "__main__":
    sys.exit(main([int(fd) for fd in sys.argv[1:]]))
