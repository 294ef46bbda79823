"""The supervisor's part of a death: whom it blames, and what later seeks skip because of it."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tests.protocol_model.cursors import ErrorSkip
from tests.protocol_model.processes import Process, SharedState
from tests.protocol_model.rules import Rule
from tests.protocol_model.windows import CurrentItem


class OnPoison(NamedTuple):
    """What becomes of an item that kills workers."""

    max_kills: int
    """With so many deaths it is poison."""
    fails: bool
    """Whether poison ends the run. Otherwise it is skipped."""


class Deaths:
    """Counts the deaths at each item, as the board names it."""

    def __init__(self, shared: SharedState, on_poison: OnPoison | None) -> None:
        self._shared = shared
        self._on_poison = on_poison
        self._kills: Counter[CurrentItem] = Counter()
        self._poison: dict[CurrentItem, int] = {}
        """Poison items, and from which generation on they are skipped."""
        self._named: set[CurrentItem] = set()
        self.poison_tried_again = False
        """Whether a worker has processed an item that the seek it had entered named as poison."""

    def blame(self, dead: Process, epoch: int, generation: int) -> bool:
        """Count a death for the item that the worker was processing. False if the run fails.

        A worker that was late to leave an abandoned epoch does not fail the epoch of now.
        """
        item = self._shared.board.current_items.pop(dead.name, None)
        if item is None or self._on_poison is None:
            return True
        if not self._shared.keeps(Rule.BLAME_IN_ITS_EPOCH):
            item = item._replace(epoch=epoch)
        self.poison_tried_again |= item in self._poison and dead.generation >= self._poison[item]
        self._kills[item] += 1
        max_kills = self._on_poison.max_kills if self._shared.keeps(Rule.RETRY_BEFORE_SKIP) else 1
        if self._kills[item] < max_kills:
            return True
        self._poison.setdefault(item, generation + 1)
        return not self._on_poison.fails or item.epoch != epoch

    def poison_skips(self, epoch: int) -> frozenset[ErrorSkip]:
        """What the stages must skip in this epoch, named by the next seek."""
        items = [item for item in self._poison if item.epoch == epoch]
        if not self._shared.keeps(Rule.KEEP_POISON_SKIPS):
            items = [item for item in items if item not in self._named]
            self._named.update(items)
        return frozenset(ErrorSkip(item.stage, item.key) for item in items)
