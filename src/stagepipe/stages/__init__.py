"""The stages that come with stagepipe, and the adapter that puts anybody's function on one field of an item.

`Batch` and `Shuffle` are order points (see `Grouping`); `Unbatch`, `Filter` and `Fetch` are ordinary stages. Nothing
here imports torch before a value asks for it.
"""

from stagepipe.stages.batch import Batch
from stagepipe.stages.fetch import Fetch
from stagepipe.stages.field import FieldAdapter
from stagepipe.stages.filter import Filter
from stagepipe.stages.grouping import Grouping
from stagepipe.stages.reseed import own_generators
from stagepipe.stages.shuffle import Shuffle
from stagepipe.stages.unbatch import Unbatch
from stagepipe.stages.untouched import ignores_arrays

__all__ = [
    "Batch",
    "Fetch",
    "FieldAdapter",
    "Filter",
    "Grouping",
    "Shuffle",
    "Unbatch",
    "ignores_arrays",
    "own_generators",
]
