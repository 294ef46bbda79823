"""A rank's seat: what is the same for the first one and for all others. In each rank's training process."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from stagepipe.core import RunError
from stagepipe.engine.state import Position
from stagepipe.torch.node.messages import Failed
from stagepipe.transport import Lease


class Dealt(NamedTuple):
    """An item in a box that whoever takes it out empties: the rank's `number`th of the epoch, from 0 on.

    `cursor`: from which all that comes after its round is made; None where that cannot be told.
    """

    number: int
    cursor: bytes | None
    box: list[Any]


class Seat(Protocol):
    """Where a rank's items are dealt to."""

    def ask(self, position: Position) -> int:
        """Begin an iteration there, and return its number."""

    def take(self, ask: int) -> Dealt | None:
        """The next item of that iteration; None at the epoch's end. RunError."""

    def length(self) -> int | None:
        """How many items an epoch has for all ranks of the machine together. RunError."""

    def block_of(self, address: int, nbytes: int) -> Lease | None:
        """The lease that these bytes lie in."""

    def close(self) -> None:
        """Say goodbye and give everything back."""


def to_error(failed: Failed) -> RunError:
    """What a message says went wrong."""
    return RunError(failed.message, stage=failed.stage, worker=failed.worker, item=failed.item, trace=failed.trace)
