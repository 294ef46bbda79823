"""stagepipe's source, which the config names by its dotted path. It runs in the source's worker."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.crossover.payload import TRANSFERS, Array, make_array, stamp


class Arrays:
    """The arrays of a repetition; each iteration is one repetition. It yields one array with a new number each time."""

    def __init__(self, d: int) -> None:
        """Create the array of shape (d, d)."""
        self._array = make_array(d)

    def __iter__(self) -> Iterator[Array]:
        """Yield the arrays. Each has been sent by the time the next one is requested."""
        for transfer in range(TRANSFERS):
            stamp(self._array, transfer)
            yield self._array
