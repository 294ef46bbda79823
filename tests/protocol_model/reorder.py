"""Restoring the order: an order point holds what came early, and consumes leaves in the order of their keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from stagepipe.core import Cursor, Key
from tests.protocol_model.packets import Entry, EntryKind


class Reorder:
    """Accepts packets in any order and yields leaves in key order.

    An entry behind the cursor, and one that arrives twice, is given back. With `any_order` values are yielded as they
    arrive, and a tombstone in the turn of each.
    """

    def __init__(
        self, cursor: Cursor, give_back: Callable[[Entry], None], *, remember_last: bool, any_order: bool
    ) -> None:
        self.item = cursor.item
        """The item whose leaves come next."""
        self.origins: dict[int, Entry] = {}
        """One entry of each item, for the cursor and the skips that the item carries."""
        self._last = cursor.last_key
        self._give_back = give_back
        self._remember_last = remember_last
        self._emitted_keys = cursor.emitted_keys
        self._any_order = any_order
        self._early: deque[Entry] = deque()
        """In any order: the values that have arrived since the last call of `ready`."""
        self._held: dict[Key, Entry] = {}
        self._part_counts: dict[Key, int] = {}
        self._parents: set[Key] = set()
        """Keys of which at least one part, or a part of a part, has arrived."""
        self._yielded: set[Key] = set()

    def add(self, entry: Entry) -> None:
        """Hold an entry until it is its turn."""
        key = entry.key
        if key[0] < self.item or key in self._held:
            self._give_back(entry)
            return
        if entry.kind is EntryKind.ITEM and self.is_out(key) and self._remember_last:
            self._give_back(entry)  # the output is out already: only its place in the order counts
            entry = entry._replace(kind=EntryKind.TOMBSTONE, block=None, value=None)
        if entry.kind is EntryKind.ITEM and self._any_order:
            self._early.append(entry)
            entry = entry._replace(kind=EntryKind.TOMBSTONE, block=None, value=None)
        self.origins[key[0]] = entry
        self._parents.update(key[:length] for length in range(1, len(key)))
        if entry.kind is EntryKind.CLOSE:
            self._part_counts[key] = entry.parts
        else:
            self._held[key] = entry

    def ready(self) -> Iterator[Entry | None]:
        """Yield the leaves whose turn it is, and None at the end of each item. In any order, values come first."""
        while self._early:
            yield self._early.popleft()
        complete = True
        while complete:
            leaves: list[Entry] = []
            complete = self._collect((self.item,), leaves)
            for leaf in leaves:
                if not self.is_out(leaf.key) or (not self._remember_last and leaf.key not in self._yielded):
                    self._yielded.add(leaf.key)
                    self._last = leaf.key
                    yield leaf
            if complete:
                self._next_item()
                yield None

    def _collect(self, key: Key, leaves: list[Entry]) -> bool:
        """Append the leaves of `key` up to the first that is missing. True if none is missing."""
        if key in self._held:
            leaves.append(self._held[key])
            return True
        if key not in self._part_counts and key not in self._parents:
            return False
        parts = self._part_counts.get(key)
        part = 0
        while part != parts:
            if not self._collect((*key, part), leaves):
                return False
            part += 1
        return True

    def is_out(self, key: Key) -> bool:
        """Whether a leaf was output before the cursor."""
        return key in self._emitted_keys or (self._last is not None and key <= self._last)

    def _next_item(self) -> None:
        ended = self.item
        self._held = {key: entry for key, entry in self._held.items() if key[0] > ended}
        self._part_counts = {key: parts for key, parts in self._part_counts.items() if key[0] > ended}
        self._parents = {key for key in self._parents if key[0] > ended}
        self._yielded = set()
        self._last = None
        self.item = ended + 1
