"""The Ray engine: a plan as operators of Ray Data. Runs in the caller's process and in Ray workers.

Before the first order point, the source is a set of read tasks, and each process of the plan is a pool of actors. After
it, each stage with several workers is a pool of actors too. All other stages run in the caller's process, in order, as
with the inline engine.

engine            the interface to the rest of stagepipe: options, capabilities, start
run               the run: takes the rows of the last operator in order, and runs the rest of the pipeline
cluster           the cluster: starts or joins it, and starts actors and tasks on its nodes
operators         plan -> operators of Ray Data
source            the read tasks, as a Ray Data datasource
workers           the code in a Ray worker: runs the same stages as a worker of the local engine
blocks            items as rows of Arrow tables, and back
execution         executes the operators of an epoch, and yields their blocks
recording         the counts of all workers -> RunRecord

Modules import Ray only where they use it; nothing else of stagepipe needs it.
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.engine.ray.cluster import RayCluster
    from stagepipe.engine.ray.run import RayRun

__all__ = ["RayCluster", "RayRun"]

__getattr__ = lazy_names(__name__, __file__)
