"""The worker process: it runs one stage, with the stages fused to it. The supervisor starts and stops it.

entrypoint              starts the process: inherited descriptors, signals, redirected output
loop                    the Worker: builds the stages and their role, enters seeks, steps the role
control_client          the worker's end of the control channel, on its own thread
roles                   SourceRole and StageRole: what a worker does with each item
order_point             OrderPointRole: orders the leaves of a segment and feeds the next one with their groups
failures                reports what ends the worker's work
hop_output              sends a role's results to the next hop
counters                writes the worker's counters to the board
shared_allocation       allocates for `stagepipe.empty` in shared memory
scheduling              switches between the normal and the batch scheduling policy
broken_cuda             ends the process if it cannot use CUDA any more
upkeep                  releases memory, publishes progress, writes counters: at every tick and every 100 ms
main_objects            defines classes of the caller's script, where items find them by name
probe                   measures items in a probe run
"""

from stagepipe.runtime.worker.entrypoint import worker_main
from stagepipe.runtime.worker.main_objects import install_main_objects

__all__ = ["install_main_objects", "worker_main"]
