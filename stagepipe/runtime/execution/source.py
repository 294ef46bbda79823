"""The source as the first stage of its process. It reads items and sends them, or pushes them into its fused stages.

In the source's process and inline. Reading can start at any item, from an indexed source, a repeatable stream, or a
stream that can be read only once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import getitem
from time import perf_counter_ns
from typing import Any, Final

from stagepipe.core import (
    SKIP,
    Key,
    SourceIdentity,
    StreamPosition,
    StreamState,
    UsageError,
    this_process,
)
from stagepipe.plan import UNSHARDED, Shard
from stagepipe.runtime.execution.chain import Box, ChainOutput, ChunkInHand, StageChain, call_with_retries
from stagepipe.runtime.execution.errors import StageError
from stagepipe.runtime.execution.stage import StageRunner, make_private_region
from stagepipe.runtime.protocol import ForcedSkip, UnbatchedRange
from stagepipe.timing import ProcessCounter, ProcessRegion

READ_ONCE_MESSAGE = (
    "the source is an iterator, which can be read only once; pass a function that returns a new one, or an object with "
    "__len__ and __getitem__"
)

_PACKAGES_THAT_DRAW_NO_ITEM: Final = frozenset({"builtins", __name__.partition(".")[0]})

_MAX_STEP_NS: Final = 1_000_000
"""The length of a step with several items. It is short, because seeks, stops and stream states wait for its end."""

_MIN_RECORDS: Final = 2
_MAX_RECORDS: Final = 64
"""The most records to read at once. More are hardly faster, and wait in memory for longer."""

END_OF_SOURCE: Final = object()
"""The result of a read after the last item."""


def _do_nothing(number: int) -> None:
    """Replace `begin_stream_item`."""


class _AnnouncedStream:
    """A stream that calls `begin_item` with an item's number before it yields the item.

    It is not a generator, which would keep a reference to the item until the next read.
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

    An indexed source (`is_indexed`) can return any item. A stream is read from its start, or from a saved state if it
    saves states; the items before the wanted one, and those of other ranks, are discarded. `item_samples` is the number
    of samples of the last item.
    """

    def __init__(self, source: Any, seed: int, limit: int | None, shard: Shard = UNSHARDED) -> None:
        """`source` is indexed (`__len__`, `__getitem__`), iterable, or a function that returns an iterable."""
        self._source = source
        self._seed = seed
        self._limit = limit
        self._shard = shard
        self.is_indexed = hasattr(source, "__len__") and hasattr(source, "__getitem__")
        self.may_draw = type(source).__module__.partition(".")[0] not in _PACKAGES_THAT_DRAW_NO_ITEM
        """Whether reading an item may draw random numbers. Built-in sources and lists draw only for their order."""
        self.is_single_pass = isinstance(source, Iterator)
        """Whether it can be read only once: not for a second epoch, and not by a successor of a dead worker."""
        self.passes_none = type(source) in {list, tuple}
        """Whether None is allowed as an item, because the user wrote it into a list."""
        self.gives_numbers = type(source) is range or hasattr(source, "read_indices")
        """Whether `read_together` returns numbers."""
        self._reads_together = self.gives_numbers or type(source) in {list, tuple}
        self._was_read = False
        self._iterator: Iterator[Any] = iter(())
        self._position = StreamPosition()
        self._announced = _AnnouncedStream(self._iterator, _do_nothing, 0)
        self._source_items = 0
        self._item_count = 0
        self.count_samples: Callable[[Any], int] | None = getattr(source, "count_samples", None)
        """Returns the samples of an item; None if each item counts as one."""
        self.item_samples = 1

    @property
    def epoch_items(self) -> int | None:
        """The items of an epoch on this rank; None for a stream."""
        return self._shard.count_items(self._count_source_items()) if self.is_indexed else None

    @property
    def declared_items(self) -> int | None:
        """The items of an epoch on this rank by `__len__`, even of a stream, which may differ; else None."""
        try:
            return self._shard.count_items(self._count_source_items())
        except Exception:  # a stream without a length, or whose `__len__` raises, still runs
            if self.is_indexed:
                raise
            return None

    def identify(self) -> SourceIdentity:
        """Return the identity of the data that the source reads now."""
        get_identity = getattr(self._source, "get_source_identity", None)
        if get_identity is not None:
            identity: SourceIdentity = get_identity()
            return identity
        return SourceIdentity(len(self._source)) if self.is_indexed else SourceIdentity()

    def _count_source_items(self) -> int:
        """Return the number of the source's items for all ranks together."""
        count = len(self._source)
        return count if self._limit is None else min(count, self._limit)

    def seek(
        self,
        epoch: int,
        item: int,
        begin_stream_item: Callable[[int], None] = _do_nothing,
        stream_state: StreamState | None = None,
    ) -> None:
        """Start at item `item` of an epoch. Raises UsageError if a read-once source is read a second time.

        `begin_stream_item` is called before each item of a stream, including discarded ones, with its number among the
        items of all ranks. `stream_state` is used if it is at or before the item.
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
        set_epoch = getattr(stream, "set_epoch", None)
        if callable(set_epoch) and not callable(begin):  # a training loop does this too, but has no access to this copy
            set_epoch(epoch)
        if stream_state is not None and stream_state[0] > item * self._shard.world_size:
            stream_state = None
        read_count, state = stream_state or (0, None)
        self._announced = _AnnouncedStream(self._position.open(stream, state), begin_stream_item, read_count)
        # Items before the state are replaced by None, at 10 ns each, so that limit and shard count correctly.
        whole_stream = itertools.chain(itertools.repeat(None, read_count), self._announced)
        self._iterator = self._shard_stream(itertools.islice(whole_stream, self._limit), item)

    @property
    def saves_state(self) -> bool:
        """Whether `take_state` may return a state."""
        return self._position.is_saved

    def take_state(self) -> StreamState | None:
        """Return the state of the stream after the last item; None, after a warning, if it cannot be saved."""
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
        if self.is_indexed and item >= self._item_count:
            return END_OF_SOURCE
        try:
            value = self.make_read()(item)
            if self.count_samples is not None and value is not END_OF_SOURCE:
                self.item_samples = self.count_samples(value)
        except StopIteration as error:
            raise make_stop_error(error) from error
        return value

    def make_read(self) -> Callable[[int], Any]:
        """Return the fastest `read` until the next seek. It does not check for the end, samples or StopIteration.

        It returns END_OF_SOURCE at the end of a stream.
        """
        if not self.is_indexed:
            iterator = self._iterator
            return lambda _: next(iterator, END_OF_SOURCE)
        if self._shard == UNSHARDED:
            return partial(getitem, self._source)
        source, total, to_source_index = self._source, self._source_items, self._shard.to_source_index
        return lambda item: source[to_source_index(item, total)]

    def limit_end(self, end: int) -> int:
        """Return `end`, limited to the number of items of an indexed source. A stream shows its end when it is read."""
        return min(end, self._item_count) if self.is_indexed else end

    def read_together(self, item: int, count: int) -> Sequence[Any]:
        """Return the next `count` items, fewer at the end; none if each item needs a call of user code."""
        count = self.limit_end(item + count) - item
        if count <= 1 or not self._reads_together:
            return ()
        numbers = self._locate(item, count)
        if hasattr(self._source, "read_indices"):
            return self._source.read_indices(numbers) or ()
        if isinstance(numbers, range):
            values: Sequence[Any] = self._source[numbers.start : numbers.stop : numbers.step]
            return values
        return [self._source[number] for number in numbers]

    def _locate(self, item: int, count: int) -> Sequence[int]:
        """Return the source's indices of consecutive items."""
        shard, total = self._shard, self._source_items
        first, last, step = (
            shard.to_source_index(item, total),
            shard.to_source_index(item + count - 1, total),
            shard.world_size,
        )
        if type(shard) is Shard and last - first == (count - 1) * step:
            return range(first, last + 1, step)
        return [shard.to_source_index(number, total) for number in range(item, item + count)]


