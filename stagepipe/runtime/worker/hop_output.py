"""Sends a role's results to the next hop. In the worker's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stagepipe.core import ArenaFullError, Key, TransportError
from stagepipe.runtime.execution import Box, ItemHeader, StageError, StageRunner
from stagepipe.runtime.protocol import Seek, UnpicklableResultError, WorkerEvent
from stagepipe.timing import ProcessRegion
from stagepipe.transport import PacketKind, ReceivedPacket, Sender

FailedItemCallback = Callable[[StageRunner, Key, StageError, bytes, int], None]
"""Called with an item that failed: the stage, the item's key, the error, the item's meta, the generation."""


class SeekInterruptError(Exception):
    """A seek or a stop has made the current work obsolete. Unwinds to the worker's loop."""


class HopOutput:
    """The ChainOutput of a worker: sends results over the hop."""

    def __init__(self, sender: Sender, output_segment: int, on_item_failed: FailedItemCallback | None = None) -> None:
        """`output_segment` is the segment of the hop. `on_item_failed` is called for each item that fails."""
        self._sender = sender
        self._output_segment = output_segment
        self._on_item_failed = on_item_failed
        self._generation = 0
        self._last_delivered_key: Key = ()

    def apply_seek(self, seek: Seek) -> None:
        """Start a generation. Parts that were delivered before the seek are sent as tombstones."""
        self._sender.discard()
        self._generation = seek.generation
        self._last_delivered_key = seek.segment_cursor(self._output_segment).last_key or ()

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Send an item. Raises UnpicklableResultError where it cannot be pickled, SeekInterruptError after a seek."""
        if key <= self._last_delivered_key and len(key) > 1 and not self._may_have_undelivered_parts(key):
            self.send_tombstone(key, samples, meta)
            return
        try:
            sent = self._sender.send(box, self._generation, key, samples, meta)
        except (ArenaFullError, TransportError):
            raise
        except Exception as error:
            if not box:  # the item was pickled, so the error is another one
                raise
            raise UnpicklableResultError(box[0], error) from error
        if not sent:
            raise SeekInterruptError

    def flush(self) -> None:
        """Send what is held back, before work that may take long. Raises SeekInterruptError after a seek."""
        if not self._sender.flush():
            raise SeekInterruptError

    def _may_have_undelivered_parts(self, key: Key) -> bool:
        """Whether the part itself has parts to deliver: the last delivered leaf is one of them."""
        return len(key) < len(self._last_delivered_key) and self._last_delivered_key[: len(key)] == key

    def send_tombstone(self, key: Key, samples: int, meta: bytes) -> None:
        """Send a tombstone."""
        self._send_control(PacketKind.TOMBSTONE, key, samples=samples, meta=meta)

    def send_skip(self, stage: StageRunner, key: Key, error: StageError | None, header: ItemHeader) -> None:
        """Report a failed item to the callback, and downstream as a skip."""
        if error is not None and self._on_item_failed is not None:
            self._on_item_failed(stage, key, error, header[1], self._generation)
        self._send_control(PacketKind.ERROR_SKIP, key, samples=header[0], count=stage.plan.index, meta=header[1])

    def send_close(self, key: Key, part_count: int, meta: bytes) -> None:
        """Send the number of parts of an item."""
        self._send_control(PacketKind.END_OF_PARTS, key, count=part_count, meta=meta)

    def send_end(self, item_count: int) -> None:
        """Send the number of items of the segment, at its end."""
        self._send_control(PacketKind.END_OF_SEGMENT, (0,), count=item_count)

    def forward(self, packet: ReceivedPacket) -> None:
        """Send on a packet that holds no item."""
        self._send_control(
            PacketKind(packet.kind), packet.key, samples=packet.samples, count=packet.count, meta=packet.meta
        )

    def _send_control(self, kind: PacketKind, key: Key, *, samples: int = 1, count: int = 0, meta: bytes = b"") -> None:
        if not self._sender.send_marker(kind, self._generation, key, samples=samples, count=count, meta=meta):
            raise SeekInterruptError


class WorkerContext(NamedTuple):
    """What the worker gives to its role.

    `wait_for_command` is a short wait that a seek or a stop ends. `stage_names` are the names of all stages of the
    plan, the source's first: the count of an ERROR_SKIP packet is an index into them. `send_event` sends to the
    supervisor.
    """

    region: ProcessRegion
    is_interrupted: Callable[[], bool]
    wait_for_command: Callable[[], None]
    stage_names: tuple[str, ...] = ()
    send_event: Callable[[WorkerEvent], None] | None = None
