"""Support for tests of pipelines and of stagepipe itself. Runs in the caller's process; crash points act in workers.

stage_runs     run_stage: runs one stage on a few items, for tests of your own stages
scaling        scaling_policy: lets a test decide when workers are added and removed
crash_points   worker_start_hook: runs a function in each worker that starts; crash_workers_at: kills workers
               between two steps of the protocol
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.testing.crash_points import crash_workers_at, worker_start_hook
    from stagepipe.testing.scaling import scaling_policy
    from stagepipe.testing.stage_runs import run_stage

__all__ = ["crash_workers_at", "run_stage", "scaling_policy", "worker_start_hook"]

__getattr__ = lazy_names(__name__, __file__)
