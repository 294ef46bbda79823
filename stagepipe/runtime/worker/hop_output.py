"""Sends a role's results to the next hop, and shows them to an observer in a probe or a check.

In a probe run, `ItemProbe` measures the first items. In a determinism check, `ItemDigests` reports a digest of each
item.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from time import process_time_ns, sleep
from typing import Any, NamedTuple

import numpy as np

from stagepipe.core import SKIP, ArenaFullError, Key, TransportError, UsageError
from stagepipe.machine import cpu_delay_ns
from stagepipe.plan import HopPlan, ItemSample, PieceSample
from stagepipe.runtime.execution import Box, ItemHeader, StageError, StageRunner
from stagepipe.runtime.protocol import (
    ItemDigestEvent,
    ProbeSample,
    ReadOnceEvent,
    Seek,
    UnpicklableResultError,
    WorkerEvent,
    WorkerSpec,
)
from stagepipe.runtime.worker.control_client import ControlClient
from stagepipe.timing import ProcessRegion
from stagepipe.transport import Encoder, Lease, PacketKind, ReceivedPacket, Sender, SharedMemoryPool

FailedItemCallback = Callable[[StageRunner, Key, StageError, bytes, int], None]
"""Called with a failed item: the stage, the item's key, the error, the item's meta, the generation."""

Loan = Callable[[int], Lease]
"""Lends a block of shared memory with this number of bytes."""


class SeekInterruptError(Exception):
    """A seek or a stop has made the current work obsolete. Unwinds to the worker's loop."""


class HopOutput:
    """The ChainOutput of a worker: sends results over the hop."""

    def __init__(self, sender: Sender, output_segment: int, on_item_failed: FailedItemCallback | None = None) -> None:
        """`output_segment` is the segment of the hop. `on_item_failed` is called for each failed item."""
        self._sender = sender
        self._output_segment = output_segment
        self._on_item_failed = on_item_failed
        self._generation = 0
        self._last_delivered_key: Key = ()

    def apply_seek(self, seek: Seek) -> None:
        """Start a generation. Parts that were delivered before the seek are sent as tombstones."""
        self._sender.start_generation(seek.generation)
        self._generation = seek.generation
        self._last_delivered_key = seek.segment_cursor(self._output_segment).last_key or ()

    def add(self, value: Any, key: Key) -> bool:
        """Take a plain item, or SKIP for a dropped one, as the next one of a chunk. False if `send_item` must take it.

        Raises SeekInterruptError after a seek.
        """
        if len(key) > 1 and key <= self._last_delivered_key:
            return False
        is_held = self._sender.add(value, key)
        if is_held is None:
            raise SeekInterruptError
        return is_held

    def add_all(self, numbers: Sequence[int], key: Key) -> bool:
        """Send consecutive items, `int` values of at most 64 bits, as one chunk. False if `add` must take them."""
        is_sent = self._sender.add_numbers(numbers, key)
        if is_sent is None:
            raise SeekInterruptError
        return is_sent

    @property
    def max_items(self) -> int:
        """The limit of small items in a message."""
        return self._sender.max_items

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Send an item that `add` does not take.

        Raises UnpicklableResultError if it cannot be pickled, SeekInterruptError after a seek.
        """
        if key <= self._last_delivered_key and len(key) > 1 and not self._may_have_undelivered_parts(key):
            self.send_tombstone(key, samples, meta)
            return
        try:
            sent = self._sender.send(box, self._generation, key, samples, meta)
        except (ArenaFullError, TransportError):
            raise
        except Exception as error:
            if not box:  # the item was pickled, so this is another error
                raise
            raise UnpicklableResultError(box[0], error) from error
        if not sent:
            raise SeekInterruptError

    def flush(self) -> None:
        """Send held items, before work that may take long. Raises SeekInterruptError after a seek."""
        if not self._sender.flush():
            raise SeekInterruptError

    def _may_have_undelivered_parts(self, key: Key) -> bool:
        """Whether the part itself has undelivered parts: the last delivered leaf is one of its parts."""
        return len(key) < len(self._last_delivered_key) and self._last_delivered_key[: len(key)] == key

    def send_tombstone(self, key: Key, samples: int, meta: bytes) -> None:
        """Send a tombstone."""
        if samples == 1 and not meta and self.add(SKIP, key):
            return
        self._send_control(PacketKind.TOMBSTONE, key, samples=samples, meta=meta)

    def send_skip(self, stage: StageRunner, key: Key, error: StageError | None, header: ItemHeader) -> None:
        """Report a failed item to the callback, and send a skip downstream."""
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


class ObservedHopOutput(HopOutput):
    """The HopOutput of a run with an observer. Other runs use `HopOutput` itself, without extra cost."""

    def __init__(self, sender: Sender, observer: ItemProbe | ItemDigests) -> None:
        """`sender` sends as in any run. `observer` sees items and events before they are sent."""
        super().__init__(sender, output_segment=0)  # such a run never resumes inside an item, so no segment matters
        self._observer = observer

    def add(self, value: Any, key: Key) -> bool:
        """Take no item, because `send_item` shows each."""
        del value, key
        return False

    def add_all(self, numbers: Sequence[int], key: Key) -> bool:
        """Take no item, like `add`."""
        del numbers, key
        return False

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Show the item, then send it."""
        self._observer.see_item(key, box[0])
        super().send_item(key, box, samples, meta)

    def send_tombstone(self, key: Key, samples: int, meta: bytes) -> None:
        """Show that the item was dropped."""
        self._observer.see_event(key, b"dropped")
        super().send_tombstone(key, samples, meta)

    def send_skip(self, stage: StageRunner, key: Key, error: StageError | None, header: ItemHeader) -> None:
        """Show that the item failed."""
        self._observer.see_event(key, f"failed: {error}".encode())
        super().send_skip(stage, key, error, header)

    def send_close(self, key: Key, part_count: int, meta: bytes) -> None:
        """Show the number of parts."""
        self._observer.see_event(key, b"%d parts" % part_count)
        super().send_close(key, part_count, meta)


