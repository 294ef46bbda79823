"""The state of a pipeline: converts a position to a state dict and back, and explains misfits of a state. Pure.

A state dict is small and flat; its values are numbers and strings. It has the same keys at every position of every
epoch, so `torch.distributed.checkpoint` can load one into another. The key of a position contains its rank, so the
positions of two ranks cannot be confused, and the states of all ranks merge into one.

A state comes from a checkpoint or a file, which may be damaged or edited. The code checks it before a run starts.

The states of all ranks can be resharded to another number of ranks. Item i of the source's order belongs to rank
i % world_size. If the old ranks together have consumed the first P items, rank r of the new world starts at its first
item from P on, so no item is lost or repeated. The outputs of an order point are numbered by rank in the same way, so
no two outputs get the same seed.

Two configs are compared by their lines (`stagepipe.engine.identity`), which describe the items and their order. The
lines leave out workers, transport and memory, which may change between a save and a resume.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec

from stagepipe.core import (
    MAX_EPOCH,
    MAX_ITEM_NUMBER,
    Cursor,
    SkipCount,
    SourceFiles,
    SourceIdentity,
    UsageError,
    split_by_segment,
)
from stagepipe.engine.identity import ORDER_POINTS_KEY, PYTHON_KEY, is_position_key
from stagepipe.engine.iteration import EpochPosition
from stagepipe.fingerprint import find_differences, get_unknown_reason
from stagepipe.plan import Shard

STATE_VERSION: Final = 1
"""Version of the state dict. Raise it when the code can no longer read states of an earlier version."""

_MAX_SHOWN_CHARS: Final = 80
"""Maximum characters of an unexpected value in a message."""

_Epoch = Annotated[int, msgspec.Meta(ge=0, le=MAX_EPOCH)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_ITEM_NUMBER)]
_SavedKey = Annotated[tuple[_Number, ...], msgspec.Meta(min_length=1)]
_T = TypeVar("_T")


class _SavedCursor(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A `Cursor` with checked ranges. `Cursor` has no checks, because workers decode one with each item."""

    upstream: _SavedCursor | None = None
    item: _Number = 0
    last_key: _SavedKey | None = None
    emitted_count: _Number = 0
    skips: tuple[tuple[str, _SavedKey], ...] = ()
    emitted_keys: tuple[_SavedKey, ...] = ()
    replay_groups: tuple[tuple[_SavedKey, ...], ...] = ()
    stream_state: tuple[_Number, str] | None = None


class SavedPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON under a rank's key: the position after `items` items of `epoch`."""

    epoch: _Epoch
    items: _Number
    cursor: _SavedCursor | None
    source: SourceIdentity | None = None
    """The identity of the source; None at the start of an epoch, and in states of earlier versions."""
    skipped: SkipCount | None = None
    """The count of `max_skipped` up to the position, over all runs of the job; None if nothing was counted."""


class _SavedStreamState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON of a stream's own state: the state of the stream, of its iterator, or of both."""

    stream: Any = msgspec.UNSET
    iterator: Any = msgspec.UNSET

    def __post_init__(self) -> None:
        """Raise ValueError if both are missing."""
        if self.stream is self.iterator is msgspec.UNSET:
            raise ValueError("the state of the stream is empty")


_STREAM_STATE_DECODER: Final = msgspec.json.Decoder(_SavedStreamState)


def check_state_dict(state_dict: Any) -> None:
    """Raise UsageError unless `state_dict` is a state of this version with values of the right types."""
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
    """Return the description of the config at the time of the save. Raises UsageError if it is damaged."""
    return _decode("config", state_dict["config"], msgspec.json.Decoder(dict[str, str]).decode)


def decode_world_size(state_dict: Mapping[str, Any], default: int) -> int:
    """Return the number of ranks of the saved run, or `default` if missing. Raises UsageError if it is invalid."""
    world_size = state_dict.get("world_size", default)
    if type(world_size) is not int or world_size < 1:
        raise _make_error(f"(`world_size` is {_shorten(repr(world_size))})")
    return world_size


