"""Converts an iteration's position to a state dict and back, or says why the state does not fit. Pure.

A state dict is small and flat; its values are numbers and strings. It has the same keys at any position of any epoch,
so `torch.distributed.checkpoint` can fill one from another. The position of a rank has the rank in its key, so that one
rank's is never taken for another's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from stagepipe.core import Cursor, UsageError
from stagepipe.engine.config_description import ORDER_POINTS_KEY, PYTHON_KEY, is_position_key
from stagepipe.engine.state_schema import STATE_VERSION, check_state_dict, decode_config, decode_position
from stagepipe.fingerprint import find_differences, get_unknown_reason
from stagepipe.plan import Shard

_ACCEPT_HINT: Final = "accept it with allow_changed=True (`stagepipe run --allow-changed`)"


@dataclass(frozen=True)
class EpochPosition:
    """A position in an epoch, after `items_yielded` items. `cursor` is that of the last item; None at the start."""

    epoch: int = 0
    items_yielded: int = 0
    cursor: Cursor | None = None


def make_state_dict(position: EpochPosition, config_description: Mapping[str, str], shard: Shard) -> dict[str, Any]:
    """Return the state dict of `position`. `config_description` is the result of `describe_config`."""
    position_fields = {
        "epoch": position.epoch,
        "items": position.items_yielded,
        "cursor": msgspec.to_builtins(position.cursor, order="deterministic"),
    }
    return {
        "version": STATE_VERSION,
        "world_size": shard.world_size,
        "config": json.dumps(config_description, separators=(",", ":")),
        f"rank{shard.rank}": json.dumps(position_fields, separators=(",", ":")),
    }


def parse_state_dict(
    state_dict: Mapping[str, Any], config_description: Mapping[str, str], shard: Shard, *, allow_changed: bool = False
) -> EpochPosition:
    """Return the position in a state dict.

    Raises UsageError if it is not a state or is damaged, if it belongs to another version or another rank, or, with the
    differences, to a config that yields other items. With `allow_changed`, the config may differ in all that leaves the
    position its meaning.
    """
    check_state_dict(state_dict)
    saved_description = decode_config(state_dict)
    saved_description.setdefault(ORDER_POINTS_KEY, config_description[ORDER_POINTS_KEY])  # an earlier version has none
    (_check_position_keys if allow_changed else _check_config)(saved_description, config_description)
    rank_key = f"rank{shard.rank}"
    if rank_key not in state_dict:
        ranks = ", ".join(sorted(key for key in map(str, state_dict) if key.startswith("rank")))
        message = f"this state is of {ranks or 'no rank'}, but this is {rank_key}; load the state that this rank saved"
        raise UsageError(message)
    saved = decode_position(state_dict, rank_key, int(config_description[ORDER_POINTS_KEY]))
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
