"""Order points with `order: any`. In the order point's own worker.

The first order point groups leaves in the order of arrival. Those after it work in order, and pass on the lineage that
the first one wrote (see `protocol/unordered_lineage.py`). A seek can ask the first one to rebuild some groups from the
same leaves; leaves that arrive meanwhile and belong to none of these groups are buffered.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Set as AbstractSet
from typing import Any

from msgspec.structs import replace

from stagepipe.core import Cursor, ImposedSkip, Key
from stagepipe.runtime.execution import Box, StageError
from stagepipe.runtime.protocol import (
    LeafGroup,
    UnorderedLineage,
    detach_root,
    extract_root,
    pack_lineage,
    unpack_unordered_lineage,
)
from stagepipe.runtime.worker.order_point import OrderPointRole
from stagepipe.transport import PacketKind, ReceivedPacket, ReorderBuffer

BufferedLeaf = tuple[Key, Box, int]
"""A leaf that waits for its group: key, box, samples."""


def select_order_point_role(any_order: bool, input_segment: int) -> type[OrderPointRole]:  # noqa: FBT001 - the plan's attribute
    """Return the role class of an order point that reads `input_segment`."""
    if not any_order:
        return OrderPointRole
    return DownstreamOrderPointRole if input_segment else UnorderedOrderPointRole


class _ReplayGroup:
    """A group that must be rebuilt from the same leaves, in the same order."""

    def __init__(self, group: LeafGroup) -> None:
        self._missing_indices = {key: index for index, key in enumerate(group)}
        self._leaves: list[BufferedLeaf | None] = [None] * len(group)

    def accept(self, leaf: BufferedLeaf) -> bool:
        """Take the leaf if it belongs to the group; return whether it does."""
        index = self._missing_indices.pop(leaf[0], None)
        if index is not None:
            self._leaves[index] = leaf
        return index is not None

    def drop_missing(self) -> None:
        """Complete the group without the leaves that are still missing."""
        self._missing_indices.clear()

    @property
    def is_complete(self) -> bool:
        return not self._missing_indices

    @property
    def leaves(self) -> list[BufferedLeaf]:
        return [leaf for leaf in self._leaves if leaf is not None]


class UnorderedOrderPointRole(OrderPointRole):
    """The first order point: it groups leaves in the order of arrival."""

    def _reset(self, cursor: Cursor, first_number: int) -> None:
        super()._reset(cursor, first_number)
        self._reorder = ReorderBuffer(cursor.item, None, any_order=True, emitted_keys=cursor.emitted_keys)
        self._replay_groups = deque(_ReplayGroup(group) for group in cursor.replay_groups)
        self._buffered_leaves: deque[BufferedLeaf] = deque()
        self._group_keys: list[Key] = []
        self._keys_by_identity: dict[int, deque[Key]] = {}  # of a group's items, for a permutation

    def _finish_item(self, item: int, meta: bytes) -> None:
        """Do nothing: the reorder buffer tracks the lowest open item."""

    def _process_leaf(self, packet: ReceivedPacket, box: Box) -> None:
        if packet.kind != PacketKind.ITEM:
            return
        leaf = (packet.key, box, packet.samples)
        if not self._replay_groups:
            self._add_leaf(*leaf)
        elif any(group.accept(leaf) for group in self._replay_groups):
            self._emit_replay_groups()
        else:
            self._buffered_leaves.append(leaf)

    def _emit_replay_groups(self) -> None:
        """Emit complete replay groups in their order; after the last one, group the buffered leaves."""
        while self._replay_groups and self._replay_groups[0].is_complete:
            for key, box, samples in self._replay_groups.popleft().leaves:
                self._group_keys.append(key)
                self._add_to_group(key, box, samples)
            self._emit_group(is_last=False)
        while self._buffered_leaves and not self._replay_groups:
            self._add_leaf(*self._buffered_leaves.popleft())

    def _add_leaf(self, key: Key, box: Box, samples: int) -> None:
        self._group_keys.append(key)
        if self._add_to_group(key, box, samples):
            self._emit_group(is_last=False)

    def _add_to_group(self, key: Key, box: Box, samples: int) -> bool:
        if self._grouping.is_permutation:
            self._keys_by_identity.setdefault(id(box[0]), deque()).append(key)
        return super()._add_to_group(key, box, samples)

    def _emit_group(self, *, is_last: bool) -> None:
        self._group_start = Cursor(None, self._next_number)
        keys = tuple(self._group_keys)
        self._group_keys = []
        outputs = self._flush_group(is_last=is_last)
        if self._grouping.is_permutation:
            self._emit_each_output(outputs)
        elif len(outputs) > 1:
            raise self._fail_group(f"returned {len(outputs)} outputs of one group; return one, or use `order: source`")
        elif outputs:
            ((value, samples),) = outputs
            outputs.clear()
            self._queue_output([value], samples, self._pack_group_lineage((keys,), self._compute_low_watermark()))

    def _emit_each_output(self, outputs: list[tuple[Any, int]]) -> None:
        """Queue a shuffled block, each output as its own group, so that the rest can be shuffled again after a seek."""
        keys = self._take_output_keys(outputs)
        low_watermark, watermarks = self._compute_low_watermark(), []
        for key in keys:  # from the last to the first: an item is open until its output is sent
            watermarks.append(low_watermark)
            low_watermark = min(low_watermark, key[0])
        while outputs:
            value, samples = outputs.pop()
            self._queue_output([value], samples, self._pack_group_lineage(((keys.pop(),),), watermarks.pop()))
            del value

    def _take_output_keys(self, outputs: list[tuple[Any, int]]) -> list[Key]:
        """Return the key of each output, which is one of the group's items: the same object."""
        keys_by_identity = self._keys_by_identity
        self._keys_by_identity = {}
        item_counts = {identity: len(keys) for identity, keys in keys_by_identity.items()}
        if Counter(id(value) for value, _ in outputs) != item_counts:
            raise self._fail_group("has `is_permutation = True`, but did not return exactly the items it was given")
        return [keys_by_identity[id(value)].popleft() for value, _ in outputs]

    def _fail_group(self, problem: str) -> StageError:
        return self._stage.record_failure((self._next_number,), ValueError(f"with `order: any`, this stage {problem}"))

    def _pack_group_lineage(self, consumed_groups: tuple[LeafGroup, ...], low_watermark: int) -> bytes:
        return pack_lineage(UnorderedLineage(low_watermark=low_watermark, consumed_groups=consumed_groups))

    def _compute_low_watermark(self) -> int:
        """Return the lowest item that is not known to be complete, or of which a leaf is not sent yet."""
        waiting_items = [leaf[0][0] for group in self._replay_groups for leaf in group.leaves]
        return min([self._reorder.next_item, *waiting_items, *(leaf[0][0] for leaf in self._buffered_leaves)])

    def _finish_segment(self) -> None:
        for group in self._replay_groups:  # a stage has dropped the missing leaves this time
            group.drop_missing()
        self._emit_replay_groups()
        super()._finish_segment()


