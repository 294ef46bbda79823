"""The schema of a state dict: the types and ranges of what it holds. Pure.

A state comes from a checkpoint or a file, which may be damaged or edited. Everything is checked before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from stagepipe.core import MAX_EPOCH, MAX_ITEM_NUMBER, Cursor, SkipCount, SourceIdentity, UsageError

STATE_VERSION: Final = 1
"""Version of the state dict. Raise it when a state of an earlier version can no longer be read."""

_MAX_SHOWN_CHARS: Final = 80
"""Characters of an unexpected value that a message shows."""

_Epoch = Annotated[int, msgspec.Meta(ge=0, le=MAX_EPOCH)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_ITEM_NUMBER)]
_SavedKey = Annotated[tuple[_Number, ...], msgspec.Meta(min_length=1)]
_T = TypeVar("_T")


class _SavedCursor(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A `Cursor` with the ranges of its numbers. Workers decode cursors with each item, so `Cursor` has none."""

    upstream: _SavedCursor | None = None
    item: _Number = 0
    last_key: _SavedKey | None = None
    emitted_count: _Number = 0
    skips: tuple[tuple[str, _SavedKey], ...] = ()
    emitted_keys: tuple[_SavedKey, ...] = ()
    replay_groups: tuple[tuple[_SavedKey, ...], ...] = ()
    stream_state: tuple[_Number, str] | None = None


class _CheckedPosition(msgspec.Struct, frozen=True, kw_only=True):
    epoch: _Epoch
    items: _Number
    cursor: _SavedCursor | None
    source: SourceIdentity | None = None
    skipped: SkipCount | None = None


class _SavedStreamState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON of a stream's own state: that of the stream, of its iterator, or of both."""

    stream: Any = msgspec.UNSET
    iterator: Any = msgspec.UNSET

    def __post_init__(self) -> None:
        """Raise ValueError where both are missing."""
        if self.stream is self.iterator is msgspec.UNSET:
            raise ValueError("the state of the stream is empty")


_STREAM_STATE_DECODER: Final = msgspec.json.Decoder(_SavedStreamState)


class SavedPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON under a rank's key: the position after `items` items of `epoch`."""

    epoch: int
    items: int
    cursor: Cursor | None
    source: SourceIdentity | None = None
    """What the source read; None at the start of an epoch, and in a state of an earlier version."""
    skipped: SkipCount | None = None
    """What `max_skipped` has counted up to the position, in all runs of the job; None: nothing, or not counted."""


def check_state_dict(state_dict: Any) -> None:
    """Raise UsageError unless this is a state dict of this version, with values of the right types."""
    if not isinstance(state_dict, Mapping) or "version" not in state_dict or "config" not in state_dict:
        found = f"keys {sorted(map(str, state_dict))}" if isinstance(state_dict, Mapping) else type(state_dict).__name__
        raise _make_error(f"(found {_shorten(found)})")
    version = state_dict["version"]
    if type(version) is not int or version != STATE_VERSION:
        message = (
            f"this state has version {_shorten(repr(version))}, expected version {STATE_VERSION}; "
            "resume with the stagepipe that saved it"
        )
        raise UsageError(message)


def decode_config(state_dict: Mapping[str, Any]) -> dict[str, str]:
    """Return the description of the config that a state was saved with. Raises UsageError if it is damaged."""
    return _decode("config", state_dict["config"], msgspec.json.Decoder(dict[str, str]).decode)


def decode_world_size(state_dict: Mapping[str, Any], default: int) -> int:
    """Return the number of ranks of the run that was saved; `default` where it is missing. Raises UsageError."""
    world_size = state_dict.get("world_size", default)
    if type(world_size) is not int or world_size < 1:
        raise _make_error(f"(`world_size` is {_shorten(repr(world_size))})")
    return world_size


def decode_position(state_dict: Mapping[str, Any], rank_key: str, order_points: int) -> SavedPosition:
    """Return the position under `rank_key`, in a pipeline with so many order points.

    Raises UsageError if it is damaged, or if it has more cursors than the pipeline has order points.
    """
    text = state_dict[rank_key]
    checked = _decode(rank_key, text, msgspec.json.Decoder(_CheckedPosition).decode)
    depth = 0
    cursor = checked.cursor
    while cursor is not None:
        depth += 1
        if cursor.stream_state is not None:
            _decode(rank_key, cursor.stream_state[1], _STREAM_STATE_DECODER.decode)
        cursor = cursor.upstream
    if depth > order_points + 1:
        raise _make_error(f"(`{rank_key}` has {depth} nested cursors, this pipeline has {order_points + 1})")
    return _decode(rank_key, text, msgspec.json.Decoder(SavedPosition).decode)


def _decode(key: str, text: object, decode: Callable[[str], _T]) -> _T:
    if not isinstance(text, str):
        raise _make_error(f"(`{key}` is of type {type(text).__name__}, expected str)")
    try:
        return decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else _shorten(str(error))
        raise _make_error(f"(`{key}` is damaged: {reason})") from error


def _make_error(problem: str) -> UsageError:
    return UsageError(f"not the state of a stagepipe pipeline {problem}; pass what state_dict() returned")


def _shorten(text: str) -> str:
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."
