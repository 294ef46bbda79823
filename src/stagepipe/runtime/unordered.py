"""Order points under `order: any`. The first takes what comes; those behind it pass on what that one says.

See `groups` for what they say. The first can be told to make some groups as they were; what comes meanwhile and does
not belong to them waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet
from typing import Any

from stagepipe.core import Cursor, Key, Skip
from stagepipe.runtime.chain import Box
from stagepipe.runtime.groups import Group, Made, pack_made, root_of, unpack_made, without_root
from stagepipe.runtime.ordering import OrderRole
from stagepipe.transport import Kind, Received, Reorder

Leaf = tuple[Key, Box, int]
"""A leaf that waits: key, value, samples."""


def order_role(any_order: bool, reads: int) -> type[OrderRole]:  # noqa: FBT001 - the plan's word
    """The role of an order point that reads that stretch."""
    if not any_order:
        return OrderRole
    return BehindRole if reads else FirstRole


class _Imposed:
    """A group that must be made of these leaves, in this order."""

    def __init__(self, group: Group) -> None:
        self._places = {key: at for at, key in enumerate(group)}
        self._leaves: list[Leaf | None] = [None] * len(group)

    def take(self, leaf: Leaf) -> bool:
        """Whether the leaf belongs to it."""
        at = self._places.pop(leaf[0], None)
        if at is not None:
            self._leaves[at] = leaf
        return at is not None

    def close(self) -> None:
        """Nothing more will come."""
        self._places.clear()

    @property
    def whole(self) -> bool:
        return not self._places

    @property
    def leaves(self) -> list[Leaf]:
        return [leaf for leaf in self._leaves if leaf is not None]


class FirstRole(OrderRole):
    """The first order point: its groups are of the leaves that came first."""

    def _begin(self, cursor: Cursor, number: int) -> None:
        super()._begin(cursor, number)
        self._reorder = Reorder(cursor.item, None, any_order=True, out=cursor.out)
        self._imposed = deque(_Imposed(group) for group in cursor.groups)
        self._waiting: deque[Leaf] = deque()
        self._keys: list[Key] = []

    def _end_item(self, item: int, meta: bytes) -> None:
        """The lowest open item is the reordering's to know."""

    def _leaf(self, packet: Received, box: Box) -> None:
        if packet.kind != Kind.ITEM:
            return
        leaf = (packet.key, box, packet.samples)
        if not self._imposed:
            self._collect(*leaf)
        elif any(group.take(leaf) for group in self._imposed):
            self._impose()
        else:
            self._waiting.append(leaf)

    def _impose(self) -> None:
        """Make what is whole of the groups that come first; behind them all goes on as it comes."""
        while self._imposed and self._imposed[0].whole:
            for key, box, samples in self._imposed.popleft().leaves:
                self._keys.append(key)
                self._add(key, box, samples)
            self._give(finished=False)
        while self._waiting and not self._imposed:
            self._collect(*self._waiting.popleft())

    def _collect(self, key: Key, box: Box, samples: int) -> None:
        self._keys.append(key)
        if self._add(key, box, samples):
            self._give(finished=False)

    def _add(self, key: Key, box: Box, samples: int) -> bool:
        if self._grouping.keeps_items:  # so that it can be said which output is which
            box.append((key, box.pop()))
        return super()._add(key, box, samples)

    def _give(self, *, finished: bool) -> None:
        self._group_begins = Cursor(None, self._number)
        keys, self._keys = tuple(self._keys), []
        outputs = self._flushed(finished=finished)
        if self._grouping.keeps_items:
            self._give_each(outputs)
        elif outputs:
            ((value, samples),) = outputs
            outputs.clear()
            self._send_later([value], samples, self._made((keys,), self._floor()))

    def _give_each(self, outputs: list[tuple[Any, int]]) -> None:
        """A shuffled block: each of its outputs is a group of its own, so that the rest can be shuffled anew."""
        floor, floors = self._floor(), []
        for (key, _), _ in outputs:  # from the last to the first: until it is out, its item is open
            floors.append(floor)
            floor = min(floor, key[0])
        while outputs:
            (key, value), samples = outputs.pop()
            self._send_later([value], samples, self._made(((key,),), floors.pop()))
            del value

    def _made(self, groups: tuple[Group, ...], floor: int) -> bytes:
        return pack_made(Made(None, floor, groups, ()))

    def _floor(self) -> int:
        """The lowest item of which something is not given out yet, or not known to be closed."""
        waiting = [leaf[0][0] for group in self._imposed for leaf in group.leaves]
        return min([self._reorder.item, *waiting, *(leaf[0][0] for leaf in self._waiting)])

    def _finish(self) -> None:
        for group in self._imposed:  # what is missing now, a stage has dropped this time
            group.close()
        self._impose()
        super()._finish()


class BehindRole(OrderRole):
    """An order point behind the first: in order, of groups that say what they were made of."""

    def _begin(self, cursor: Cursor, number: int) -> None:
        super()._begin(cursor, number)
        root = root_of(cursor, self._reads)
        self._place = self._group_begins = without_root(self._place, self._reads) or Cursor()
        self._floor = self._begin_floor = root.item
        self._used: list[Group] = []
        self._held = root.groups
        self._exact = True
        self._current: Made | None = None

    def _end_item(self, item: int, meta: bytes) -> None:
        if item < self._place.item:  # it was whole, and ended with its only leaf
            return
        made = self._current or unpack_made(meta)
        self._used += made.groups
        self._floor, self._exact = made.floor, self._exact and made.exact
        self._held = self._held if made.held is None else made.held
        self._skips |= made.skips
        self._place, self._current = Cursor(made.after, item + 1), None

    def _leaf(self, packet: Received, box: Box) -> None:
        skip = {self._skip_of(packet)} if packet.kind == Kind.SKIP else frozenset[Skip]()
        if len(packet.key) == 1:
            self._end_item(packet.key[0], packet.meta)
        else:
            self._part(packet, skip)
        if packet.kind == Kind.ITEM and self._add(packet.key, box, packet.samples):
            self._give(finished=False)

    def _part(self, packet: Received, skip: AbstractSet[Skip]) -> None:
        skips = self._place.skips | skip
        if self._current is None:
            self._current = unpack_made(packet.meta)
            self._skips |= self._current.skips
            skips |= self._current.skips
        self._place = self._place._replace(item=packet.key[0], last=packet.key, skips=skips)

    def _meta(self, at: int, count: int, skips: frozenset[Skip]) -> bytes:
        held, made = self._held, self._current
        if made is not None:
            held = (*made.groups, *(held if made.held is None else made.held))
        if at == count - 1:
            return pack_made(Made(self._place, self._floor, tuple(self._used), held, self._exact, skips))
        begun = (*self._used, *held) if at == self._emitted else None
        place = self._group_begins._replace(emitted=at + 1, skips=skips)
        return pack_made(Made(place, self._begin_floor, (), begun, self._exact, skips))

    def _give(self, *, finished: bool) -> None:
        super()._give(finished=finished)
        self._used, self._begin_floor, self._exact = [], self._floor, True