def decode_position(state_dict: Mapping[str, Any], rank_key: str, order_points: int) -> EpochPosition:
    """Return the position under `rank_key`, in a pipeline with `order_points` order points.

    Raises UsageError if the position is damaged, or has more cursors than the pipeline has segments.
    """
    saved = _decode(rank_key, state_dict[rank_key], msgspec.json.Decoder(SavedPosition).decode)
    depth = 0
    cursor = saved.cursor
    while cursor is not None:
        depth += 1
        if cursor.stream_state is not None:
            _decode(rank_key, cursor.stream_state[1], _STREAM_STATE_DECODER.decode)
        cursor = cursor.upstream
    if depth > order_points + 1:
        raise _make_error(f"(`{rank_key}` has {depth} nested cursors, this pipeline has {order_points + 1})")
    return EpochPosition(saved.epoch, saved.items, msgspec.convert(msgspec.to_builtins(saved.cursor), Cursor | None))


def _decode(key: str, text: object, decode: Callable[[str], _T]) -> _T:
    if not isinstance(text, str):
        raise _make_error(f"(`{key}` is of type {type(text).__name__}, expected str)")
    try:
        return decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else _shorten(str(error))
        raise _make_error(f"(`{key}` is damaged: {reason})") from error


def _make_error(problem: str) -> UsageError:
    return UsageError(f"not the state of a stagepipe pipeline {problem}; pass the return value of state_dict()")


def _shorten(text: str) -> str:
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


def reshard_position(positions: Sequence[EpochPosition], shard: Shard, order_points: Sequence[str]) -> EpochPosition:
    """Return the position of `shard` after all items that the old ranks have consumed. `positions` are in rank order.

    `order_points` are the names of the pipeline's order points. Raises UsageError, with the rank, if a rank has stopped
    inside an item or a group, or if the ranks have not consumed a common prefix of the order.

    >>> old = [EpochPosition(0, 2, Cursor(None, 2)) for _ in range(3)]  # ranks 0 to 2 have consumed items 0 to 5
    >>> [reshard_position(old, Shard(rank, 4), ()).cursor.item for rank in range(4)]  # 8, 9, 6, 7 come next
    [2, 2, 1, 1]
    """
    epochs = [position.epoch for position in positions]
    if len(set(epochs)) > 1:
        raise _make_uneven_error("epochs", epochs)
    if not any(position.items_yielded for position in positions):
        return EpochPosition(epochs[0])
    segment_positions = [
        _get_segment_positions(rank, position, order_points) for rank, position in enumerate(positions)
    ]
    cursor: Cursor | None = None
    for reached in zip(*segment_positions, strict=True):
        cursor = Cursor(cursor, _deal_out(reached, shard))
    items_yielded = sum(position.items_yielded for position in positions)
    return EpochPosition(epochs[0], _count_own_items(items_yielded, shard), cursor)


def _get_segment_positions(rank: int, position: EpochPosition, order_points: Sequence[str]) -> list[int]:
    """Return the number of items that a rank has consumed in each segment. Raises UsageError for a part of an item."""
    if position.cursor is None and position.items_yielded:
        raise UsageError(
            f"the state of rank {rank} was saved by an inline pipeline, which does not know its position in the "
            "source; resume at the world size of the saved run"
        )
    reached = []
    for cursor, stage in zip(
        split_by_segment(position.cursor, len(order_points) + 1), (*order_points, ""), strict=True
    ):
        if part := _name_open_part(cursor, stage):
            raise UsageError(
                f"rank {rank} has delivered only a part of {part}, which another number of ranks cannot continue; save "
                "at the end of an epoch or of a group, or resume at the world size of the saved run"
            )
        reached.append(cursor.item + (cursor.last_key is not None))
    return reached


