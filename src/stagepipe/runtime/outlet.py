"""Where a role's results go, and what the worker lends every role."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stagepipe.core import ArenaFullError, Key, TransportError, cursor_from_plain
from stagepipe.runtime.chain import Box, Head
from stagepipe.runtime.failures import CannotTravelError
from stagepipe.runtime.messages import Seek
from stagepipe.runtime.stage import Stage, StageError
from stagepipe.timing import Region
from stagepipe.transport import Kind, Received, Sender

Post = Callable[[Stage, Key, StageError, bytes, int], None]
"""Takes an item that failed: the stage, its key, what was raised, its meta, and the generation."""


class TurnedError(Exception):
    """The work in hand is void: there was a seek, or the end. Unwinds to the worker's loop."""


class HopOut:
    """A chain's results onto the hop."""

    def __init__(self, sender: Sender, feeds: int, post: Post | None = None) -> None:
        """`feeds` is the stretch that the hop is in. `post` is told of the items that failed."""
        self._sender, self._feeds, self._post = sender, feeds, post
        self.generation = 0
        self._last: Key = ()

    def enter(self, seek: Seek) -> None:
        """Begin a generation. Of an item that is partly out, the parts that are out leave only their places."""
        self.generation = seek.generation
        cursor = cursor_from_plain(seek.cursors[self._feeds])
        self._last = cursor.last or () if cursor is not None else ()

    def item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Send an item. Raises CannotTravelError for one that cannot be pickled."""
        if key <= self._last and len(key) > 1 and not self._has_more(key):
            self.dropped(key, samples, meta)
            return
        try:
            sent = self._sender.send(box, self.generation, key, samples, meta)
        except (ArenaFullError, TransportError):
            raise
        except Exception as error:
            if not box:  # it was pickled
                raise
            raise CannotTravelError(box[0], error) from error
        if not sent:
            raise TurnedError

    def _has_more(self, key: Key) -> bool:
        """Whether parts of this part may be wanted: the last that is out is one of them."""
        return len(key) < len(self._last) and self._last[: len(key)] == key

    def dropped(self, key: Key, samples: int, meta: bytes) -> None:
        """Send a tombstone."""
        self._tell(Kind.TOMBSTONE, key, samples=samples, meta=meta)

    def skipped(self, stage: Stage, key: Key, error: StageError | None, head: Head) -> None:
        """Say that the item failed, here and to those behind."""
        if error is not None and self._post is not None:
            self._post(stage, key, error, head[1], self.generation)
        self._tell(Kind.SKIP, key, samples=head[0], count=stage.plan.number, meta=head[1])

    def close(self, key: Key, count: int, meta: bytes) -> None:
        """Say how many parts there were."""
        self._tell(Kind.CLOSE, key, count=count, meta=meta)

    def end(self, count: int) -> None:
        """Say how many items the stretch has."""
        self._tell(Kind.END, (0,), count=count)

    def forward(self, packet: Received) -> None:
        """Send on what is not an item."""
        self._tell(Kind(packet.kind), packet.key, samples=packet.samples, count=packet.count, meta=packet.meta)

    def _tell(self, kind: Kind, key: Key, *, samples: int = 1, count: int = 0, meta: bytes = b"") -> None:
        if not self._sender.tell(kind, self.generation, key, samples=samples, count=count, meta=meta):
            raise TurnedError


class Surroundings(NamedTuple):
    """What the worker lends its role. `wait` is a short wait that a seek or the end cuts off.

    `stages` are the names of all stages of the plan, the source's first: what a skip's number counts in.
    """

    region: Region
    interrupted: Callable[[], bool]
    wait: Callable[[], None]
    stages: tuple[str, ...] = ()
