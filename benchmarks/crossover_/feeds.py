"""stagepipe's source, named by its dotted path in the config: what runs in its worker."""

from __future__ import annotations

from collections.abc import Iterator

from crossover_.payload import TRANSFERS, Array, make_array, number


class Arrays:
    """A repetition's arrays; each iteration is one. The array is the same one, with another number in it."""

    def __init__(self, d: int) -> None:
        """Of shape (d, d)."""
        self._array = make_array(d)

    def __iter__(self) -> Iterator[Array]:
        """What is yielded has been sent when the next one is asked for."""
        for at in range(TRANSFERS):
            number(self._array, at)
            yield self._array
