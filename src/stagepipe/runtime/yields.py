"""How many items a stage gives for those it takes, as far as that can be told without running it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from stagepipe.core.targets import is_generator
from stagepipe.stages import Batch, Filter


class Yields(msgspec.Struct, frozen=True):
    """One item for every `rows` items, the last one for fewer unless `drop_last`; not `known`: any number.

    A function that returns SKIP now and then cannot be told from one that does not, and counts as one for one.
    """

    known: bool = True
    rows: int = 1
    drop_last: bool = False


def yields_of(target: Any) -> Yields:
    """What is known of a stage that is built.

    >>> yields_of(Batch(4, drop_last=True))
    Yields(known=True, rows=4, drop_last=True)
    """
    if isinstance(target, Batch):
        return Yields(rows=target.size, drop_last=target.drop_last)
    return Yields(known=not (isinstance(target, Filter) or is_generator(target)))


def items_after(total: int | None, stages: Iterable[Yields]) -> int | None:
    """How many of `total` source items are left behind the stages; None where that is not known.

    >>> items_after(10, [Yields(), Yields(rows=4)])
    3
    """
    for stage in stages:
        if total is None or not stage.known:
            return None
        total = total // stage.rows if stage.drop_last else -(-total // stage.rows)
    return total