def _name_open_part(cursor: Cursor, stage: str) -> str:
    """Return the thing that a rank has delivered only in part, or "". `stage` groups the items of the segment."""
    if cursor.emitted_count:
        return f"a group of stage {stage}"
    if cursor.emitted_keys or cursor.replay_groups:
        return "the items in flight (`order: any`)"
    return "" if cursor.last_key in {None, (cursor.item,)} else f"item {cursor.item}"


def _deal_out(reached: Sequence[int], shard: Shard) -> int:
    """Return how many of the items that the old ranks have consumed belong to `shard`."""
    total = sum(reached)
    if any(count != _count_own_items(total, Shard(rank, len(reached))) for rank, count in enumerate(reached)):
        raise _make_uneven_error("positions", reached)
    return _count_own_items(total, shard)


def _count_own_items(total_items: int, shard: Shard) -> int:
    """Return how many of the first `total_items` items of the order belong to a rank, without padding."""
    return len(range(shard.rank, total_items, shard.world_size))


def _make_uneven_error(what: str, values: Sequence[int]) -> UsageError:
    return UsageError(
        f"the ranks stopped at different {what} (rank 0 first: {', '.join(map(str, values))}), so no other number of "
        "ranks can continue; save all ranks at the same step, or resume at the world size of the saved run (items that "
        "a stage drops can move the ranks apart)"
    )


_log = logging.getLogger("stagepipe")

_HINT: Final = (
    "restore the data of the saved run, start without the state, or accept it with allow_changed=True "
    "(`stagepipe run --allow-changed`)"
)


def check_source(saved: SourceIdentity, current: SourceIdentity) -> None:
    """Raise UsageError, with the differences, if the items or files of a source have changed since a state was saved.

    If only the times of files differ and samples of their contents agree, log a warning: copying changes the times.
    """
    if differences := list(_iter_source_differences(saved, current)):
        message = "the data has changed since this state was saved; resuming would lose or repeat items:\n  "
        raise UsageError("\n".join((message + "\n  ".join(differences), _HINT)))
    if saved.files is not None and current.files is not None and saved.files.versions != current.files.versions:
        names = _name_changed(saved.files, current.files, with_versions=True)
        _log.warning(
            "the source files have the same sizes as when this state was saved, but other modification times%s; only "
            "samples of them were compared: if they are not copies, their content, and so the items, may have changed",
            f": {names}" if names else "",
        )


def _iter_source_differences(saved: SourceIdentity, current: SourceIdentity) -> Iterator[str]:
    if None not in {saved.items, current.items} and saved.items != current.items:
        yield f"source: {saved.items} items when saved, now {current.items}"
    if saved.files is None or current.files is None:
        return
    if saved.files.contents != current.files.contents:
        names = _name_changed(saved.files, current.files, with_versions=False)
        counts = f"{saved.files.count} files when saved, now {current.files.count}"
        yield f"source files changed since the state was saved: {names or f'{counts}; names or sizes differ'}"
    elif _are_rewritten(saved.files, current.files):
        names = _name_changed(saved.files, current.files, with_versions=True)
        yield f"source files were written again since the state was saved: {names or f'some of {saved.files.count}'}"


def _are_rewritten(saved: SourceFiles, current: SourceFiles) -> bool:
    """Return whether files with equal names and sizes have new times, and are not copies."""
    if saved.versions == current.versions or saved.samples is None or current.samples is None:
        return False
    has_other_content = saved.samples.blocks != current.samples.blocks
    has_same_times = saved.samples.versions == current.samples.versions  # so files outside the samples have changed
    return has_other_content or has_same_times


def _name_changed(saved: SourceFiles, current: SourceFiles, *, with_versions: bool) -> str:
    """Return the names of files that only one of the two lists has; "" if a list is missing, for too many files."""
    if not saved.listed or not current.listed:
        return ""
    width = 3 if with_versions else 2
    changed = {file[:width] for file in saved.listed} ^ {file[:width] for file in current.listed}
    return ", ".join(sorted({str(file[0]) for file in changed}))


_ACCEPT_HINT: Final = "accept it with allow_changed=True (`stagepipe run --allow-changed`)"


