"""The messages of the control channel: commands to the workers, events to the supervisor. Typed and small, never items.

Both sides run the same version of the package, so tags and fields may change between versions.
"""

from __future__ import annotations

import msgspec

from stagepipe.core import Cursor, Key, SourceIdentity, StreamState, split_by_segment
from stagepipe.plan import ItemSample
from stagepipe.runtime.protocol.cardinality import Cardinality
from stagepipe.transport import LeaseExtent


class ForcedSkip(msgspec.Struct, frozen=True, array_like=True):
    """An item that a stage skips without a call, because a cursor says so.

    With an `error`, because it has killed `kill_count` workers: then the skip is a failure of the item.
    """

    stage: str
    key: Key
    error: str = ""
    kill_count: int = 0


class UnbatchedRange(msgspec.Struct, frozen=True, array_like=True):
    """Items that a stage with a `batch` processes one by one, to find the one that kills its worker."""

    stage: str
    first_item: int
    last_item: int


class Seek(msgspec.Struct, tag="seek", frozen=True, kw_only=True, array_like=True):
    """Start a new generation at `cursor`, a cursor of the last segment. Windows are by segment.

    `rebuild_stateful` is False only where the seek follows the natural end of an epoch. With `is_recovery` the same
    iteration goes on, so that the source reads some items again. A source that is a stream reads on from
    `stream_state`. The board has room for about a
    thousand bytes, so all of it is written without field names.
    """

    generation: int
    epoch: int
    cursor: Cursor
    windows: list[int]
    small_item_windows: list[int]
    era: int = 0
    forced_skips: list[ForcedSkip] = []
    unbatched_ranges: list[UnbatchedRange] = []
    rebuild_stateful: bool = False
    is_recovery: bool = False
    stream_state: StreamState | None = None

    def segment_cursor(self, segment: int) -> Cursor:
        """Return the cursor of a segment; that of the source's is 0."""
        return split_by_segment(self.cursor, len(self.windows))[segment]


class Stop(msgspec.Struct, tag="stop", frozen=True, array_like=True):
    """Stop after the item in hand."""


class ReadyEvent(msgspec.Struct, tag="ready", frozen=True, kw_only=True):
    """The worker has built its stages. `epoch_items` is the length of an epoch, from a source with `__len__` only.

    `source` is what the source reads; None from other workers.
    """

    process: int
    incarnation: int
    cardinalities: list[Cardinality]
    epoch_items: int | None = None
    source: SourceIdentity | None = None


class FailureEvent(msgspec.Struct, tag="failure", frozen=True, kw_only=True):
    """A stage raised, an item could not be sent, or a stage could not be built (then `generation` is 0).

    `error_type` names the type of the user's exception; see `stagepipe.core.name_error_type`.
    """

    process: int
    stage: str
    worker: int
    item: str
    message: str
    trace: str
    generation: int
    error_type: str = ""


class DeadLetterEvent(msgspec.Struct, tag="dead_letter", frozen=True, kw_only=True):
    """An item failed at a stage and is skipped. `source_items` are the source items that it was made of."""

    process: int
    stage: str
    worker: int
    key: Key
    item: str
    error: str
    trace: str
    attempts: int
    generation: int
    epoch: int
    source_items: list[int]


class ArenaFullEvent(msgspec.Struct, tag="arena_full", frozen=True, kw_only=True):
    """An item did not fit into the worker's arena. `held_bytes` is what the worker itself had leased or on loan."""

    process: int
    stage: str
    worker: int
    item: str
    generation: int
    error: str
    held_bytes: int = 0


class ProbeSample(msgspec.Struct, tag="probe_sample", frozen=True, kw_only=True):
    """Probe run: an item that the process is about to send, and its CPU time and CPU wait so far."""

    process: int
    cpu_ns: int
    cpu_delay_ns: int
    item: ItemSample


class ItemDigestEvent(msgspec.Struct, tag="item_digest", frozen=True, kw_only=True):
    """Determinism check: what worker `worker` of process `process` sends for item `key`, as a digest."""

    process: str
    worker: int
    key: Key
    digest: bytes


class StaleLeasesEvent(msgspec.Struct, tag="stale_leases", frozen=True, kw_only=True):
    """The process has entered `era` and still has these leases on blocks of older eras."""

    process: int
    era: int
    leases: list[LeaseExtent]


class StreamStateEvent(msgspec.Struct, tag="stream_state", frozen=True, kw_only=True):
    """The source is a stream that saves its state, and this is its state before item `item` of this rank."""

    epoch: int
    item: int
    state: StreamState


class ReadOnceEvent(msgspec.Struct, tag="read_once", frozen=True, kw_only=True):
    """Probe run: the source can be read only once, so the run would miss the items that the probe reads."""

    process: int


SupervisorCommand = Seek | Stop
WorkerEvent = (
    ReadyEvent
    | FailureEvent
    | DeadLetterEvent
    | ArenaFullEvent
    | ProbeSample
    | ItemDigestEvent
    | StaleLeasesEvent
    | StreamStateEvent
    | ReadOnceEvent
)

encode_message = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(SupervisorCommand).decode
decode_event = msgspec.msgpack.Decoder(WorkerEvent).decode
