"""The supervisor of a run: starts workers, watches them, restarts those that die, and ends them.

All of it runs in the caller's process, most of it on the supervisor's own thread.

supervisor          the Supervisor: owns the parts of a run, from start to end
event_loop          the supervisor's thread: events, deaths, and checks that are due
worker_events       passes each event of a worker on to the part that it concerns
run_resources       the pipes, arenas, board and wake events of a run, made before any worker starts
worker_pool         starts the workers and their successors
worker_process      one worker process: start, exit and its cause, stacks, termination
start_hook          a function that tests let each worker call when it starts
lifetime            lets the kernel kill a worker when its supervisor dies
control_server      the supervisor's end of the control channel
recovery            the recovery coordinator: death -> decision -> seek -> all processes have entered
worker_deaths       collects what is known of a death, and the items that deaths blame
restarts            the restarts of a run: which are due, and the time they cost
seek_publisher      sends a seek to the workers
arena_full_policy   decides when an item does not fit: smaller windows, or fail; pure
restart_policy      decides on a death: restart, skip the item, or fail; pure
arena_eras          gives back the shared memory that dead workers held
watchdog            item timeouts, start timeouts and stalled runs
stalls              describes which worker waits for which; pure
memory_pressure     warnings and errors about too little shared memory
adaptive_transport  corrects the transport rules of the hops from measured costs
"""

from stagepipe.runtime.supervisor.memory_pressure import compute_wanted_bytes
from stagepipe.runtime.supervisor.recovery import RecoveryCoordinator
from stagepipe.runtime.supervisor.restarts import StallRestart, WorkerRestart
from stagepipe.runtime.supervisor.run_resources import (
    RunResources,
    WorkerSlot,
)
from stagepipe.runtime.supervisor.start_hook import WORKER_START_HOOK
from stagepipe.runtime.supervisor.supervisor import Supervisor

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
