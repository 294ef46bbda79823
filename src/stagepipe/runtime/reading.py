"""Reading a source from any place: indexed, a stream that can be begun again, or one that can be read only once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from stagepipe.core import UsageError


class SourceReader:
    """What the source role and `--inline` read from. `total` is the number of items of an epoch, where it is known.

    What is `indexed` can be asked for any item, so it is seeded before each. A stream is always read from its start
    (what comes before the place that is sought is skipped), so seeding it there is enough.
    """

    def __init__(self, source: Any, seed: int, limit: int | None) -> None:
        """`source` is indexed (`__len__`, `__getitem__`), iterable, or a function that returns an iterable."""
        self._source, self._seed, self._limit = source, seed, limit
        self.indexed = hasattr(source, "__len__") and hasattr(source, "__getitem__")
        self._once = isinstance(source, Iterator)
        self._used = False
        self._iterator: Iterator[Any] = iter(())
        self.total: int | None = None

    def seek(self, epoch: int, item: int) -> None:
        """Begin at item `item` of an epoch. UsageError for a second look at what can be read only once."""
        begin = getattr(self._source, "begin", None)
        if callable(begin):
            begin(epoch, self._seed)
        if self.indexed:
            count = len(self._source)
            self.total = count if self._limit is None else min(count, self._limit)
            # Not `map`: a StopIteration that gets loose in the source would end the epoch in silence.
            self._iterator = (self._source[at] for at in range(item, self.total))
            return
        if self._once and self._used:
            message = (
                "the source is an iterator, which can be read only once; pass a function that returns a new one, "
                "or an object with __len__ and __getitem__"
            )
            raise UsageError(message)
        self._used = True
        stream: Iterable[Any] = self._source() if callable(self._source) else self._source
        self._iterator = itertools.islice(iter(stream), item, self._limit)

    def read(self, box: list[Any]) -> bool:
        """Put the next item into `box`; False at the epoch's end."""
        for item in self._iterator:
            box.append(item)
            return True
        return False
