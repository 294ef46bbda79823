"""What the stages of a random pipeline compute, and what a shuffle does. All of it depends on the seed alone.

A value is a tuple: ("s", epoch, item) from the source, ("m", value) from a map, ("g", part, value) from a generator and
("b", (value, ...)) from Batch. So a value shows all that was done to it.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from stagepipe.core import Key
from tests.protocol_model.memory import WIPED

_POISON_CHANCE = 0.05

Function = Callable[[Any], Any]
"""Value -> a value, a list of parts, or a `SpecialResult`."""


class SpecialResult(enum.Enum):
    """What a stage function returns in place of a value."""

    UNCHANGED = "unchanged"
    """The value goes on in the block that it came in."""
    DROPPED = "dropped"
    FAILED = "failed"
    """An error; the stage skips the item."""


class RandomFunction:
    """A map, a filter, a generator or a function that changes nothing.

    A flaky one fails on some values, and succeeds when it is called with the same value a second time.
    """

    def __init__(self, rnd: random.Random, *, flaky: bool) -> None:
        self._salt = rnd.random()
        self._max_parts = rnd.randint(0, 3)
        self.kind = rnd.choice(["map", "filter", "generate", "same"])
        self._flaky = flaky
        self._failed: set[Any] = set()

    def __call__(self, value: Any) -> Any:
        """The result for a value."""
        if self.kind == "same":
            return SpecialResult.UNCHANGED
        rnd = random.Random(f"{self._salt}{value}")
        if self.kind == "generate":
            return [("g", part, value) for part in range(rnd.randint(0, self._max_parts))]
        if self.kind == "filter" and rnd.random() < 0.4:
            return SpecialResult.DROPPED
        if self._flaky and rnd.random() < 0.3 and value not in self._failed:
            self._failed.add(value)
            return SpecialResult.FAILED
        return ("m", value)


class DeadlyValues:
    """The values that kill the worker that processes them: poison always, others less often than makes them poison."""

    def __init__(self, rnd: random.Random, max_kills: int) -> None:
        self._salt = rnd.random()
        self._max_kills = max_kills
        self._kills: Counter[Any] = Counter()

    def is_poison(self, value: Any) -> bool:
        """Whether the value kills each time."""
        return self._draw(value) < _POISON_CHANCE

    def kills(self, value: Any) -> bool:
        """Whether the value kills this time."""
        if self._draw(value) > 2 * _POISON_CHANCE:
            return False
        self._kills[value] += 1
        return self.is_poison(value) or self._kills[value] < self._max_kills

    def hangs(self, value: Any) -> bool:
        """Whether it kills by taking too long, so that the supervisor knows which item it was."""
        return random.Random(f"{self._draw(value)}").random() < 0.3

    def _draw(self, value: Any) -> float:
        return random.Random(f"{self._salt}{value}").random()


def unbatch(value: Any) -> Any:
    """The parts of a batch."""
    return list(value[1]) if value[0] == "b" else SpecialResult.UNCHANGED


def batched(values: Sequence[Any]) -> Any:
    """What Batch makes of a group."""
    return ("b", tuple(values))


def shuffled(values: Sequence[Any], *, epoch: int, item: int, last: Key | None) -> list[Any]:
    """What Shuffle makes of a block: its order depends on the epoch and on the cursor where the block begins."""
    values = list(values)
    random.Random(f"{epoch} {item} {last}").shuffle(values)
    return values


def source_items(value: Any) -> list[Any]:
    """The source items inside a value, and `WIPED` for what was lost."""
    if value == WIPED or value[0] == "s":
        return [value]
    if value[0] == "b":
        return [item for each in value[1] for item in source_items(each)]
    return source_items(value[-1])
