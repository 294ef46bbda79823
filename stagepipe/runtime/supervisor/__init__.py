"""The supervisor of a run: starts, watches, restarts and ends workers.

All of it runs in the caller's process, most of it on the supervisor's own thread.

supervisor          the Supervisor: owns the parts of a run; its thread, control channel and recovery coordinator
workers             the worker processes: resources, start, exit and its cause, stacks, termination
recovery            the state machine: a death, a stall, an error or a full arena leads to actions; pure
scaling             adds and removes workers of a stage during the run
watchdog            item timeouts, start timeouts, stalled runs, and too little shared memory
adaptive_transport  corrects the transport rules of the hops from measured costs
"""

from stagepipe.runtime.supervisor.recovery import StallRestart, WorkerRestart
from stagepipe.runtime.supervisor.scaling import ChangeCause, WorkerChange
from stagepipe.runtime.supervisor.supervisor import RecoveryCoordinator, Supervisor
from stagepipe.runtime.supervisor.watchdog import compute_wanted_bytes
from stagepipe.runtime.supervisor.workers import (
    WORKER_START_HOOK,
    RunResources,
    WorkerSlot,
)

__all__ = [
    "WORKER_START_HOOK",
    "ChangeCause",
    "RecoveryCoordinator",
    "RunResources",
    "StallRestart",
    "Supervisor",
    "WorkerChange",
    "WorkerRestart",
    "WorkerSlot",
    "compute_wanted_bytes",
]
