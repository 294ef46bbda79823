"""The Ray engine: a plan as operators of Ray Data. In the process of the caller, and in the workers of Ray.

Up to the first order point, the source is a set of read tasks and each process of the plan is a pool of actors. From
the first order point on, what has several workers is a pool of actors too; all else runs in the caller's process, in
order, as inline.

engine            what the rest of stagepipe knows of it: options, capabilities, its start
run               the run: takes the rows of the last operator in order, and runs what comes after them
cluster           the cluster: starts or joins it, and starts actors and tasks on its nodes
operators         plan -> operators of Ray Data
source            the read tasks, as a data source of Ray Data
workers           what a worker of Ray does with a block: the same stages as in a worker of the local engine
blocks            items as rows of Arrow tables, and back
execution         executes the operators of an epoch, and yields their blocks
recording         the counts of all workers -> RunRecord

Ray is imported where it is used: nothing else of stagepipe needs it.
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.engine.ray.cluster import RayCluster
    from stagepipe.engine.ray.run import RayRun

__all__ = ["RayCluster", "RayRun"]

__getattr__ = lazy_names(__name__, __file__)
