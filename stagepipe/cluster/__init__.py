"""Islands: the same config as one local pipeline on each node of a cluster. Above `api`.

islands   starts the islands, gathers what they say, and ends them; in the process of `stagepipe run`
island    one pipeline with its share of the source, run to its sinks; in an actor on its node
placement where the sinks of an island write, and on which node it runs

Large arrays stay in the shared memory of their node and never enter the cluster's object store.
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.cluster.island import IslandOptions, IslandResult
    from stagepipe.cluster.islands import run_islands

__all__ = ["IslandOptions", "IslandResult", "run_islands"]

__getattr__ = lazy_names(
    __name__,
    {"IslandOptions": "island", "IslandResult": "island", "run_islands": "islands"},
)