def allocate_shared(loan: Loan, outbound: HopPlan, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array or tensor on a shared block; None if a private allocation is as good for the hop."""
    is_tensor = type(dtype).__module__ == "torch"
    element_type = dtype if is_tensor else np.dtype(dtype)
    nbytes = math.prod(shape, start=element_type.itemsize)
    rule = outbound.rule
    if nbytes < rule.threshold_bytes or not rule.uses_blocks or (not is_tensor and element_type.hasobject):
        return None
    lease = loan(nbytes)
    if not is_tensor:
        return np.ndarray(shape, dtype, lease)
    import torch

    return torch.frombuffer(lease, dtype=dtype).reshape(shape)


class WorkerContext(NamedTuple):
    """Data and functions that the worker gives to its role.

    `wait_for_command` is a short wait that a seek or a stop ends. `stage_names` are the names of all stages of the
    plan, the source's first: the count of an ERROR_SKIP packet is an index into them. `send_event` sends to the
    supervisor. If `is_retiring` returns True, the role must take no more items.
    """

    region: ProcessRegion
    is_interrupted: Callable[[], bool]
    wait_for_command: Callable[[], None]
    stage_names: tuple[str, ...] = ()
    send_event: Callable[[WorkerEvent], None] | None = None
    is_retiring: Callable[[], bool] = bool


SAMPLED_ITEMS_PER_HOP = 8
"""The items to measure on each hop: enough to see that sizes vary."""

_PAUSE_S = 0.02
"""The pause at each item in a check, in which another worker of the stage takes the next item."""

_MAX_NAMED_PIECES = 64
"""An item with more pieces is reported by their sizes, without names."""

_SCALAR_TYPES = (type(None), bool, int, float, complex)
_PICKLED_TYPES = (*_SCALAR_TYPES, str, bytes)


class ItemProbe:
    """Measures items and sends the samples to the supervisor."""

    def __init__(self, process: int, memory: SharedMemoryPool, small_bytes: int, control: ControlClient) -> None:
        """Arrays below `small_bytes` stay in the pickle on this hop."""
        self._process = process
        self._control = control
        self._encoder = Encoder(memory, small_bytes)
        self._remaining_items = SAMPLED_ITEMS_PER_HOP

    def see_item(self, _: Key, value: Any) -> None:
        """Measure the item if it is one of the first. Sends nothing if the item cannot be pickled."""
        if not self._remaining_items:
            return
        self._remaining_items -= 1
        try:
            sample = measure_item(value, self._encoder)
        except Exception:  # noqa: BLE001 - the sender raises the same error, with the item's number
            return
        self._control.send(
            ProbeSample(
                process=self._process, cpu_ns=process_time_ns(), cpu_delay_ns=cpu_delay_ns(os.getpid()), item=sample
            )
        )

    def see_event(self, _: Key, description: bytes) -> None:
        """Do nothing: only items are measured."""


class ItemDigests:
    """Sends a digest of each item to the supervisor, and the fate of items that end here."""

    def __init__(self, spec: WorkerSpec, control: ControlClient) -> None:
        """All workers except the source's pause at each item."""
        self._spec = spec
        self._control = control
        self._pause_s = 0.0 if spec.in_fd is None else _PAUSE_S

    def see_item(self, key: Key, value: Any) -> None:
        """Report the digest of an item."""
        from stagepipe.fingerprint import compute_fingerprint

        self.see_event(key, compute_fingerprint(value).digest)
        sleep(self._pause_s)

    def see_event(self, key: Key, description: bytes) -> None:
        """Report an event of an item."""
        spec = self._spec
        self._control.send(ItemDigestEvent(process=spec.plan.name, worker=spec.worker, key=key, digest=description))


def reject_read_once_source(source: Any, process: int, control: ControlClient) -> None:
    """Reject an iterator, because the run would miss the items that the probe reads.

    Notifies the supervisor, then raises UsageError.
    """
    if isinstance(source, Iterator):
        control.send(ReadOnceEvent(process=process))
        message = "the source can be read only once"
        raise UsageError(message)


def measure_item(item: Any, encoder: Encoder) -> ItemSample:
    """Return the pieces of an item and the size of its pickle. Raises its pickling error; keeps no reference.

    Each piece is encoded separately to find its buffers. Then the whole item is encoded to find the size of the pickle.
    """
    values = list(islice(_iter_pieces(item, "", set()), _MAX_NAMED_PIECES + 1))
    pieces = [piece for name, value in values for piece in _measure_piece(name, value, encoder)]
    encoder.encode(item)
    try:
        pickle_bytes = len(encoder.pickle_data)
        buffers = [(buffer.nbytes, buffer.lease_index >= 0) for buffer in encoder.buffers]
    finally:
        encoder.clear()
    out_of_band = [piece for piece in pieces if not piece.is_pickled]
    # An object may hide buffers, or there are too many pieces. The pieces then miss some buffers, so buffers have no
    # names.
    if sorted((piece.nbytes, piece.is_in_arena) for piece in out_of_band) != sorted(buffers):
        in_band = [piece for piece in pieces if piece.is_pickled]
        pieces = [
            PieceSample(name="item", nbytes=nbytes, is_in_arena=in_arena) for nbytes, in_arena in buffers
        ] + in_band
    return ItemSample(tuple(pieces), pickle_bytes)


def _iter_pieces(value: Any, name: str, visited_ids: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield each value in an item once, with its path. Descends into containers; any other value is a piece."""
    if isinstance(value, _SCALAR_TYPES) or id(value) in visited_ids:
        return
    visited_ids.add(id(value))
    children = _list_children(value, name)
    if children is None:
        yield name or "item", value
        return
    for path, child in children:
        yield from _iter_pieces(child, path, visited_ids)


def _list_children(value: Any, name: str) -> list[tuple[str, Any]] | None:
    """Return a container's children with their paths; None for other values."""
    prefix = f"{name}." if name else ""
    if isinstance(value, Mapping):
        return [(f"{prefix}{key}", child) for key, child in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f"{prefix}{field}", child) for field, child in zip(value._fields, value, strict=True)]
    if isinstance(value, list | tuple):
        if all(isinstance(child, _PICKLED_TYPES) for child in value):  # labels, texts: one piece
            return None
        return [(f"{name}[{index}]", child) for index, child in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f"{prefix}{field.name}", getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return None


def _measure_piece(name: str, value: Any, encoder: Encoder) -> Iterator[PieceSample]:
    """Yield a sample for each out-of-band buffer of a piece; without buffers, one sample of the pickled piece."""
    dtype, shape = _describe_array(value)
    encoder.encode(value)
    try:
        buffers = [(buffer.nbytes, buffer.lease_index >= 0) for buffer in encoder.buffers]
        pickle_bytes = len(encoder.pickle_data)
    finally:
        encoder.clear()
    for index, (nbytes, in_arena) in enumerate(buffers):
        path = name if len(buffers) == 1 else f"{name}[{index}]"
        yield PieceSample(name=path, nbytes=nbytes, dtype=dtype, shape=shape, is_in_arena=in_arena)
    if not buffers:
        size = getattr(value, "nbytes", None)
        nbytes = size if isinstance(size, int) else len(value) if isinstance(value, bytes | str) else pickle_bytes
        yield PieceSample(name=name, nbytes=nbytes, dtype=dtype or type(value).__name__, shape=shape, is_pickled=True)


def _describe_array(value: Any) -> tuple[str, tuple[int, ...]]:
    """Return dtype and shape of an array or tensor, mode and size of an image; empty for other values."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return str(value.dtype).removeprefix("torch."), tuple(int(length) for length in value.shape)
    if isinstance(getattr(value, "mode", None), str) and isinstance(getattr(value, "size", None), tuple):
        return f"PIL {value.mode}", tuple(int(length) for length in value.size)
    return "", ()
