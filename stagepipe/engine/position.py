"""A position in an epoch: what a state dict stores. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stagepipe.core import Cursor


@dataclass(frozen=True)
class EpochPosition:
    """A position in an epoch, after `items_yielded` items. `cursor` is that of the last item; None at the start."""

    epoch: int = 0
    items_yielded: int = 0
    cursor: Cursor | None = None

    @property
    def is_start(self) -> bool:
        """Whether it is the start of an epoch."""
        return not self.items_yielded and self.cursor is None
