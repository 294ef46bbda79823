"""The board: the progress words from which the windows are computed, segment by segment."""

from __future__ import annotations

from typing import NamedTuple

from stagepipe.core import Key


class CurrentItem(NamedTuple):
    """The item or part that a worker is processing."""

    epoch: int
    stage: str
    key: Key


class Board:
    """One writer per word. A word carries the generation of its writer; readers ignore words of other generations."""

    def __init__(self, segments: int) -> None:
        self._consumed = [(0, 0)] * segments
        self._totals = [(0, -1)] * segments
        self.first_numbers = [0] * segments
        """Per order point: the number of its first output after the latest seek."""
        self.current_items: dict[str, dict[int, CurrentItem]] = {}
        """What each worker is processing, by slot. It stays when the worker dies."""

    def publish_consumed(self, segment: int, generation: int, items: int) -> None:
        """The order point that ends `segment` has consumed all items below this number."""
        self._consumed[segment] = (generation, items)

    def consumed(self, segment: int, generation: int, *, default: int) -> int:
        """The published number, or `default` if it is of another generation."""
        written_in, items = self._consumed[segment]
        return items if written_in == generation else default

    def consumed_in_any_generation(self, segment: int) -> int:
        """The published number, however old: a read that breaks `Rule.TAG_PROGRESS`."""
        return self._consumed[segment][1]

    def publish_total(self, segment: int, generation: int, items: int) -> None:
        """The process that feeds `segment` has sent all of its items."""
        self._totals[segment] = (generation, items)

    def has_total(self, segment: int, generation: int, items: int) -> bool:
        """Whether this total was published in this generation."""
        return self._totals[segment] == (generation, items)