def make_state_dict(
    position: EpochPosition,
    config_description: Mapping[str, str],
    shard: Shard,
    source: SourceIdentity | None = None,
    skipped: SkipCount | None = None,
) -> dict[str, Any]:
    """Return the state dict of `position`. `config_description` is the result of `describe_config`.

    `source` is the identity of the source; the start of an epoch needs none, because none of its items is out.
    `skipped` counts the items that the job has skipped up to the position.
    """
    position_fields = {
        "epoch": position.epoch,
        "items": position.items_yielded,
        "cursor": msgspec.to_builtins(position.cursor, order="deterministic"),
    }
    if source is not None and not position.is_start:
        position_fields["source"] = msgspec.to_builtins(source)
    if skipped:
        position_fields["skipped"] = msgspec.to_builtins(skipped)
    return {
        "version": STATE_VERSION,
        "world_size": shard.world_size,
        "config": json.dumps(config_description, separators=(",", ":")),
        f"rank{shard.rank}": json.dumps(position_fields, separators=(",", ":")),
    }


def parse_state_dict(
    state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    config_description: Mapping[str, str],
    shard: Shard,
    *,
    order_points: Sequence[str] = (),
    is_inline: bool = False,
    allow_changed: bool = False,
) -> EpochPosition:
    """Return the position in a state dict, or in a list with the states of all ranks, perhaps of another world size.

    `order_points` are the names of the pipeline's order points. Raises UsageError if `state` is not a state or is
    damaged, or belongs to another version or rank. Also raises it, with the differences, if the config of the state
    yields other items. With `allow_changed`, only differences that change the meaning of the position raise.
    """
    state_dict: Any = merge_states(state) if isinstance(state, list | tuple) else state
    check_state_dict(state_dict)
    saved_description = decode_config(state_dict)
    saved_description.setdefault(ORDER_POINTS_KEY, config_description[ORDER_POINTS_KEY])  # an earlier version has none
    saved_world_size = decode_world_size(state_dict, default=shard.world_size)
    is_resharded = saved_world_size != shard.world_size and "share" not in saved_description
    if is_resharded:
        _require_all_ranks(state_dict, saved_world_size, shard)
        saved_description["world_size"] = config_description["world_size"]
    (_check_position_keys if allow_changed else _check_config)(saved_description, config_description)
    depth = int(config_description[ORDER_POINTS_KEY])
    if is_resharded:
        positions = [decode_position(state_dict, f"rank{rank}", depth) for rank in range(saved_world_size)]
        if is_inline and any(position.items_yielded for position in positions):
            message = "an inline pipeline cannot resume at another world size in the middle of an epoch"
            raise UsageError(f"{message}; remove `inline`")
        return reshard_position(positions, shard, order_points)
    rank_key = f"rank{shard.rank}"
    if rank_key not in state_dict:
        ranks = ", ".join(sorted(key for key in map(str, state_dict) if key.startswith("rank")))
        message = f"this state has {ranks or 'no rank'}, but this is {rank_key}; load the state that this rank saved"
        raise UsageError(message)
    return decode_position(state_dict, rank_key, depth)


def find_saved_source(state: Mapping[str, Any] | Sequence[Mapping[str, Any]], shard: Shard) -> SourceIdentity | None:
    """Return the source identity in an accepted state: from this rank, or else from another rank."""
    saved, _ = _decode_positions(state, shard)
    sources = [saved[rank].source for rank in (shard.rank, *saved) if rank in saved]
    return next((source for source in sources if source is not None), None)


def find_saved_skips(state: Mapping[str, Any] | Sequence[Mapping[str, Any]], shard: Shard) -> SkipCount | None:
    """Return the skip count of a state that `parse_state_dict` has accepted; None if nothing was counted.

    Each rank has its own count. At another world size, each rank gets the sum of the counts divided by the saved world
    size, rounded up, so that it has used the same share of its allowance.
    """
    saved, world_size = _decode_positions(state, shard)
    if world_size == shard.world_size:
        return saved[shard.rank].skipped
    counts = [position.skipped for position in saved.values() if position.skipped is not None]
    if not counts:
        return None
    return SkipCount(
        math.ceil(sum(count.items for count in counts) / world_size),
        math.ceil(sum(count.source_items for count in counts) / world_size),
    )


