"""The messages of the control channel: commands to the workers, events to the supervisor. Typed and small, never items.

Both sides run the same version of the package, so tags and fields may change between versions.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stagepipe.plan import ItemSample
from stagepipe.runtime.protocol.cardinality import Cardinality


class Seek(msgspec.Struct, tag="seek", frozen=True, omit_defaults=True):
    """Start a new generation at a cursor. `cursors` (as `cursor_to_builtins` writes them) and windows are by segment.

    `forced_skips` are (stage, key) of items to skip without a call; an item that killed too many workers adds
    (error, attempts). `unbatched_ranges` are (stage, first item, last item) that a stage with a `batch` must process
    one by one. `rebuild_stateful` is False only where the seek follows the natural end of an epoch.
    """

    generation: int
    epoch: int
    cursors: list[list[Any]]
    windows: list[int]
    small_item_windows: list[int]
    era: int = 0
    forced_skips: list[list[Any]] = []
    unbatched_ranges: list[tuple[str, int, int]] = []
    rebuild_stateful: bool = False


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """Stop after the item in hand."""


class ReadyEvent(msgspec.Struct, tag="ready", frozen=True):
    """The worker has built its stages. `epoch_items` is the length of an epoch, from an indexed source only."""

    process: int
    incarnation: int
    cardinalities: list[Cardinality]
    epoch_items: int | None = None


class FailureEvent(msgspec.Struct, tag="failure", frozen=True):
    """A stage raised, an item could not be sent, or a stage could not be built (then `generation` is 0)."""

    process: int
    stage: str
    worker: int
    item: str
    error: str
    trace: str
    generation: int


class DeadLetterEvent(msgspec.Struct, tag="dead_letter", frozen=True):
    """An item failed at a stage and is skipped. `source_items` are the source items that it was made of."""

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


class ArenaFullEvent(msgspec.Struct, tag="arena_full", frozen=True):
    """An item did not fit into the worker's arena. `held_bytes` is what the worker itself had leased or on loan."""

    process: int
    stage: str
    worker: int
    item: str
    generation: int
    error: str
    held_bytes: int = 0


class ProbeSample(msgspec.Struct, tag="probe_sample", frozen=True):
    """Probe run: an item that the process is about to send, and its CPU time and CPU wait so far."""

    process: int
    cpu_ns: int
    cpu_delay_ns: int
    item: ItemSample


class StaleLeasesEvent(msgspec.Struct, tag="stale_leases", frozen=True):
    """The process has entered `era` and still has these leases (arena, block, bytes) on blocks of older eras."""

    process: int
    era: int
    leases: list[tuple[int, int, int]]


class ReadOnceEvent(msgspec.Struct, tag="read_once", frozen=True):
    """Probe run: the source can be read only once, so the run would miss the items that the probe reads."""

    process: int


SupervisorCommand = Seek | Stop
WorkerEvent = (
    ReadyEvent | FailureEvent | DeadLetterEvent | ArenaFullEvent | ProbeSample | StaleLeasesEvent | ReadOnceEvent
)

encode_message = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(SupervisorCommand).decode
decode_event = msgspec.msgpack.Decoder(WorkerEvent).decode
