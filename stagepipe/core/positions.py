"""Where a run is: keys of items, cursors, counts of skipped items, and positions of streams that save their state.

Pure values, used in every process. Streams follow torchdata's protocol `Stateful`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from stagepipe.core.errors import UsageError

Key = tuple[int, ...]
"""(item number, part, part of the part ...): identifies an item within its segment. Keys sort in output order."""

StreamState = tuple[int, str]
"""The number of items that all ranks together have read from a stream, and the stream's state then, as JSON."""


MAX_ITEM_NUMBER: Final = (1 << 39) - 1
"""The largest item number. The board counts items in 40 bits; one of them is reserved for items in flight."""

MAX_EPOCH: Final = (1 << 32) - 1
"""The largest epoch: its sum with a seed fits the 64 bits that random generators take."""


class ImposedSkip(NamedTuple):
    """An error skip within a partly emitted group: it must be repeated when the group is produced again."""

    stage: str
    key: Key


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The position of an order point in its output; `upstream` is the position of the order point before it.

    Everything after a cursor can be produced from it. With `order: any`, the cursor of the source's segment has more:
    `emitted_keys` are the leaves after `item` that have been emitted; `replay_groups` are groups, each a tuple of
    leaves, that must be produced again unchanged and first. The cursor of a pipeline's state may have a `stream_state`,
    at or before its position, at which reading the stream resumes.

    >>> Cursor().item
    0
    """

    upstream: Cursor | None = None
    item: int = 0
    last_key: Key | None = None
    emitted_count: int = 0
    skips: frozenset[ImposedSkip] = frozenset()
    emitted_keys: frozenset[Key] = frozenset()
    replay_groups: tuple[tuple[Key, ...], ...] = ()
    stream_state: StreamState | None = None


def split_by_segment(cursor: Cursor | None, segment_count: int) -> list[Cursor]:
    """The cursors of all segments, the source's first, from the cursor of the last segment.

    >>> [segment_cursor.item for segment_cursor in split_by_segment(Cursor(Cursor(None, 7), 2), 2)]
    [7, 2]
    """
    cursors = [cursor or Cursor()]
    while len(cursors) < segment_count:
        cursors.insert(0, cursors[0].upstream or Cursor())
    return cursors


_Count = Annotated[int, msgspec.Meta(ge=0)]


class SkipCount(msgspec.Struct, frozen=True):
    """The source sent `source_items`; `items` of them were skipped because of errors. See `max_skipped`."""

    items: _Count = 0
    source_items: _Count = 0


_INEXACT_ITERABLE_NAMES: Final = frozenset({"BufferShuffledExamplesIterable"})
"""Parts of a Hugging Face stream whose state omits the samples that they hold."""


def saves_state(stream: Any) -> bool:
    """Whether a stream or its iterator has `state_dict` and `load_state_dict`, and continues exactly from a state.

    A Hugging Face stream with a shuffle buffer does not: its state omits the buffer, so samples would be lost.

    >>> saves_state([1, 2])
    False
    """
    if not all(callable(getattr(stream, name, None)) for name in ("state_dict", "load_state_dict")):
        return False
    return not type(stream).__module__.startswith("datasets.") or _is_exact_hugging_face_stream(stream)


def load_into_copy(stream: Any, state: Any) -> Any:
    """A copy of a stream with a state loaded. The stream itself still starts at its beginning.

    Some streams apply a loaded state to all their iterations, so a copy is used only once. The copy is shallow: it
    shares the attributes of the stream.
    """
    try:
        loaded = object.__new__(type(stream))
        vars(loaded).update(vars(stream))  # not copy.copy: a `__getstate__` may share or drop attributes
    except TypeError:  # a class in C, or with slots
        loaded = stream
    loaded.load_state_dict(state)
    return loaded


def _is_exact_hugging_face_stream(stream: Any) -> bool:
    """Whether no part of a Hugging Face stream holds samples that its state omits."""
    if getattr(stream, "_formatting", None) is not None:  # Arrow batches of `map` may be skipped
        return False
    parts = [getattr(stream, "_ex_iterable", None)]
    while parts:
        part = parts.pop()
        if type(part).__name__ in _INEXACT_ITERABLE_NAMES:
            return False
        inner = getattr(part, "ex_iterable", None)
        parts += [*getattr(part, "ex_iterables", ()), *([] if inner is None else [inner])]
    return True


_log = logging.getLogger("stagepipe")

_MODULES_OF_READ_ONCE_ITERATORS: Final = frozenset({"builtins", "itertools"})
_MAX_STATE_BYTES: Final = 1 << 20
"""The state travels to the caller a few times per second and is part of every saved state of the pipeline."""


class PassedStream:
    """A stream that passes on the samples of another stream, `stream`."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream


