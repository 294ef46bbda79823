"""The worker process: it runs one stage, with the stages fused to it. The supervisor starts and stops it.

entrypoint      starts the process: inherited descriptors, signals, redirected output, classes of the caller's script
loop            the Worker: builds the stages and their role, enters seeks, steps the role, reports what ends its work
control_client  the worker's end of the control channel, on its own thread
roles           SourceRole, StageRole and OrderPointRole: what a worker does with each item
group           the processes that work on each item together, as ranks of torch.distributed
chunks          several items together: how many the source sends, and how a worker stacks the results
hop_output      sends a role's results to the next hop; measures them in a probe, and compares them in a check
upkeep          releases memory, publishes progress, writes counters: at every tick and every 100 ms
"""

from stagepipe.runtime.worker.entrypoint import install_main_objects, worker_main

__all__ = ["install_main_objects", "worker_main"]
