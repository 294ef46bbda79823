"""The order in which contestants are timed, and the end of their processes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from multiprocessing.process import BaseProcess

_JOIN_S = 10.0


def order(names: Sequence[str], round_number: int) -> list[str]:
    """Return the contestants in their order of round `round_number`.

    Consecutive pairs of rounds start with different contestants, each in its turn; every other round runs backwards.

    >>> [order("abcd", number) for number in (0, 1, 2)]
    [['d', 'c', 'b', 'a'], ['a', 'b', 'c', 'd'], ['c', 'b', 'a', 'd']]
    """
    count = len(names)
    step = next(step for step in itertools.count(3) if math.gcd(step, count) == 1)  # so every contestant comes first
    start = round_number // 2 * step % count
    rotated = [*names[start:], *names[:start]]
    return rotated if round_number % 2 else rotated[::-1]


def end_process(process: BaseProcess) -> None:
    """Wait until the process ends; kill it if it does not in time."""
    process.join(_JOIN_S)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()
