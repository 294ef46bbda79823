"""Who is timed when. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def order(names: Sequence[str], number: int) -> list[str]:
    """The contestants in round `number`: begun with another one each time, and every second round backwards.

    >>> [order("abcd", number) for number in (0, 1, 2)]
    [['d', 'c', 'b', 'a'], ['a', 'b', 'c', 'd'], ['c', 'b', 'a', 'd']]
    """
    at = number // 2 * 3 % len(names)
    turned = [*names[at:], *names[:at]]
    return turned if number % 2 else turned[::-1]
