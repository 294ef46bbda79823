"""What the supervisor and its workers say to each other on the control channel: typed and small, never items."""

from __future__ import annotations

from typing import Any

import msgspec

from stagepipe.plan.outlook.glimpse import ItemSeen
from stagepipe.runtime.yields import Yields


class Seek(msgspec.Struct, tag="seek", frozen=True, omit_defaults=True):
    """Begin at a cursor under a new generation. Cursors (as `cursor_to_plain` has them) and windows by stretch.

    `imposed`: (stage, key) of the items that are skipped and not tried. `alone`: (stage, first, last) item of those
    that a stage with a `batch` works on one by one. `anew`: it is not the natural end of an epoch that it follows on.
    """

    generation: int
    epoch: int
    cursors: list[list[Any]]
    windows: list[int]
    roomy_windows: list[int]
    era: int = 0
    imposed: list[list[Any]] = []
    alone: list[tuple[str, int, int]] = []
    anew: bool = False


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """End between two items."""


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The worker has built its stages. `total`: the items of an epoch that its source has, if it is one and knows."""

    process: int
    life: int
    yields: list[Yields]
    total: int | None = None


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """A stage raised, or could not be built (then `generation` is 0), or an item could not travel."""

    process: int
    stage: str
    worker: int
    item: str
    error: str
    trace: str
    generation: int


class DeadLetter(msgspec.Struct, tag="dead letter", frozen=True):
    """An item that failed at a stage and is skipped. `source_items` are those of the source that it was made of."""

    process: int
    stage: str
    worker: int
    key: list[int]
    item: str
    error: str
    trace: str
    attempts: int
    generation: int
    epoch: int
    source_items: list[int]


class Full(msgspec.Struct, tag="full", frozen=True):
    """An item did not fit the worker's arena. `held_bytes` is what the worker had leased or on loan itself."""

    process: int
    stage: str
    worker: int
    item: str
    generation: int
    error: str
    held_bytes: int = 0


class Told(msgspec.Struct, tag="told", frozen=True):
    """In a probe run: an item that this process is about to send, and its CPU time and wait for a CPU so far."""

    process: int
    cpu_ns: int
    delay_ns: int
    item: ItemSeen


class Leases(msgspec.Struct, tag="leases", frozen=True):
    """The process has entered an era, and has these leases (arena, block, bytes) on blocks of older ones."""

    process: int
    era: int
    leases: list[tuple[int, int, int]]


class ReadOnce(msgspec.Struct, tag="read once", frozen=True):
    """In a probe run: the source can be read only once, so that a probe would take items away from the run."""

    process: int


Command = Seek | Stop
Event = Ready | Failed | DeadLetter | Full | Told | Leases | ReadOnce

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_event = msgspec.msgpack.Decoder(Event).decode