class StatefulPassedStream(PassedStream):
    """A PassedStream whose stream saves and loads its state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the stream's state."""
        state: dict[str, Any] = self.stream.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of the stream. The next iteration starts there."""
        self.stream = load_into_copy(self.stream, state)


def _is_own_iterator(iterator: Any, stream: Any) -> bool:
    """Whether a stream's `__iter__` returns the stream itself, also if a PassedStream passes on its samples."""
    while isinstance(stream, PassedStream):
        stream = stream.stream
    return iterator is stream or getattr(iterator, "samples", None) is stream  # unwraps a BatchIterator


class StreamPosition:
    """Opens a stream at its start or at a saved state. Takes the state of the stream, of its iterator or of both.

    The state becomes part of the pipeline's state, which is JSON. A state that JSON would change is not used: a resume
    then reads the stream from its start, which gives the same items.

    >>> position = StreamPosition()
    >>> list(position.open([3, 4], None)), position.is_saved
    ([3, 4], False)
    """

    def __init__(self) -> None:
        self._stream: Any = None
        self._iterator: Any = None
        self._opened: Any = None
        self.is_saved = False
        """Whether `take` may return a state."""

    def open(self, stream: Iterable[Any], state: str | None) -> Iterator[Any]:
        """Iterate over a stream from its start or from `state`. Loads the stream's state first, as torchdata does.

        A stream that is its own iterator gets its state only after `__iter__`, which may restart it.

        Raises ValueError for a state that this stream cannot load, and UsageError for a stream that returns the same
        generator again.
        """
        saved = {} if state is None else json.loads(state)
        if saves_state(stream) and "stream" in saved:
            stream = load_into_copy(stream, saved["stream"])
        iterator = iter(stream)
        self._stream = stream if saves_state(stream) and not _is_own_iterator(iterator, stream) else None
        self._require_new(iterator, stream)
        self._iterator = iterator if saves_state(iterator) else None
        if self._iterator is not None and "iterator" in saved:
            self._iterator.load_state_dict(saved["iterator"])
        own_parts = {"stream": self._stream, "iterator": self._iterator}
        if missing := [name for name in saved if own_parts.get(name) is None]:
            raise ValueError(
                f"the saved state has the state of the {missing[0]}, which {type(stream).__qualname__} cannot load, "
                "because it has no `load_state_dict`; start without the state"
            )
        self.is_saved = self._stream is not None or self._iterator is not None
        return iterator

    def _require_new(self, iterator: Iterator[Any], stream: Iterable[Any]) -> None:
        """Raise UsageError for a used iterator that cannot be read again, such as the generator of the first epoch.

        An iterator of a user's class may start again on each `iter()`.
        """
        samples = getattr(iterator, "samples", iterator)  # unwraps a BatchIterator
        if samples is self._opened and type(samples).__module__ in _MODULES_OF_READ_ONCE_ITERATORS:
            raise UsageError(
                f"the source {type(stream).__name__} returns the same {type(samples).__name__} in each epoch, which "
                "can be read only once; let its `__iter__` return a new one each time"
            )
        self._opened = samples

    def take(self) -> str | None:
        """Return the state as JSON; None, after a warning, if it cannot be saved."""
        try:
            return self._take()
        except Exception as error:  # noqa: BLE001 - whatever the user's `state_dict` raises
            self.is_saved = False
            stream = self._iterator if self._stream is None else self._stream
            _log.warning(
                "the state of the stream %s cannot be saved (%s: %s), so a resume reads the stream from its start; let "
                "`state_dict` return a dict of numbers, strings, lists and dicts",
                type(stream).__name__,
                type(error).__name__,
                error,
            )
            return None

    def _take(self) -> str:
        parts = {"stream": self._stream, "iterator": self._iterator}
        state = {name: part.state_dict() for name, part in parts.items() if part is not None}
        text = json.dumps(state, separators=(",", ":"))
        if json.loads(text) != state:
            raise ValueError("JSON would change it: a tuple, or a key that is not a string")
        if len(text) > _MAX_STATE_BYTES:
            raise ValueError(f"it has {len(text)} bytes, and at most {_MAX_STATE_BYTES} can be saved")
        return text
