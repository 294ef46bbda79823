"""The source as the first stage of its process: it reads item by item and pushes them into the stages fused to it.

In the source's process and inline. A source is read from any item on: an indexed source, a repeatable stream, or a
stream that can be read only once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from stagepipe.core import SKIP, Key, SourceIdentity, StreamPosition, StreamState, UsageError
from stagepipe.plan import UNSHARDED, Shard
from stagepipe.runtime.execution.chain import Box, ChainOutput, StageChain, call_with_retries
from stagepipe.runtime.execution.stage import StageRunner
from stagepipe.runtime.protocol import ForcedSkip, IndexChunk
from stagepipe.timing import ProcessRegion

READ_ONCE_MESSAGE = (
    "the source is an iterator, which can be read only once; pass a function that returns a new one, or an object with "
    "__len__ and __getitem__"
)

_PACKAGES_THAT_DRAW_NO_ITEM: Final = frozenset({"builtins", __name__.partition(".")[0]})

END_OF_SOURCE: Final = object()
"""What a read after the last item returns."""


def _do_nothing(number: int) -> None:
    """Stand in for `begin_stream_item`."""


class _AnnouncedStream:
    """A stream that calls `begin_item` with an item's number before it yields the item.

    Not a generator: that would keep a reference to the item until the next one is read.
    """

    def __init__(self, stream: Iterator[Any], begin_item: Callable[[int], None], first_number: int) -> None:
        self._stream = stream
        self._begin_item = begin_item
        self.next_number = first_number

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._begin_item(self.next_number)
        self.next_number += 1
        return next(self._stream)


class SourceReader:
    """Reads the items of one rank, numbered 0, 1, 2 ... in its `shard`. `limit` counts the items of all ranks.

    An indexed source (`is_indexed`) can be asked for any item. A stream is read from its start, or if it saves its
    state from a saved one, and the items before the sought one and those of other ranks are discarded. `item_samples`
    is how many samples the item read last counts for.
    """

    def __init__(self, source: Any, seed: int, limit: int | None, shard: Shard = UNSHARDED) -> None:
        """`source` is indexed (`__len__`, `__getitem__`), iterable, or a function that returns an iterable."""
        self._source = source
        self._seed = seed
        self._limit = limit
        self._shard = shard
        self.is_indexed = hasattr(source, "__len__") and hasattr(source, "__getitem__")
        self.may_draw = type(source).__module__.partition(".")[0] not in _PACKAGES_THAT_DRAW_NO_ITEM
        """Whether reading an item may draw random numbers. The built-in sources and lists draw at most an order."""
        self.is_single_pass = isinstance(source, Iterator)
        """Whether it can be read only once: not for a second epoch, and not by a successor of a dead worker."""
        self.passes_none = type(source) in {list, tuple}
        """Whether None is no mistake of its code: in a list it was written."""
        self._was_read = False
        self._iterator: Iterator[Any] = iter(())
        self._position = StreamPosition()
        self._announced = _AnnouncedStream(self._iterator, _do_nothing, 0)
        self._source_items = 0
        self._item_count = 0
        self._count_samples: Callable[[Any], int] = getattr(source, "count_samples", _count_one_sample)
        self.item_samples = 1

    @property
    def epoch_items(self) -> int | None:
        """The items of an epoch on this rank; None for a stream."""
        return self._shard.count_items(self._count_source_items()) if self.is_indexed else None

    @property
    def declared_items(self) -> int | None:
        """The items of an epoch on this rank by `__len__`, which a stream may have too but need not keep; else None."""
        try:
            return self._shard.count_items(self._count_source_items())
        except Exception:  # a stream without a length, or with a `__len__` that raises, runs all the same
            if self.is_indexed:
                raise
            return None

    def identify(self) -> SourceIdentity:
        """Return what the source reads now."""
        get_identity = getattr(self._source, "get_source_identity", None)
        if get_identity is not None:
            identity: SourceIdentity = get_identity()
            return identity
        return SourceIdentity(len(self._source)) if self.is_indexed else SourceIdentity()

    def _count_source_items(self) -> int:
        """Return how many items the source has for all ranks together."""
        count = len(self._source)
        return count if self._limit is None else min(count, self._limit)

    def seek(
        self,
        epoch: int,
        item: int,
        begin_stream_item: Callable[[int], None] = _do_nothing,
        stream_state: StreamState | None = None,
    ) -> None:
        """Start at item `item` of an epoch. Raises UsageError where a read-once source is read a second time.

        `begin_stream_item` is called before each item that a stream yields, discarded ones too, with its number among
        the items of all ranks. `stream_state` is used if it is at or before the item.
        """
        begin = getattr(self._source, "begin", None)
        if callable(begin):
            begin(epoch, self._seed)
        if self.is_indexed:
            self._source_items = self._count_source_items()
            self._shard.check_source(self._source_items)
            self._item_count = self._shard.count_items(self._source_items)
            return
        if self.is_single_pass and self._was_read:
            raise UsageError(READ_ONCE_MESSAGE)
        self._was_read = True
        stream: Iterable[Any] = self._source() if callable(self._source) else self._source
        if stream_state is not None and stream_state[0] > item * self._shard.world_size:
            stream_state = None
        read_count, state = stream_state or (0, None)
        self._announced = _AnnouncedStream(self._position.open(stream, state), begin_stream_item, read_count)
        # Items that were read before the state was taken are None, at 10 ns each: so limit and shard count as always.
        whole_stream = itertools.chain(itertools.repeat(None, read_count), self._announced)
        self._iterator = self._shard_stream(itertools.islice(whole_stream, self._limit), item)

    @property
    def saves_state(self) -> bool:
        """Whether `take_state` may give a state."""
        return self._position.is_saved

    def take_state(self) -> StreamState | None:
        """Return the state of the stream after the item read last; None, after a warning, if it cannot be saved."""
        state = self._position.take()
        return None if state is None else (self._announced.next_number, state)

    def _shard_stream(self, stream: Iterator[Any], first_item: int) -> Iterator[Any]:
        """Return this rank's items of a stream, from its item `first_item` on."""
        shard = self._shard
        if shard.even == "pad":
            message = (
                "even='pad' needs a source with __len__ and __getitem__, but this one is a stream of unknown length; "
                "use even='drop'"
            )
            raise UsageError(message)
        if shard.even == "drop" and shard.world_size > 1:
            return _iter_full_rounds(stream, shard, first_item)
        return shard.slice_stream(stream, first_item)

    def read(self, item: int) -> Any:
        """Return item `item`, or END_OF_SOURCE after the last one. A stream ignores the number: it has a next item."""
        if self.is_indexed:
            return self._read_indexed(item)
        for value in self._iterator:
            self.item_samples = self._count_samples(value)
            return value
        return END_OF_SOURCE

    def read_chunk(self, item: int, count: int) -> IndexChunk | None:
        """Return the next `count` items of a dataset's indices, fewer at the end; None where they go one by one."""
        read_indices = getattr(self._source, "read_indices", None)
        count = min(count, self._item_count - item)
        if read_indices is None or count <= 1:
            return None
        numbers: Sequence[int] = range(item, item + count)
        if self._shard != UNSHARDED:
            numbers = [self._shard.to_source_index(number, self._source_items) for number in numbers]
        indices = read_indices(numbers)
        return None if indices is None else IndexChunk(indices)

    def _read_indexed(self, item: int) -> Any:
        if item >= self._item_count:
            return END_OF_SOURCE
        try:
            value = self._source[self._shard.to_source_index(item, self._source_items)]
            self.item_samples = self._count_samples(value)
        except StopIteration as stop_error:  # an error of the source, not the end of the epoch
            message = "the source raised StopIteration"
            raise RuntimeError(message) from stop_error
        return value


