"""The work of an order point: it groups leaves. In the order point's worker and inline.

A group's outputs wait in `pending_outputs` until they are sent. Each has its lineage, with the cursor that reproduces
everything after it.

With `order: any`, the first order point groups leaves in the order of arrival. Later order points work in order, and
pass on the lineage that the first one wrote (see `protocol/lineage.py`). A seek can ask the first one to rebuild some
groups from the same leaves. Leaves that arrive meanwhile and belong to none of these groups are buffered.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from stagepipe.core import SKIP, Cursor, ImposedSkip, Key
from stagepipe.runtime.execution.chain import Box
from stagepipe.runtime.execution.errors import StageError
from stagepipe.runtime.execution.stage import StageRunner
from stagepipe.runtime.protocol import (
    LeafGroup,
    OutputLineage,
    SampleChunk,
    UnorderedLineage,
    detach_root,
    extract_root,
    pack_lineage,
    unpack_lineage,
    unpack_unordered_lineage,
)
from stagepipe.transport import shift_key


class PendingOutput(NamedTuple):
    """An output of an order point that is not sent yet. `meta` is its packed lineage."""

    number: int
    box: Box
    samples: int
    meta: bytes


class OrderedGrouping:
    """Takes leaves in order and groups them.

    The groupings for `order: any` override `seek`, `add_item`, `drop_item`, `finish_item`, `finish_segment`,
    `_collect`, `_emit_group` and `_pack_output_lineage`.
    """

    takes_any_order = False
    """Whether leaves come in the order of arrival."""

    def __init__(self, stage: StageRunner, input_segment: int) -> None:
        """The target of `stage` does the grouping."""
        self._stage = stage
        self._input_segment = input_segment
        self.pending_outputs: deque[PendingOutput] = deque()
        self.next_number = 0
        """The number of the next output, among the items of the next segment."""

    def seek(self, cursor: Cursor, first_number: int) -> None:
        """Start at `cursor`, with output `first_number`."""
        self._target: Any = self._stage.order_point  # a stateful stage has been rebuilt
        self._target.clear()
        self.pending_outputs.clear()
        self.next_number = first_number
        self._emitted_outputs = cursor.emitted_count
        self._cursor = self._group_start = replace(cursor, emitted_count=0)
        self._group_skips = set(cursor.skips)
        self._source_begin: int | None = None  # first source item of the group; `_source_end` is after its last
        self._source_end = 0
        self._lineage = OutputLineage()
        self._lineage_item = -1

    def add_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Add the next leaf to its group. `meta` is the lineage of its item, from the order point before."""
        self._advance(key, meta, frozenset())
        source_begin, self._source_end = key[0], key[0] + 1
        if self._input_segment:
            source_begin, self._source_end = self._lineage.source_begin, self._lineage.source_end
        self._source_begin = source_begin if self._source_begin is None else self._source_begin
        if self._collect(key, box, samples):
            self._emit_group(is_last=False)

    @property
    def adds_plainly(self) -> bool:
        """Whether an item of the source needs only a call of the target."""
        return not self._input_segment and not self.takes_any_order and self._stage.groups_plainly

    def add_value(self, key: Key, value: Any) -> None:
        """Do `add_item` for a whole item of one sample, if `adds_plainly`."""
        self._cursor = Cursor(self._cursor.upstream, key[0], key, 0, self._cursor.skips)
        self._source_begin = key[0] if self._source_begin is None else self._source_begin
        self._source_end = key[0] + 1
        if self._stage.run_item(key, self._target.add, value, 1):
            self._emit_group(is_last=False)

    def add_values(
        self,
        key: Key,
        values: list[Any] | SampleChunk,
        on_item: Callable[[Key], None],
        *,
        passes_rows_on: bool = False,
    ) -> None:
        """Add the leaves of a chunk from `key` on, as `add_item` does, with `finish_item` between two items.

        SKIP stands for a dropped leaf. `on_item` is called with each key before its value is added, except for rows,
        which run no user code. Rows are only passed if the target is `Batch`; see there for `passes_rows_on`.
        """
        if len(key) > 1 or not self.adds_plainly:
            self._add_values_singly(key, values, on_item)
            return
        item = key[0]
        index = 0

        def add_together() -> tuple[int, bool]:
            if isinstance(values, SampleChunk):
                target = self._target
                return target.add_rows(values.rows, index, values.count, passes_on=passes_rows_on), target.is_full
            return self._add_until_full(item, values, index, on_item)

        while index < len(values):
            if index:
                self.finish_item(item + index - 1, b"")
            if isinstance(values, list) and values[index] is SKIP:
                self.drop_item((item + index,), b"", None)
                index += 1
            else:
                index += self._add_together(item + index, add_together)

    def _add_values_singly(self, key: Key, values: Iterable[Any], on_item: Callable[[Key], None]) -> None:
        for index, value in enumerate(values):
            leaf = shift_key(key, index)
            if index and len(leaf) == 1:
                self.finish_item(leaf[0] - 1, b"")
            if value is SKIP:
                self.drop_item(leaf, b"", None)
            else:
                on_item(leaf)
                self.add_item(leaf, [value], 1, b"")

    def _add_until_full(
        self, item: int, values: list[Any], start: int, on_item: Callable[[Key], None]
    ) -> tuple[int, bool]:
        """Add values from `start` on to the group. Returns their number, and whether the group is complete.

        A value that fails is left to the next call, which raises its error.
        """
        add = self._target.add
        for index in range(start, len(values)):
            value = values[index]
            if value is SKIP:
                return index - start, False
            on_item((item + index,))
            try:
                is_full = add(value, 1)
            except Exception:
                if index == start:
                    raise
                return index - start, False
            if is_full:
                return index + 1 - start, True
        return len(values) - start, False

    def _add_together(self, item: int, add: Callable[[], tuple[int, bool]]) -> int:
        """Add whole items from `item` on, as many as fit the group. Returns their number.

        `add` adds them and returns their number, and whether the group is complete.
        """
        self._advance((item,), b"", frozenset())
        self._source_begin = item if self._source_begin is None else self._source_begin
        count, is_full = self._stage.run_timed((item,), add)
        self._stage.count_items(item, count, self._stage.last_timed_ns // count)
        self._source_end = item + count
        if count > 1:
            last = item + count - 1
            self._cursor = Cursor(self._cursor.upstream, last, (last,))
        if is_full:
            self._emit_group(is_last=False)
        return count  # type: ignore[no-any-return]

    def drop_item(self, key: Key, meta: bytes, skip: ImposedSkip | None) -> None:
        """Move past a leaf without an item. A failed leaf is a skip, which must recur if the group is rebuilt."""
        self._advance(key, meta, self._record_skip(skip))

    def finish_item(self, item: int, meta: bytes) -> None:
        """Move past an item whose leaves have all come."""
        upstream = self._read_lineage(item, meta).resume_cursor if self._input_segment else None
        self._cursor = Cursor(upstream, item + 1)

    def finish_segment(self) -> None:
        """Emit the last group."""
        self._emit_group(is_last=True)

    def _advance(self, key: Key, meta: bytes, new_skips: frozenset[ImposedSkip]) -> None:
        skips = self._cursor.skips | new_skips if new_skips else self._cursor.skips
        if self._input_segment and self._lineage_item != key[0]:
            skips |= self._read_lineage(key[0], meta).skips
        self._cursor = Cursor(self._cursor.upstream, key[0], key, 0, skips)

    def _read_lineage(self, item: int, meta: bytes) -> OutputLineage:
        """Return an item's lineage from the order point before. Skips that shaped the item also shape the group."""
        if self._lineage_item != item:
            self._lineage = unpack_lineage(meta)
            self._lineage_item = item
            self._group_skips |= self._lineage.skips
        return self._lineage

    def _record_skip(self, skip: ImposedSkip | None) -> frozenset[ImposedSkip]:
        skips = frozenset[ImposedSkip]() if skip is None else frozenset((skip,))
        self._group_skips |= skips
        return skips

    def _collect(self, key: Key, box: Box, samples: int) -> bool:
        """Add a leaf to the group. Returns whether the group is complete."""
        is_complete: bool = self._stage.run_timed(key, lambda: self._add(key, box, samples))
        self._stage.count_item(key)
        return is_complete

    def _add(self, key: Key, box: Box, samples: int) -> bool:
        if self._stage.seeds_grouping:
            self._stage.seed_item(key)
        return self._target.add(box.pop(), samples)  # type: ignore[no-any-return]

    def _flush_group(self, *, is_last: bool) -> list[tuple[Any, int]]:
        """Return the group's outputs, in reverse order."""
        start = self._group_start
        rng = self._stage.seed_group(start.item, start.last_key)
        flush = self._target.finish if is_last else self._target.flush
        outputs: list[tuple[Any, int]] = self._stage.run_timed((start.item,), partial(flush, rng))
        outputs.reverse()
        return outputs

    def _queue_output(self, box: Box, samples: int, meta: bytes) -> None:
        self.pending_outputs.append(PendingOutput(self.next_number, box, samples, meta))
        self.next_number += 1

    def _emit_group(self, *, is_last: bool) -> None:
        """Queue the outputs of a complete group, each with the cursor that reproduces everything after it."""
        outputs = self._flush_group(is_last=is_last)
        skips = frozenset(self._group_skips)
        group_outputs = len(outputs)
        for index in range(group_outputs):
            value, samples = outputs.pop()
            if index >= self._emitted_outputs:
                self._queue_output([value], samples, self._pack_output_lineage(index, group_outputs, skips))
            del value
        self._group_start = self._cursor
        self._emitted_outputs = 0
        self._group_skips = set(self._cursor.skips)
        self._source_begin = None

    def _pack_output_lineage(self, index: int, group_outputs: int, skips: frozenset[ImposedSkip]) -> bytes:
        """Return the packed lineage of output `index` of a group of `group_outputs`."""
        is_last = index == group_outputs - 1
        resume_cursor = self._cursor if is_last else replace(self._group_start, emitted_count=index + 1, skips=skips)
        return pack_lineage(OutputLineage(resume_cursor, self._source_begin or 0, self._source_end, skips))


BufferedLeaf = tuple[Key, Box, int]
"""A leaf that waits for its group: key, box, samples."""


def make_grouping(
    stage: StageRunner, input_segment: int, get_next_item: Callable[[], int], *, any_order: bool
) -> OrderedGrouping:
    """Return the grouping of an order point that reads `input_segment`.

    `get_next_item` returns the lowest item that may still have leaves to come.
    """
    if not any_order:
        return OrderedGrouping(stage, input_segment)
    return DownstreamGrouping(stage, input_segment) if input_segment else ArrivalGrouping(stage, get_next_item)


class _ReplayGroup:
    """A group that must be rebuilt from the same leaves, in the same order."""

    def __init__(self, group: LeafGroup) -> None:
        self._missing_indices = {key: index for index, key in enumerate(group)}
        self._leaves: list[BufferedLeaf | None] = [None] * len(group)

    def accept(self, leaf: BufferedLeaf) -> bool:
        """Take the leaf if it belongs to the group. Returns whether it does."""
        index = self._missing_indices.pop(leaf[0], None)
        if index is not None:
            self._leaves[index] = leaf
        return index is not None

    def drop_missing(self) -> None:
        """Complete the group without the missing leaves."""
        self._missing_indices.clear()

    @property
    def is_complete(self) -> bool:
        return not self._missing_indices

    @property
    def leaves(self) -> list[BufferedLeaf]:
        return [leaf for leaf in self._leaves if leaf is not None]


class ArrivalGrouping(OrderedGrouping):
    """The first order point: it groups leaves in the order of arrival."""

    takes_any_order = True

    def __init__(self, stage: StageRunner, get_next_item: Callable[[], int]) -> None:
        """See `make_grouping`."""
        super().__init__(stage, 0)
        self._get_next_item = get_next_item

    def seek(self, cursor: Cursor, first_number: int) -> None:
        """Start at `cursor`. Its groups are rebuilt first."""
        super().seek(cursor, first_number)
        self._replay_groups = deque(_ReplayGroup(group) for group in cursor.replay_groups)
        self._buffered_leaves: deque[BufferedLeaf] = deque()
        self._group_keys: list[Key] = []
        self._keys_by_identity: dict[int, deque[Key]] = {}  # keys of a group's items, for a permutation

    def finish_item(self, item: int, meta: bytes) -> None:
        """Do nothing, because `get_next_item` knows the complete items."""

    def drop_item(self, key: Key, meta: bytes, skip: ImposedSkip | None) -> None:
        """Do nothing, because the group does not depend on dropped leaves."""

    def add_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Add a leaf to the replay group that needs it, or to the next group."""
        del meta
        leaf = (key, box, samples)
        if not self._replay_groups:
            self._add_leaf(*leaf)
        elif any(group.accept(leaf) for group in self._replay_groups):
            self._emit_replay_groups()
        else:
            self._buffered_leaves.append(leaf)

    def _emit_replay_groups(self) -> None:
        """Emit complete replay groups in their order. After the last one, group the buffered leaves."""
        while self._replay_groups and self._replay_groups[0].is_complete:
            for key, box, samples in self._replay_groups.popleft().leaves:
                self._group_keys.append(key)
                self._collect(key, box, samples)
            self._emit_group(is_last=False)
        while self._buffered_leaves and not self._replay_groups:
            self._add_leaf(*self._buffered_leaves.popleft())

    def _add_leaf(self, key: Key, box: Box, samples: int) -> None:
        self._group_keys.append(key)
        if self._collect(key, box, samples):
            self._emit_group(is_last=False)

    def _collect(self, key: Key, box: Box, samples: int) -> bool:
        if self._target.is_permutation:
            self._keys_by_identity.setdefault(id(box[0]), deque()).append(key)
        return super()._collect(key, box, samples)

    def _emit_group(self, *, is_last: bool) -> None:
        self._group_start = Cursor(None, self.next_number)
        keys = tuple(self._group_keys)
        self._group_keys = []
        outputs = self._flush_group(is_last=is_last)
        if self._target.is_permutation:
            self._emit_each_output(outputs)
        elif len(outputs) > 1:
            raise self._fail_group(f"returned {len(outputs)} outputs of one group; return one, or set `order=source`")
        elif outputs:
            ((value, samples),) = outputs
            outputs.clear()
            self._queue_output([value], samples, self._pack_group_lineage((keys,), self._compute_low_watermark()))

    def _emit_each_output(self, outputs: list[tuple[Any, int]]) -> None:
        """Queue a shuffled block. Each output is its own group, so that the rest can be shuffled again after a seek."""
        keys = self._take_output_keys(outputs)
        low_watermark, watermarks = self._compute_low_watermark(), []
        for key in keys:  # in reverse: an item is open until its output is sent
            watermarks.append(low_watermark)
            low_watermark = min(low_watermark, key[0])
        while outputs:
            value, samples = outputs.pop()
            self._queue_output([value], samples, self._pack_group_lineage(((keys.pop(),),), watermarks.pop()))
            del value

    def _take_output_keys(self, outputs: list[tuple[Any, int]]) -> list[Key]:
        """Return the key of each output. Each output is one of the group's items, as the same object."""
        keys_by_identity = self._keys_by_identity
        self._keys_by_identity = {}
        item_counts = {identity: len(keys) for identity, keys in keys_by_identity.items()}
        if Counter(id(value) for value, _ in outputs) != item_counts:
            raise self._fail_group("has `is_permutation = True`, but did not return exactly the items it was given")
        return [keys_by_identity[id(value)].popleft() for value, _ in outputs]

    def _fail_group(self, problem: str) -> StageError:
        return self._stage.record_failure((self.next_number,), ValueError(f"with `order=any`, this stage {problem}"))

    def _pack_group_lineage(self, consumed_groups: tuple[LeafGroup, ...], low_watermark: int) -> bytes:
        return pack_lineage(UnorderedLineage(low_watermark=low_watermark, consumed_groups=consumed_groups))

    def _compute_low_watermark(self) -> int:
        """Return the lowest item that is not known to be complete, or that has an unsent leaf."""
        waiting_items = [leaf[0][0] for group in self._replay_groups for leaf in group.leaves]
        return min([self._get_next_item(), *waiting_items, *(leaf[0][0] for leaf in self._buffered_leaves)])

    def finish_segment(self) -> None:
        """Emit the remaining groups."""
        for group in self._replay_groups:  # a stage dropped the missing leaves this time
            group.drop_missing()
        self._emit_replay_groups()
        super().finish_segment()


class DownstreamGrouping(OrderedGrouping):
    """An order point after the first: it works in order, on groups whose lineage names their leaves."""

    def seek(self, cursor: Cursor, first_number: int) -> None:
        """Start at `cursor`, which is kept without its root."""
        super().seek(cursor, first_number)
        root = extract_root(cursor, self._input_segment)
        self._cursor = self._group_start = detach_root(self._cursor, self._input_segment) or Cursor()
        self._low_watermark = self._group_start_watermark = root.item
        self._consumed_groups: list[LeafGroup] = []
        self._open_groups = root.replay_groups
        self._has_exact_order = True
        self._current_lineage: UnorderedLineage | None = None

    def finish_item(self, item: int, meta: bytes) -> None:
        """Move past an item, unless its only leaf has done so already."""
        if item < self._cursor.item:
            return
        lineage = self._current_lineage or unpack_unordered_lineage(meta)
        self._consumed_groups += lineage.consumed_groups
        self._low_watermark = lineage.low_watermark
        self._has_exact_order = self._has_exact_order and lineage.has_exact_order
        self._open_groups = self._open_groups if lineage.open_groups is None else lineage.open_groups
        self._group_skips |= lineage.skips
        self._cursor = Cursor(lineage.resume_cursor, item + 1)
        self._current_lineage = None

    def add_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Add the next leaf to its group."""
        self._advance(key, meta, frozenset())
        if self._collect(key, box, samples):
            self._emit_group(is_last=False)

    def _advance(self, key: Key, meta: bytes, new_skips: frozenset[ImposedSkip]) -> None:
        if len(key) == 1:
            self.finish_item(key[0], meta)
            return
        skips = self._cursor.skips | new_skips if new_skips else self._cursor.skips
        if self._current_lineage is None:
            self._current_lineage = unpack_unordered_lineage(meta)
            self._group_skips |= self._current_lineage.skips
            skips |= self._current_lineage.skips
        self._cursor = replace(self._cursor, item=key[0], last_key=key, skips=skips)

    def _pack_output_lineage(self, index: int, group_outputs: int, skips: frozenset[ImposedSkip]) -> bytes:
        open_groups, lineage = self._open_groups, self._current_lineage
        if lineage is not None:
            still_open = open_groups if lineage.open_groups is None else lineage.open_groups
            open_groups = (*lineage.consumed_groups, *still_open)
        if index == group_outputs - 1:
            return pack_lineage(
                UnorderedLineage(
                    resume_cursor=self._cursor,
                    low_watermark=self._low_watermark,
                    consumed_groups=tuple(self._consumed_groups),
                    open_groups=open_groups,
                    has_exact_order=self._has_exact_order,
                    skips=skips,
                )
            )
        newly_open_groups = (*self._consumed_groups, *open_groups) if index == self._emitted_outputs else None
        resume_cursor = replace(self._group_start, emitted_count=index + 1, skips=skips)
        return pack_lineage(
            UnorderedLineage(
                resume_cursor=resume_cursor,
                low_watermark=self._group_start_watermark,
                open_groups=newly_open_groups,
                has_exact_order=self._has_exact_order,
                skips=skips,
            )
        )

    def _emit_group(self, *, is_last: bool) -> None:
        super()._emit_group(is_last=is_last)
        self._consumed_groups = []
        self._group_start_watermark = self._low_watermark
        self._has_exact_order = True
