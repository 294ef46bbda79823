"""The supervisor of a run: starts workers, watches them, restarts those that die, and ends them.

All of it runs in the caller's process, most of it on the supervisor's own thread.

supervisor          the Supervisor: owns the run, dispatches the workers' events, publishes seeks
run_resources       the pipes, arenas, board and wake events of a run, made before any worker starts
worker_pool         starts the workers and their successors
worker_process      one worker process: start, exit and its cause, stacks, termination
start_hook          a function that tests let each worker call when it starts
lifetime            lets the kernel kill a worker when its supervisor dies
control_server      the supervisor's end of the control channel
recovery            coordinates the recovery from deaths and stalls
restart_policy      decides on a death: restart, skip the item, or fail; pure
arena_eras          gives back the shared memory that dead workers held
watchdog            item timeouts, start timeouts and stalled runs
stalls              describes which worker waits for which; pure
memory_pressure     warnings and errors about too little shared memory
adaptive_transport  corrects the transport rules of the hops from measured costs
"""

from stagepipe.runtime.supervisor.memory_pressure import make_arena_full_error
from stagepipe.runtime.supervisor.run_resources import WorkerSlot
from stagepipe.runtime.supervisor.start_hook import WORKER_START_HOOK
from stagepipe.runtime.supervisor.supervisor import Supervisor

__all__ = ["WORKER_START_HOOK", "Supervisor", "WorkerSlot", "make_arena_full_error"]
