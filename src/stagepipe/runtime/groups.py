"""`order: any`: what travels with an order point's output, so that what is out can be told leaf by leaf. Pure.

The first order point takes leaves as they come, so a number alone does not say what is in a group. Each of its outputs
names the leaves that it was made of, and the lowest source item that was still open. Behind it the order is that of
its outputs, so whoever reads them adds the leaves up, and has the whole of what is out. A group of which something is
out and something is not is made again of the same leaves.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from stagepipe.core import Cursor, Key, Skip, UsageError
from stagepipe.runtime.said import MOST_BYTES, opened

Group = tuple[Key, ...]
"""The leaves of the first stretch that one output of its order point was made of, in order."""

_LEAST_BYTES: Final = 200
"""Fewer are not worth compressing."""


class Made(NamedTuple):
    """What an output of an order point says of itself.

    `after` is the cursor behind it without its root (None: the root itself); `floor` the lowest open source item then;
    `groups` what it used up; `held` what it, or a shuffled block around it, has begun and not used up: None says that
    this is as it was for the output before. Where not `exact`, the leaves of a group are known, and their order is not.
    `skips` are those behind the first order point that shaped it.
    """

    after: Cursor | None
    floor: int
    groups: tuple[Group, ...]
    held: tuple[Group, ...] | None
    exact: bool = True
    skips: frozenset[Skip] = frozenset()


def pack_made(made: Made) -> bytes:
    """As it travels. Where a group is too large for a packet, the order of its leaves stays behind."""
    data = _packed(made)
    if len(data) > MOST_BYTES:
        groups = tuple(tuple(sorted(group)) for group in made.groups)
        made = made._replace(groups=groups, exact=False)
        data = _packed(made)
    return data if len(data) <= MOST_BYTES else _packed(made._replace(skips=frozenset()))


def _packed(made: Made) -> bytes:
    groups = tuple(_keys_packed(group, made.floor) for group in made.groups)
    held = None if made.held is None else tuple(_keys_packed(group, made.floor) for group in made.held)
    data = pickle.dumps((*made[:2], groups, held, *made[4:]), protocol=5)
    return data if len(data) < _LEAST_BYTES else zlib.compress(data, 1)


def unpack_made(data: bytes) -> Made:
    """Back."""
    after, floor, groups, held, *rest = opened(data)
    held = None if held is None else tuple(_keys_unpacked(group, floor) for group in held)
    return Made(after, floor, tuple(_keys_unpacked(group, floor) for group in groups), held, *rest)


def items_of(data: bytes) -> list[int]:
    """The source items that the output was made of, as far as it names them itself."""
    made = unpack_made(data)
    return sorted({key[0] for group in (*made.groups, *(made.held or ())) for key in group})


def _keys_packed(group: Group, floor: int) -> bytes | Group:
    """Whole items as differences from one to the next: those of a sorted group are nearly all 1."""
    if any(len(key) > 1 for key in group):
        return group
    items = np.array([floor, *(key[0] for key in group)], np.int64)
    steps = np.diff(items)
    small = not len(steps) or int(np.abs(steps).max()) < 1 << 15
    return (b"h" + steps.astype(np.int16).tobytes()) if small else (b"q" + steps.tobytes())


def _keys_unpacked(packed: bytes | Group, floor: int) -> Group:
    if not isinstance(packed, bytes):
        return packed
    steps = np.frombuffer(packed, packed[:1].decode(), offset=1).astype(np.int64)
    return tuple((item,) for item in (floor + np.cumsum(steps)).tolist())


class Leaves:
    """The leaves of the first stretch that are out, and what stands above the lowest open item of them.

    >>> leaves = Leaves(Cursor())
    >>> leaves.add([(2,), (1, 0)])
    >>> leaves.raise_floor(1)
    >>> leaves.cursor().item, sorted(leaves.cursor().out)
    (1, [(1, 0), (2,)])
    """

    def __init__(self, root: Cursor) -> None:
        """As the root of a cursor has it."""
        self._floor = root.item
        self._by_item: dict[int, list[Key]] = {}
        self.add(root.out)

    def add(self, keys: Iterable[Key]) -> None:
        """These are out now."""
        for key in keys:
            self._by_item.setdefault(key[0], []).append(key)

    def raise_floor(self, floor: int) -> None:
        """All items below are closed."""
        if floor - self._floor > len(self._by_item):
            self._by_item = {item: keys for item, keys in self._by_item.items() if item >= floor}
        else:
            for item in range(self._floor, floor):
                self._by_item.pop(item, None)
        self._floor = max(floor, self._floor)

    def cursor(self, held: tuple[Group, ...] = ()) -> Cursor:
        """The root of a cursor that begins here, with groups to be made as they were."""
        out = frozenset(key for keys in self._by_item.values() for key in keys)
        return Cursor(None, self._floor, out=out, groups=held)


def with_root(after: Cursor | None, root: Cursor) -> Cursor:
    """The cursor `after` on its root."""
    return root if after is None else after._replace(upstream=with_root(after.upstream, root))


def without_root(cursor: Cursor | None, stretch: int) -> Cursor | None:
    """A cursor of that stretch without its root: what `with_root` completes."""
    if not stretch:
        return None
    here = cursor or Cursor()
    return here._replace(upstream=without_root(here.upstream, stretch - 1))


def root_of(cursor: Cursor | None, stretch: int) -> Cursor:
    """The source's part of a cursor of that stretch."""
    here = cursor or Cursor()
    return root_of(here.upstream, stretch - 1) if stretch else here


def refuse_inexact() -> None:
    """A place inside a group that cannot be made again as it was."""
    message = (
        "with `order: any`, no place inside the rows of so large a batch can be told; take the state behind its last "
        "row, make the batch smaller, or set `order: source`"
    )
    raise UsageError(message)