class DownstreamOrderPointRole(OrderPointRole):
    """An order point after the first: it works in order, on groups whose lineage names their leaves."""

    def _reset(self, cursor: Cursor, first_number: int) -> None:
        super()._reset(cursor, first_number)
        root = extract_root(cursor, self._input_segment)
        self._cursor = self._group_start = detach_root(self._cursor, self._input_segment) or Cursor()
        self._low_watermark = self._group_start_watermark = root.item
        self._consumed_groups: list[LeafGroup] = []
        self._open_groups = root.replay_groups
        self._has_exact_order = True
        self._current_lineage: UnorderedLineage | None = None

    def _finish_item(self, item: int, meta: bytes) -> None:
        if item < self._cursor.item:  # a whole item, which ended with its only leaf
            return
        lineage = self._current_lineage or unpack_unordered_lineage(meta)
        self._consumed_groups += lineage.consumed_groups
        self._low_watermark = lineage.low_watermark
        self._has_exact_order = self._has_exact_order and lineage.has_exact_order
        self._open_groups = self._open_groups if lineage.open_groups is None else lineage.open_groups
        self._group_skips |= lineage.skips
        self._cursor = Cursor(lineage.resume_cursor, item + 1)
        self._current_lineage = None

    def _process_leaf(self, packet: ReceivedPacket, box: Box) -> None:
        new_skips = {self._record_skip(packet)} if packet.kind == PacketKind.ERROR_SKIP else frozenset[ImposedSkip]()
        if len(packet.key) == 1:
            self._finish_item(packet.key[0], packet.meta)
        else:
            self._process_part(packet, new_skips)
        if packet.kind == PacketKind.ITEM and self._add_to_group(packet.key, box, packet.samples):
            self._emit_group(is_last=False)

    def _process_part(self, packet: ReceivedPacket, new_skips: AbstractSet[ImposedSkip]) -> None:
        skips = self._cursor.skips | new_skips
        if self._current_lineage is None:
            self._current_lineage = unpack_unordered_lineage(packet.meta)
            self._group_skips |= self._current_lineage.skips
            skips |= self._current_lineage.skips
        self._cursor = replace(self._cursor, item=packet.key[0], last_key=packet.key, skips=skips)

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