def _decode_positions(
    state: Mapping[str, Any] | Sequence[Mapping[str, Any]], shard: Shard
) -> tuple[dict[int, SavedPosition], int]:
    """Return the positions of the ranks in a state, and its world size."""
    state_dict: Any = merge_states(state) if isinstance(state, list | tuple) else state
    world_size = decode_world_size(state_dict, default=shard.world_size)
    texts = {rank: state_dict.get(f"rank{rank}") for rank in range(world_size)}
    positions = {rank: msgspec.json.decode(text, type=SavedPosition) for rank, text in texts.items() if text}
    return positions, world_size


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the state dicts of several ranks into one. Raises UsageError if they belong to different runs."""
    merged: dict[str, Any] = {}
    for index, state_dict in enumerate(states):
        check_state_dict(state_dict)
        differing = [key for key, value in state_dict.items() if merged.get(key, value) != value]
        if differing:
            raise UsageError(
                f"the states of a list must be of different ranks of one run, but state {index} has another "
                f"`{differing[0]}` than one before it; pass the states that all ranks saved at the same step"
            )
        merged |= state_dict
    return merged


def _require_all_ranks(state_dict: Mapping[str, Any], saved_world_size: int, shard: Shard) -> None:
    """Raise UsageError unless the states of all ranks are present, as resharding needs."""
    rank_keys = (f"rank{rank}" for rank in range(saved_world_size))
    missing = next((key for key in rank_keys if key not in state_dict), None)
    if missing is not None:
        raise UsageError(
            f"this state comes from another number of ranks (world_size: saved {saved_world_size}, now "
            f"{shard.world_size}) and has no {missing}; pass the states of all {saved_world_size} ranks in one list"
        )


def _check_config(saved: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise UsageError, with the differences, unless both configs certainly yield the same items."""
    if differences := list(_iter_differences(saved, current)):
        message = "this state was saved with a different config; resuming would yield different data:\n  "
        hint = f"resume with the config of the saved run, start without the state, or {_ACCEPT_HINT}"
        raise UsageError("\n".join((message + "\n  ".join(differences), hint)))
    reasons = {
        path: get_unknown_reason(current.get(path, "")) or get_unknown_reason(saved.get(path, ""))
        for path in {**saved, **current}
    }
    if unknown_parts := [f"{path}: {reason}" for path, reason in reasons.items() if reason]:
        message = "this state cannot be compared with the config, because there is no fingerprint of\n  "
        hint = f"create such an object inside the stage, leave it out in its owner's `__getstate__`, or {_ACCEPT_HINT}"
        raise UsageError("\n".join((message + "\n  ".join(unknown_parts), hint)))


def _iter_differences(saved: Mapping[str, str], current: Mapping[str, str]) -> Iterator[str]:
    """Yield the differing settings. Code digests from different versions of Python are not comparable."""
    python_versions = saved.get(PYTHON_KEY), current.get(PYTHON_KEY)
    is_same_python = None in python_versions or python_versions[0] == python_versions[1]
    for path, difference in find_differences(saved, current, with_digests=is_same_python):
        if path == PYTHON_KEY and not is_same_python:
            yield f"{difference}; bytecode differs between versions, so the code of functions cannot be compared"
        elif path not in {PYTHON_KEY, ORDER_POINTS_KEY}:
            yield difference


def _check_position_keys(saved: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise UsageError if a position of the saved config has no meaning in the current config."""
    differences = [text for path, text in find_differences(saved, current) if is_position_key(path)]
    if differences:
        message = "this state has no position in this config, even with allow_changed=True:\n  "
        hint = "resume with these settings of the saved run, or start without the state"
        raise UsageError("\n".join((message + "\n  ".join(differences), hint)))