def make_stop_error(stop_error: StopIteration) -> RuntimeError:
    """Return the error for a StopIteration during a read: an error of the source, not the end of the epoch."""
    error = RuntimeError("the source raised StopIteration")
    error.__cause__ = stop_error
    return error


def _iter_full_rounds(stream: Iterator[Any], shard: Shard, first_item: int) -> Iterator[Any]:
    """Yield this rank's item of each round in which every rank gets an item. Frees the items of other ranks at once."""
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
    """Reads items, and sends them or pushes them into the stages fused to the source.

    Only an indexed source can read an item again, or continue after an item that fails.
    """

    def __init__(
        self, reader: SourceReader, stages: list[StageRunner], output: ChainOutput, region: ProcessRegion | None = None
    ) -> None:
        """`reader` reads the target of `stages[0]`, the source; the other stages are fused to it.

        `region` is the region of the process; None inline.
        """
        self._reader = reader
        self._output = output
        self._add: Callable[[Any, Key], bool] | None = getattr(output, "add", None)
        """Takes an item of one sample into a message with others; returns False if `send_item` must take it."""
        self._add_all: Callable[[Sequence[Any], Key], bool] | None = getattr(output, "add_all", None)
        """Takes consecutive numbers from a key on; returns False if they must be sent one by one."""
        self._ready_items: Sequence[Any] = getattr(output, "ready_items", ())
        self._region = make_private_region(len(stages)) if region is None else region
        self._stage = stages[0]
        self._stage.refuses_none = self._stage.refuses_none and not reader.passes_none
        self._stage.skips_failures = self._stage.skips_failures and reader.is_indexed
        is_retried = reader.is_indexed and self._stage.plan.retries
        self._chain = StageChain(stages, output, self._region, self._read_with_retries if is_retried else self._read)
        self._is_alone = len(stages) == 1
        self._reads_records = not self._is_alone and getattr(stages[1].target, "draws_nothing", False)
        """Whether the items are indices of records that may be read early, because that runs no user code."""
        self._most_records = _MIN_RECORDS
        self._chunk: ChunkInHand | None = None
        self._takes_steps = bool(is_retried) or self._stage.trace is not None
        self._is_one_by_one = True
        self.next_item = 0
        """All earlier items were read, and sent or held by the output."""

    def seek(
        self,
        epoch: int,
        item: int,
        forced_skips: Sequence[ForcedSkip] = (),
        stream_state: StreamState | None = None,
        unbatched_ranges: Sequence[UnbatchedRange] = (),
    ) -> None:
        """Go to item `item` of an epoch. `forced_skips` are skipped; see `StageChain.set_forced_skips`.

        A stream that saves its state continues from `stream_state`.
        """
        self._chain.set_forced_skips(forced_skips, unbatched_ranges)
        self._is_one_by_one = self._takes_steps or any(skip.stage == self._stage.name for skip in forced_skips)
        self._stage.seed_epoch()
        self._reader.seek(epoch, item, self._stage.seed_source_item, stream_state)
        self.count_shares()
        self._chunk = None
        self.next_item = item
        self._region.clear_current_item((item,))

    @property
    def items_done(self) -> int:
        """The current `next_item`, even while `run` has several items in progress."""
        return max(self.next_item, self._region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] - 1)

    # ------------------------------------------------------------------ one item

    def step(self, item: int) -> bool:
        """Read item `item`, which must be the next, and push it into the chain; False at the end of the epoch."""
        key = (item,)
        result = self._chain.run_first(key)
        if result is END_OF_SOURCE:
            return False
        if result is not SKIP:
            box = [result]
            del result
            self._chain.push(key, box, self._reader.item_samples, b"", 1)
        self.next_item = item + 1
        return True

    def _read(self, key: Key, _: Box) -> Any:
        stage, reader = self._stage, self._reader
        if reader.is_indexed and reader.may_draw:  # a stream seeds each item itself, even discarded ones
            stage.seed_item(key)
        result = stage.run_timed(key, partial(reader.read, key[0]))
        if result is None and stage.refuses_none:
            raise self._make_none_error(key)
        if result is not END_OF_SOURCE:
            stage.count_item(key)
        return result

    def _read_with_retries(self, key: Key, box: Box) -> Any:
        return call_with_retries(self._stage, partial(self._read, key, box), box, list)

    def _make_none_error(self, key: Key) -> StageError:
        return self._stage.make_none_error(key, "returned" if self._reader.is_indexed else "yielded")

    # ------------------------------------------------------------------ several items

    def run(self, count: int) -> bool:
        """Read and send up to `count` items from `next_item` on; False at the end of the epoch.

        If a step's time ends before all items that were read together are sent, the next call sends the rest. Inline, a
        step ends when an item is ready for the caller. The board names each item before any user code runs for it.
        """
        first, stage = self.next_item, self._stage
        if self._is_one_by_one:
            return self._run_one_by_one(first + count)
        if self._chunk is None:
            count = min(count, self._most_records) if self._reads_records else count
            values = stage.run_timed((first,), partial(self._reader.read_together, first, count)) if count > 1 else ()
            if not values:
                return self._run_users_code(first + count)
            share_ns = stage.last_timed_ns // len(values)
            if self._is_alone and self._reader.gives_numbers and self._add_all and self._add_all(values, (first,)):
                stage.count_items(first, len(values), share_ns)
                self.next_item = first + len(values)
                return True
            self._chunk = chunk = ChunkInHand((first,), list(values))
            chunk.first_stage = 1
            chunk.shares_ns.append((stage, share_ns))
            if self._reads_records:
                self._read_records(chunk)
        chunk = self._chunk
        try:
            self._chain.push_chunk(chunk, self._region, _MAX_STEP_NS)
        finally:
            self.next_item = chunk.next_number
            if not chunk.values:
                chunk.count_shares()
                self._chunk = None
        return True

    def count_shares(self) -> None:
        """Count the items that were read together and have been run."""
        if self._chunk is not None:
            self._chunk.count_shares()

    def _read_records(self, chunk: ChunkInHand) -> None:
        """Read the records of a chunk of indices. Adapts the number of records to the time of a step."""
        started_ns = perf_counter_ns()
        self._chain.call_together(chunk, self._region)
        is_quick = 2 * (perf_counter_ns() - started_ns) < _MAX_STEP_NS
        self._most_records = min(2 * self._most_records, _MAX_RECORDS) if is_quick else _MIN_RECORDS

    def _run_one_by_one(self, end: int) -> bool:
        latest_ns = perf_counter_ns() + _MAX_STEP_NS
        while self.next_item < end and not self._ready_items:
            self._region.set_current_item((self.next_item,))
            if not self.step(self.next_item):
                return False
            if perf_counter_ns() > latest_ns:
                break
        return True

    def _run_users_code(self, end: int) -> bool:
        """Run items that each need a call of the source. Inlined, because each item would pay for a call."""
        reader, stage, word, ready_items = self._reader, self._stage, self._region.current_item_word, self._ready_items
        read, count_samples, refuses_none = reader.make_read(), reader.count_samples, stage.refuses_none
        seed = stage.seed_item if reader.is_indexed and reader.may_draw else None
        latest_ns = perf_counter_ns() + _MAX_STEP_NS
        own_pid, samples, add = this_process.pid, 1, self._add if self._is_alone else None
        first = self.next_item
        durations_ns: list[int] = []
        try:
            for item in range(first, reader.limit_end(end)):
                key = (item,)
                word[0] = item + 1
                if seed is not None:
                    seed(key)
                started_ns = perf_counter_ns()
                try:
                    value = read(item)
                    now_ns = perf_counter_ns()
                    if this_process.pid != own_pid:
                        stage.end_forked_child(key)
                    if value is END_OF_SOURCE:
                        return False
                    if count_samples is not None:
                        samples = count_samples(value)
                    if value is None and refuses_none:
                        raise self._make_none_error(key)  # noqa: TRY301 - skipped like any failed item
                except BaseException as error:  # noqa: BLE001 - any exception of a source is a failure of its item
                    stage.count_reads(first, durations_ns, perf_counter_ns() - started_ns)
                    durations_ns, first = [], item + 1
                    self._skip_failed(key, error)
                    self.next_item = item + 1
                    continue
                durations_ns.append(now_ns - started_ns)
                if value is SKIP or samples != 1 or add is None or not add(value, key):
                    box = [value]
                    del value
                    self._send(key, box, samples)
                self.next_item = item + 1
                if ready_items or (now_ns if add is not None else perf_counter_ns()) > latest_ns:
                    return True
            return self.next_item == end
        finally:
            stage.count_reads(first, durations_ns)

    def _send(self, key: Key, box: Box, samples: int = 1) -> None:
        """Send an item that the output's `add` does not take, or push it into the fused stages."""
        if box[0] is SKIP:
            self._stage.count_skipped()
            self._output.send_tombstone(key, samples, b"")
        elif self._is_alone:
            self._chain.send_alone(key, box, samples, b"")
        else:
            self._chain.push(key, box, samples, b"", 1)

    def _skip_failed(self, key: Key, error: BaseException) -> None:
        """Skip an item that cannot be read. Raises the error if the source does not skip failed items."""
        if isinstance(error, StopIteration):
            error = make_stop_error(error)
        failure = error if isinstance(error, StageError) else self._stage.record_failure(key, error)
        self._chain.skip_failed(key, failure, (1, b""))
