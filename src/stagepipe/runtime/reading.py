"""Reading a source from any place: indexed, a stream that can be begun again, or one that can be read only once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stagepipe.core import UsageError
from stagepipe.plan import WHOLE, Shard

READ_ONCE = (
    "the source is an iterator, which can be read only once; pass a function that returns a new one, or an object with "
    "__len__ and __getitem__"
)


class SourceReader:
    """What the source role and `--inline` read from. `total` is the number of items of an epoch, where it is known.

    What is `indexed` can be asked for any item, so it is seeded before each. A stream is always read from its start
    (what comes before the place that is sought is skipped), so seeding it there is enough. Of what is read, a rank
    takes its `shard`, and numbers that 0, 1, 2 ...; `limit` counts the source's items, those of all ranks. `samples` is
    how many samples the item read last stands for.
    """

    def __init__(self, source: Any, seed: int, limit: int | None, shard: Shard = WHOLE) -> None:
        """`source` is indexed (`__len__`, `__getitem__`), iterable, or a function that returns an iterable."""
        self._source, self._seed, self._limit, self._shard = source, seed, limit, shard
        self.indexed = hasattr(source, "__len__") and hasattr(source, "__getitem__")
        self.once = isinstance(source, Iterator)
        """Whether it can be read only once: never for a second epoch, and not by a successor."""
        self._used = False
        self._iterator: Iterator[Any] = iter(())
        self._places = range(0)
        self._whole_now = 0
        self._samples_of: Callable[[Any], int] = getattr(source, "samples_of", _one)
        self.samples = 1

    @property
    def total(self) -> int | None:
        """How many items an epoch has, of this rank; None for a stream."""
        return self._shard.count(self._whole()) if self.indexed else None

    def _whole(self) -> int:
        """How many items the source has for all ranks together."""
        count = len(self._source)
        return count if self._limit is None else min(count, self._limit)

    def seek(self, epoch: int, item: int) -> None:
        """Begin at item `item` of an epoch. UsageError for a second look at what can be read only once."""
        begin = getattr(self._source, "begin", None)
        if callable(begin):
            begin(epoch, self._seed)
        if self.indexed:
            self._whole_now = self._whole()
            self._places = range(item, self._shard.count(self._whole_now))
            return
        if self.once and self._used:
            raise UsageError(READ_ONCE)
        self._used = True
        stream: Iterable[Any] = self._source() if callable(self._source) else self._source
        self._iterator = self._own(itertools.islice(iter(stream), self._limit), item)

    def _own(self, stream: Iterator[Any], item: int) -> Iterator[Any]:
        """This rank's items of a stream, from its item `item` on."""
        shard = self._shard
        if shard.even == "pad":
            message = (
                "even='pad' needs a source with __len__ and __getitem__, and this one is a stream, of which nobody "
                "knows where it ends; say even='drop'"
            )
            raise UsageError(message)
        if shard.even == "drop" and shard.world_size > 1:
            return _full_rounds(stream, shard, item)
        return shard.part(stream, item)

    def read(self, box: list[Any]) -> bool:
        """Put the next item into `box`; False at the epoch's end. If that fails, an indexed source stays there."""
        if self.indexed:
            return self._read_indexed(box)
        for item in self._iterator:
            self.samples = self._samples_of(item)
            box.append(item)
            return True
        return False

    def _read_indexed(self, box: list[Any]) -> bool:
        if not self._places:
            return False
        try:
            item = self._source[self._shard.place(self._places[0], self._whole_now)]
            self.samples = self._samples_of(item)
        except StopIteration as loose:  # it is no end of the epoch
            message = "the source raised StopIteration"
            raise RuntimeError(message) from loose
        self._places = self._places[1:]
        box.append(item)
        return True

    def pass_over(self) -> None:
        """Go on behind the next item of an indexed source."""
        self._places = self._places[1:]


def _one(_: Any) -> int:
    """An item is a sample, unless its source says otherwise."""
    return 1


def _full_rounds(stream: Iterator[Any], shard: Shard, item: int) -> Iterator[Any]:
    """One item of each round in which every rank gets one. The others' items are let go as they come."""
    stream = itertools.islice(stream, item * shard.world_size, None)
    while True:
        own: list[Any] = []
        for place in range(shard.world_size):
            for value in stream:
                if place == shard.rank:
                    own.append(value)
                break
            else:
                return
        value = None
        yield own.pop()