def _count_one_sample(_: Any) -> int:
    """Count an item as one sample: the default for a source without `count_samples`."""
    return 1


def _iter_full_rounds(stream: Iterator[Any], shard: Shard, first_item: int) -> Iterator[Any]:
    """Yield this rank's item of each round in which every rank gets one. Other ranks' items are freed at once."""
    stream = itertools.islice(stream, first_item * shard.world_size, None)
    while True:
        own_item: list[Any] = []
        for rank in range(shard.world_size):
            for value in stream:
                if rank == shard.rank:
                    own_item.append(value)
                break
            else:
                return
        value = None
        yield own_item.pop()


class SourceRunner:
    """Reads items and pushes them into the stages fused to the source.

    Only an indexed source can read an item again, or continue after one that fails.
    """

    def __init__(
        self, reader: SourceReader, stages: list[StageRunner], output: ChainOutput, region: ProcessRegion | None = None
    ) -> None:
        """`reader` reads the target of `stages[0]`, the source; the other stages are fused to it."""
        self._reader = reader
        self._output = output
        self._stage = stages[0]
        self._stage.refuses_none = self._stage.refuses_none and not reader.passes_none
        self._stage.skips_failures = self._stage.skips_failures and reader.is_indexed
        is_retried = reader.is_indexed and self._stage.plan.retries
        self._chain = StageChain(stages, output, region, self._read_with_retries if is_retried else self._read)

    def seek(
        self,
        epoch: int,
        item: int,
        forced_skips: Iterable[ForcedSkip] = (),
        stream_state: StreamState | None = None,
    ) -> None:
        """Go to item `item` of an epoch. `forced_skips` are skipped; see `StageChain.set_forced_skips`.

        A stream that saves its state is read on from `stream_state`.
        """
        self._chain.set_forced_skips(forced_skips)
        self._stage.seed_epoch()
        self._reader.seek(epoch, item, self._stage.seed_source_item, stream_state)

    def step(self, item: int) -> bool:
        """Read item `item`, which is the next, and push it into the chain; False at the end of the epoch."""
        key = (item,)
        result = self._chain.run_first(key)
        if result is END_OF_SOURCE:
            return False
        if result is not SKIP:
            box = [result]
            del result
            self._chain.push(key, box, self._reader.item_samples, b"", 1)
        return True

    def step_chunk(self, item: int, count: int) -> int:
        """Send up to `count` items from `item` on as one chunk; return how many, 0 where they must go one by one.

        Only for a source alone in its process. The caller knows that no item of them is to be skipped.
        """
        stage = self._stage
        chunk = stage.run_timed((item,), partial(self._reader.read_chunk, item, count))
        if chunk is None:
            return 0
        read_items = len(chunk.indices)
        stage.count_items(item, read_items)
        self._output.send_item((item,), [chunk], read_items, b"")
        return read_items

    def _read(self, key: Key, _: Box) -> Any:
        stage, reader = self._stage, self._reader
        if reader.is_indexed and reader.may_draw:  # a stream seeds each item itself, those that it discards too
            stage.seed_item(key)
        result = stage.run_timed(key, partial(reader.read, key[0]))
        if result is None and stage.refuses_none:
            raise stage.make_none_error(key, "returned" if reader.is_indexed else "yielded")
        if result is not END_OF_SOURCE:
            stage.count_item(key)
        return result

    def _read_with_retries(self, key: Key, box: Box) -> Any:
        return call_with_retries(self._stage, partial(self._read, key, box), box, list)
