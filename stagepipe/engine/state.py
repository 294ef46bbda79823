"""Converts an iteration's position to a state dict and back, or says why the state does not fit. Pure.

A state dict is small and flat; its values are numbers and strings. It has the same keys at any position of any epoch,
so `torch.distributed.checkpoint` can fill one from another. The position of a rank has the rank in its key, so that one
rank's is never taken for another's, and the states of all ranks merge into one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from stagepipe.core import SkipCount, SourceIdentity, UsageError
from stagepipe.engine.config_description import ORDER_POINTS_KEY, PYTHON_KEY, is_position_key
from stagepipe.engine.position import EpochPosition
from stagepipe.engine.resharding import reshard_position
from stagepipe.engine.state_schema import (
    STATE_VERSION,
    SavedPosition,
    check_state_dict,
    decode_config,
    decode_position,
    decode_world_size,
)
from stagepipe.fingerprint import find_differences, get_unknown_reason
from stagepipe.plan import Shard

_ACCEPT_HINT: Final = "accept it with allow_changed=True (`stagepipe run --allow-changed`)"


def make_state_dict(
    position: EpochPosition,
    config_description: Mapping[str, str],
    shard: Shard,
    source: SourceIdentity | None = None,
    skipped: SkipCount | None = None,
) -> dict[str, Any]:
    """Return the state dict of `position`. `config_description` is the result of `describe_config`.

    `source` is what the source reads. The start of an epoch needs none: no item of it is out. `skipped` is what the job
    has skipped up to the position.
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
    """Return the position in a state dict, or in a list of them: those of all ranks, perhaps of another world size.

    `order_points` are the names of the pipeline's order points. Raises UsageError if it is not a state or is damaged,
    if it belongs to another version or another rank, or, with the differences, to a config that yields other items.
    With `allow_changed`, the config may differ in all that leaves the position its meaning.
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
        positions = [_parse_position(state_dict, f"rank{rank}", depth) for rank in range(saved_world_size)]
        if is_inline and any(position.items_yielded for position in positions):
            message = "an inline pipeline cannot resume at another world size in the middle of an epoch"
            raise UsageError(f"{message}; remove `inline`")
        return reshard_position(positions, shard, order_points)
    rank_key = f"rank{shard.rank}"
    if rank_key not in state_dict:
        ranks = ", ".join(sorted(key for key in map(str, state_dict) if key.startswith("rank")))
        message = f"this state is of {ranks or 'no rank'}, but this is {rank_key}; load the state that this rank saved"
        raise UsageError(message)
    return _parse_position(state_dict, rank_key, depth)


def find_saved_source(state: Mapping[str, Any] | Sequence[Mapping[str, Any]], shard: Shard) -> SourceIdentity | None:
    """Return the source of a state that `parse_state_dict` has accepted: that of the rank, else of another one."""
    saved, _ = _decode_positions(state, shard)
    sources = [saved[rank].source for rank in (shard.rank, *saved) if rank in saved]
    return next((source for source in sources if source is not None), None)


def find_saved_skips(state: Mapping[str, Any] | Sequence[Mapping[str, Any]], shard: Shard) -> SkipCount | None:
    """Return what was skipped up to a state that `parse_state_dict` has accepted; None if nothing was counted.

    Each rank has its own count. In a world of another size, each gets the mean of the ranks, so that it has used the
    same share of its allowance.
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
    """Return the positions of the ranks in a state, and the world size that it was saved at."""
    state_dict: Any = merge_states(state) if isinstance(state, list | tuple) else state
    world_size = decode_world_size(state_dict, default=shard.world_size)
    texts = {rank: state_dict.get(f"rank{rank}") for rank in range(world_size)}
    positions = {rank: msgspec.json.decode(text, type=SavedPosition) for rank, text in texts.items() if text}
    return positions, world_size


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state dicts of several ranks as one. Raises UsageError if they are not of one run."""
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
    """Raise UsageError unless the states of all ranks are there: another number of ranks needs them all."""
    rank_keys = (f"rank{rank}" for rank in range(saved_world_size))
    missing = next((key for key in rank_keys if key not in state_dict), None)
    if missing is not None:
        raise UsageError(
            f"this state is of another number of ranks (world_size: saved {saved_world_size}, now {shard.world_size}) "
            f"and has no {missing}; pass the states of all {saved_world_size} ranks in one list"
        )


def _parse_position(state_dict: Mapping[str, Any], rank_key: str, order_points: int) -> EpochPosition:
    saved = decode_position(state_dict, rank_key, order_points)
    return EpochPosition(saved.epoch, saved.items, saved.cursor)


def _check_config(saved: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise UsageError, with the differences, unless both configs are known to yield the same items."""
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
    """Yield the settings that differ. Digests of code made by different versions of Python cannot be compared."""
    python_versions = saved.get(PYTHON_KEY), current.get(PYTHON_KEY)
    is_same_python = None in python_versions or python_versions[0] == python_versions[1]
    for path, difference in find_differences(saved, current, with_digests=is_same_python):
        if path == PYTHON_KEY and not is_same_python:
            yield f"{difference}; bytecode differs between versions, so the code of functions cannot be compared"
        elif path not in {PYTHON_KEY, ORDER_POINTS_KEY}:
            yield difference


def _check_position_keys(saved: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise UsageError if a position of the saved config means nothing in the current one."""
    differences = [text for path, text in find_differences(saved, current) if is_position_key(path)]
    if differences:
        message = "this state has no position in this config, even with allow_changed=True:\n  "
        hint = "resume with these settings of the saved run, or start without the state"
        raise UsageError("\n".join((message + "\n  ".join(differences), hint)))
