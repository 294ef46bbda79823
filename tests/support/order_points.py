"""Order points as users write them: good ones, and ones with a mistake. Imported by worker processes."""

from typing import Any

from stagepipe.stages import OrderPointStage


class Pairs(OrderPointStage):
    """Two consecutive items become a tuple."""

    items_per_output = 2

    def __init__(self, drop_last: bool = False):
        self.drop_last = drop_last
        self.clear()

    def add(self, value: Any, samples: int) -> bool:
        self.group.append((value, samples))
        return len(self.group) == 2

    def flush(self, rng: Any) -> list[tuple[Any, int]]:
        group = self.group
        self.clear()
        return [(tuple(value for value, _ in group), sum(samples for _, samples in group))] if group else []

    def clear(self) -> None:
        self.group: list[tuple[Any, int]] = []


class SortedBlocks(Pairs):
    """Sorts each block of `size` items, the largest first."""

    is_permutation = True
    items_per_output = 1

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def add(self, value: Any, samples: int) -> bool:
        super().add(value, samples)
        return len(self.group) == self.size

    def flush(self, rng: Any) -> list[tuple[Any, int]]:
        group = sorted(self.group, key=lambda entry: entry[0], reverse=True)
        self.clear()
        return group


class Runs:
    """Items up to one that is a multiple of 5 become a list. Does not subclass the interface."""

    order_point = True
    is_permutation = False
    items_per_output = None
    drop_last = False

    def __init__(self) -> None:
        self.clear()

    def add(self, value: int, samples: int) -> bool:
        self.values.append(value)
        return value % 5 == 0

    def flush(self, rng: Any) -> list[tuple[Any, int]]:
        values = self.values
        self.clear()
        return [(values, len(values))] if values else []

    finish = flush

    def clear(self) -> None:
        self.values: list[int] = []


class Twice(Pairs):
    """A group has two outputs."""

    def flush(self, rng: Any) -> list[tuple[Any, int]]:
        return super().flush(rng) * 2


class Copies(SortedBlocks):
    """Says that it is a permutation, and returns other objects."""

    def flush(self, rng: Any) -> list[tuple[Any, int]]:
        return [((value,), samples) for value, samples in super().flush(rng)]


class WithoutFlush:
    order_point = True

    def add(self, value: Any, samples: int) -> bool:
        return True


HiddenPairs = type("HiddenPairs", (Pairs,), {})
