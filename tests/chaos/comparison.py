"""Compares the items of an epoch with those of the inline run: all of them, by their digests. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How two epochs differ: items that are missing, that come too often, and that the inline run does not yield."""

    lost: int
    doubled: int
    strange: int
    first_place: str

    def __str__(self) -> str:
        return f"{self.lost} items lost, {self.doubled} doubled, {self.strange} strange; {self.first_place}"


def compare(
    received: Sequence[str], expected: Sequence[str], *, any_order: bool, stop: int | None
) -> Difference | None:
    """Compare the digests of the received items with the expected ones; None if they are as they must be.

    `stop`: the epoch ended early, after so many items. With `any_order` any of the expected items may be among them.

    >>> compare(["a", "b"], ["b", "a"], any_order=True, stop=None)
    >>> print(compare(["a", "a"], ["a", "b"], any_order=True, stop=None))
    1 items lost, 1 doubled, 0 strange; the first difference is at 1: a instead of b
    """
    count = len(expected) if stop is None else stop
    wanted = Counter(expected if any_order else expected[:count])
    surplus = Counter(received) - wanted
    is_equal = not surplus and len(received) == count if any_order else list(received) == list(expected[:count])
    if is_equal:
        return None
    strange = sum(number for item, number in surplus.items() if item not in wanted)
    missing = wanted - Counter(received)
    return Difference(
        lost=max(count - len(received) + sum(surplus.values()), 0) if any_order else sum(missing.values()),
        doubled=sum(surplus.values()) - strange,
        strange=strange,
        first_place=_describe_first_place(received, expected[:count]),
    )


def _describe_first_place(received: Sequence[str], expected: Sequence[str]) -> str:
    for index, (item, wanted) in enumerate(zip(received, expected, strict=False)):
        if item != wanted:
            return f"the first difference is at {index}: {item} instead of {wanted}"
    return f"{len(received)} items instead of {len(expected)}"
