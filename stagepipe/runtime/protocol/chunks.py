"""What travels in one packet for several consecutive items, from the source of a dataset to `Batch`.

The packet's key is the first item's, and its samples are the number of items.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagepipe.stages import Rows


@dataclass(slots=True)
class IndexChunk:
    """The indices of consecutive items of a map-style dataset: all `int`."""

    indices: range | NDArray[np.int64]

    def to_list(self) -> list[int]:
        """Return the indices as they are in the dataset's order."""
        return list(self.indices) if isinstance(self.indices, range) else self.indices.tolist()


@dataclass(slots=True)
class SampleChunk:
    """Consecutive samples: rows `start` to `stop`."""

    rows: Rows
    start: int
    stop: int
