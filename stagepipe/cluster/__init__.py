"""Islands: the same config as one local pipeline on each node of a cluster. Above `api`.

islands   starts the islands, gathers their progress and results, and ends them; in the process of `stagepipe run`

Large arrays stay in the shared memory of their node and never enter the cluster's object store.
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.cluster.islands import IslandOptions, IslandResult, run_islands

__all__ = ["IslandOptions", "IslandResult", "run_islands"]

__getattr__ = lazy_names(__name__, __file__)
