"""The worker process: it runs one stage, with the stages fused to it. The supervisor starts and stops it.

entrypoint      starts the process: inherited descriptors, signals, redirected output, classes of the caller's script
loop            the Worker: builds the stages and their role, enters seeks, steps the role, reports failures
control_client  the worker's end of the control channel, on its own thread
roles           SourceRole, StageRole and OrderPointRole: the processing of each item
group           the processes that work on each item together, as ranks of torch.distributed
chunks          several items together: the number that the source sends, and the stacking of results in a worker
hop_output      sends a role's results to the next hop; measures them in a probe, and compares them in a check
upkeep          releases memory, publishes progress, writes counters: at every tick and every 100 ms
"""

from stagepipe.runtime.worker.entrypoint import install_main_objects, worker_main

__all__ = ["install_main_objects", "worker_main"]
