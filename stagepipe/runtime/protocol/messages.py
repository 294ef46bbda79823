"""The control channel: its socket and its messages, which are typed, small and never items.

Commands go to the workers, events to the supervisor. The socket has no path: the supervisor binds it, and each worker
connects to it.

Both sides run the same version of the package, so tags and fields may change between versions.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import zmq

from stagepipe.core import Cursor, Key, SourceIdentity, StreamState, UsageError, is_generator, split_by_segment
from stagepipe.plan import ItemSample
from stagepipe.stages import Filter, OrderPointStage, count_items_per_output
from stagepipe.transport import LeaseExtent


class Cardinality(msgspec.Struct, frozen=True):
    """The number of inputs of a stage for one output.

    A stage yields one output for every `items_per_output` inputs. A shorter last group yields one more, unless
    `drop_last`. If `is_known` is False, the stage yields any number of outputs. A function that sometimes returns SKIP
    cannot be recognized, so it counts as one output per input.
    """

    is_known: bool = True
    items_per_output: int = 1
    drop_last: bool = False


def infer_cardinality(target: Any) -> Cardinality:
    """Return the cardinality of a built stage.

    >>> from stagepipe.stages import Batch
    >>> infer_cardinality(Batch(4, drop_last=True))
    Cardinality(is_known=True, items_per_output=4, drop_last=True)
    """
    if isinstance(target, OrderPointStage):
        count = count_items_per_output(target)
        return Cardinality(is_known=count is not None, items_per_output=count or 1, drop_last=target.drop_last)
    return Cardinality(is_known=not (isinstance(target, Filter) or is_generator(target)))


def count_outputs(source_items: int | None, cardinalities: Iterable[Cardinality]) -> int | None:
    """Return how many items leave the last stage for `source_items` source items; None if unknown.

    >>> count_outputs(10, [Cardinality(), Cardinality(items_per_output=4)])
    3
    """
    for stage in cardinalities:
        if source_items is None or not stage.is_known:
            return None
        source_items = (
            source_items // stage.items_per_output if stage.drop_last else -(-source_items // stage.items_per_output)
        )
    return source_items


class ForcedSkip(msgspec.Struct, frozen=True, array_like=True):
    """An item that a stage skips without a call, because a cursor says so or because the item killed workers.

    If it killed `kill_count` workers, it has an `error`, and the skip is a failure of the item.
    """

    stage: str
    key: Key
    error: str = ""
    kill_count: int = 0


class UnbatchedRange(msgspec.Struct, frozen=True, array_like=True):
    """Items that a stage processes one by one instead of together, to find the item that kills its worker."""

    stage: str
    first_item: int
    last_item: int


class Seek(msgspec.Struct, tag="seek", frozen=True, kw_only=True, array_like=True):
    """Start a new generation at `cursor`, a cursor of the last segment. Windows are listed by segment.

    `rebuild_stateful` is False only if the seek follows the natural end of an epoch. With `is_recovery` the same
    iteration continues, so the source reads some items again. A stream source continues from `stream_state`. The seek
    is encoded without field names, because the board has room for only about a thousand bytes.
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
        """Return the cursor of a segment; segment 0 is the source's."""
        return split_by_segment(self.cursor, len(self.windows))[segment]


class Stop(msgspec.Struct, tag="stop", frozen=True, array_like=True):
    """Stop after the current item."""


class Retire(msgspec.Struct, tag="retire", frozen=True, array_like=True):
    """Take no more items. Finish the current ones, wait until no other process uses your memory, and exit."""


class ReadyEvent(msgspec.Struct, tag="ready", frozen=True, kw_only=True):
    """The worker has built its stages. `epoch_items` is the length of an epoch, only from a source with `__len__`.

    `source` identifies the data of the source; None from other workers.
    """

    process: int
    incarnation: int
    cardinalities: list[Cardinality]
    epoch_items: int | None = None
    source: SourceIdentity | None = None


class FailureEvent(msgspec.Struct, tag="failure", frozen=True, kw_only=True):
    """A stage raised an error, an item could not be sent, or a stage could not be built (then `generation` is 0).

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
    """An item failed at a stage and is skipped. `source_items` are the source items from which it was made."""

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
    """An item did not fit into the worker's arena. `held_bytes` are the worker's own leases and loans."""

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
    """Determinism check: the digest of item `key` as worker `worker` of process `process` sends it."""

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
    """The source is a stream that saves its state. This is the state before item `item` of this rank."""

    epoch: int
    item: int
    state: StreamState


class ReadOnceEvent(msgspec.Struct, tag="read_once", frozen=True, kw_only=True):
    """Probe run: the source can be read only once, so the run would miss the items that the probe reads."""

    process: int


SupervisorCommand = Seek | Stop | Retire
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


_RESOURCE_LIMIT_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class ControlSocket:
    """A ROUTER socket. A process that inherits `fd` can connect to `get_control_address(fd)` at any time.

    zmq needs a path to bind and to connect. The path is removed before any worker starts, so that a run leaves no file
    behind, however it ends. A descriptor of the socket's inode (O_PATH, open(2)) still leads to the socket, through
    /proc/self/fd.
    """

    def __init__(self, exit_stack: contextlib.ExitStack) -> None:
        """Bind the socket; `exit_stack` closes it. Raises UsageError if no folder is writable."""
        context = zmq.Context()
        exit_stack.callback(context.destroy, 0)  # also closes the socket; `term` would wait for an open one
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a successor connects under the identity of the dead worker
        self.fd = self._bind()
        exit_stack.callback(os.close, self.fd)

    def _bind(self) -> int:
        failures = []
        for folder in _iter_candidate_folders():
            try:
                return self._bind_in(folder)
            except (OSError, zmq.ZMQError) as error:
                if error.errno in _RESOURCE_LIMIT_ERRNOS:
                    raise
                failures.append(f"{folder}: {os.strerror(error.errno or 0)}")
        raise UsageError(
            "the control channel's socket cannot be bound: no temporary folder is writable "
            f"({'; '.join(failures)}); set TMPDIR to a writable folder"
        )

    def _bind_in(self, parent: str) -> int:
        with tempfile.TemporaryDirectory(prefix="stagepipe-", dir=parent) as folder:
            folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:  # by descriptor: unix(7) allows paths of 107 bytes, and TMPDIR may be longer
                self.socket.bind(f"ipc:///proc/self/fd/{folder_fd}/control")
            finally:
                os.close(folder_fd)
            return os.open(Path(folder) / "control", os.O_PATH | os.O_CLOEXEC)


def _iter_candidate_folders() -> Iterator[str]:
    """Yield the folders to try: the temporary folder first, then folders in memory."""
    with contextlib.suppress(FileNotFoundError):  # TMPDIR, /tmp, /var/tmp and the current folder are all read-only
        yield tempfile.gettempdir()
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    yield from (runtime, "/dev/shm")  # noqa: S108 - the folder made in it is 0700


def get_control_address(fd: int) -> str:
    """Return the zmq address of the control socket that this process inherited as `fd`."""
    return f"ipc:///proc/self/fd/{fd}"
