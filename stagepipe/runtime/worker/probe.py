"""Measures the first items that the workers of a probe run send. In the worker's process, in probe runs only."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from time import process_time_ns
from typing import Any

from stagepipe.core import Key, UsageError
from stagepipe.machine import cpu_delay_ns
from stagepipe.plan import ItemSample, PieceSample
from stagepipe.runtime.execution import Box
from stagepipe.runtime.protocol import ProbeSample, ReadOnceEvent
from stagepipe.runtime.worker.control_client import ControlClient
from stagepipe.runtime.worker.hop_output import HopOutput
from stagepipe.transport import Encoder, Sender, SharedMemoryPool

SAMPLED_ITEMS_PER_HOP = 8
"""Items measured on each hop: enough to see that sizes vary."""

_MAX_NAMED_PIECES = 64
"""An item with more pieces is reported by their sizes, without names."""

_SCALAR_TYPES = (type(None), bool, int, float, complex)
_PICKLED_TYPES = (*_SCALAR_TYPES, str, bytes)


class ProbedHopOutput(HopOutput):
    """The HopOutput of a probe run: it measures the first items before it sends them."""

    def __init__(self, sender: Sender, probe: ItemProbe) -> None:
        """`probe` measures; `sender` sends as in any run."""
        super().__init__(sender, output_segment=0)  # a probe never resumes inside an item, so no segment matters
        self._probe = probe

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Measure an item if it is one of the first, and send it."""
        if self._probe.remaining_items:
            self._probe.send_sample(box)
        super().send_item(key, box, samples, meta)


class ItemProbe:
    """Measures items and sends the samples to the supervisor."""

    def __init__(self, process: int, memory: SharedMemoryPool, small_bytes: int, control: ControlClient) -> None:
        """Arrays of less than `small_bytes` stay in the pickle on this hop."""
        self._process = process
        self._control = control
        self._encoder = Encoder(memory, small_bytes)
        self.remaining_items = SAMPLED_ITEMS_PER_HOP

    def send_sample(self, box: Box) -> None:
        """Measure the item in `box` and send the sample. Nothing is sent for an item that cannot be pickled."""
        self.remaining_items -= 1
        try:
            sample = measure_item(box[0], self._encoder)
        except Exception:  # noqa: BLE001 - the sender raises the same error, with the item's number
            return
        self._control.send(
            ProbeSample(
                process=self._process, cpu_ns=process_time_ns(), cpu_delay_ns=cpu_delay_ns(os.getpid()), item=sample
            )
        )


def reject_read_once_source(source: Any, process: int, control: ControlClient) -> None:
    """Refuse an iterator, because the run would miss the items that the probe reads.

    Notifies the supervisor, then raises UsageError.
    """
    if isinstance(source, Iterator):
        control.send(ReadOnceEvent(process=process))
        message = "the source can be read only once"
        raise UsageError(message)


def measure_item(item: Any, encoder: Encoder) -> ItemSample:
    """Return the pieces of an item and the size of its pickle. Raises what its pickling raises; keeps no reference.

    Each piece is encoded by itself to find its buffers, and then the whole item to find the size of the pickle.
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
    # The pieces miss buffers that an object hides, or there are too many pieces: then the buffers have no names.
    if sorted((piece.nbytes, piece.is_in_arena) for piece in out_of_band) != sorted(buffers):
        in_band = [piece for piece in pieces if piece.is_pickled]
        pieces = [
            PieceSample(name="item", nbytes=nbytes, is_in_arena=in_arena) for nbytes, in_arena in buffers
        ] + in_band
    return ItemSample(tuple(pieces), pickle_bytes)


def _iter_pieces(value: Any, name: str, visited_ids: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield each value in an item once, with its path. Containers are descended into; any other value is a piece."""
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
    """Return a container's children with their paths; None for a value that is no container."""
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
    """Yield a sample for each out-of-band buffer of a piece; for a piece without one, a sample of the pickled piece."""
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
    """Return the dtype and shape of an array or tensor, the mode and size of an image; empty for other values."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return str(value.dtype).removeprefix("torch."), tuple(int(length) for length in value.shape)
    if isinstance(getattr(value, "mode", None), str) and isinstance(getattr(value, "size", None), tuple):
        return f"PIL {value.mode}", tuple(int(length) for length in value.size)
    return "", ()
