"""The supervisor of a run: starts workers, watches them, restarts those that die, and ends them.

All of it runs in the caller's process, most of it on the supervisor's own thread.

supervisor          the Supervisor: owns the parts of a run, from start to end; its thread and control channel
workers             the worker processes: resources, start, exit and its cause, stacks, termination
recovery            the recovery coordinator: death -> decision -> seek -> all processes have entered
restart_policy      decides on a death: restart, skip the item, or fail; and on an item that does not fit; pure
watchdog            item timeouts, start timeouts, stalled runs, and too little shared memory
adaptive_transport  corrects the transport rules of the hops from measured costs
"""

from stagepipe.runtime.supervisor.recovery import RecoveryCoordinator, StallRestart, WorkerRestart
from stagepipe.runtime.supervisor.supervisor import Supervisor
from stagepipe.runtime.supervisor.watchdog import compute_wanted_bytes
from stagepipe.runtime.supervisor.workers import (
    WORKER_START_HOOK,
    RunResources,
    WorkerSlot,
)

__all__ = [
    "WORKER_START_HOOK",
    "RecoveryCoordinator",
    "RunResources",
    "StallRestart",
    "Supervisor",
    "WorkerRestart",
    "WorkerSlot",
    "compute_wanted_bytes",
]
