"""Converts an iteration's position to a state dict and back, or says why the state does not fit. Pure.

A state dict is small and flat; its values are numbers and strings. It has the same keys at any position of any epoch,
so `torch.distributed.checkpoint` can fill one from another. The position of a rank has the rank in its key, so that one
rank's is never taken for another's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from stagepipe.core import Cursor, UsageError, cursor_from_builtins, cursor_to_builtins
from stagepipe.plan import Shard
from stagepipe.spec import PipelineSpec, Target

_STATE_VERSION: Final = 1
"""Version of the state dict. Raise it when a state of an earlier version can no longer be read."""

_MAX_VALUE_CHARS: Final = 96
"""Maximum length of a config value in the state. Of a longer one it keeps the beginning and a hash."""


@dataclass(frozen=True)
class EpochPosition:
    """A position in an epoch, after `items_yielded` items. `cursor` is that of the last item; None at the start."""

    epoch: int = 0
    items_yielded: int = 0
    cursor: Cursor | None = None


def make_state_dict(position: EpochPosition, config_description: str, shard: Shard) -> dict[str, Any]:
    """Return the state dict of `position`. `config_description` is the result of `describe_config`."""
    position_fields = {
        "epoch": position.epoch,
        "items": position.items_yielded,
        "cursor": cursor_to_builtins(position.cursor),
    }
    return {
        "version": _STATE_VERSION,
        "world_size": shard.world_size,
        "config": config_description,
        f"rank{shard.rank}": json.dumps(position_fields, separators=(",", ":")),
    }


def parse_state_dict(state_dict: Mapping[str, Any], config_description: str, shard: Shard) -> EpochPosition:
    """Return the position in a state dict.

    Raises UsageError if it is not a state, or belongs to another version, to another rank or, with the differences, to
    a config that yields other items.
    """
    if not isinstance(state_dict, Mapping) or "version" not in state_dict or "config" not in state_dict:
        found = f"keys {sorted(map(str, state_dict))}" if isinstance(state_dict, Mapping) else type(state_dict).__name__
        message = f"not the state of a stagepipe pipeline (found {found}); pass what state_dict() returned"
        raise UsageError(message)
    if state_dict["version"] != _STATE_VERSION:
        message = (
            f"this state has version {state_dict['version']}, expected version {_STATE_VERSION}; "
            "resume with the stagepipe that saved it"
        )
        raise UsageError(message)
    differences = list(_find_differences(json.loads(state_dict["config"]), json.loads(config_description)))
    if differences:
        message = (
            "this state was saved with a different config; resuming would yield different data:\n  "
            + "\n  ".join(differences)
            + "\nresume with the config of the saved run, or start without the state"
        )
        raise UsageError(message)
    rank_position = state_dict.get(f"rank{shard.rank}")
    if rank_position is None:
        ranks = ", ".join(sorted(key for key in state_dict if key.startswith("rank")))
        message = (
            f"this state is of {ranks or 'no rank'}, but this is rank{shard.rank}; load the state that this rank saved"
        )
        raise UsageError(message)
    position_fields = json.loads(rank_position)
    return EpochPosition(
        int(position_fields["epoch"]), int(position_fields["items"]), cursor_from_builtins(position_fields["cursor"])
    )


def _find_differences(saved: Mapping[str, str], current: Mapping[str, str]) -> Iterator[str]:
    for path in [*saved, *(path for path in current if path not in saved)]:
        if saved.get(path) != current.get(path):
            yield f"{path}: saved {saved.get(path, 'not set')}, now {current.get(path, 'not set')}"


def describe_config(spec: PipelineSpec, limit: int | None, shard: Shard) -> str:
    """Describe, as JSON, the part of a config that decides which items come out and in which order.

    Workers, transport and memory are not part of it: they may change between a save and a resume.
    """
    paths: dict[str, str] = {"seed": str(spec.seed), "order": spec.order, "limit": str(limit)}
    paths |= {key: str(value) for key, value in asdict(shard).items() if key != "rank"}
    paths["stages"] = _shorten(" ".join(stage.name for stage in spec.stages))
    paths |= _describe_target("source", spec.source.target)
    for stage in spec.stages:
        path = f"stages.{stage.name}"
        paths |= _describe_target(path, stage.target)
        options = {"field": stage.field, "as": stage.as_, "batch": stage.batch and stage.batch.size}
        paths |= {f"{path}.{key}": _shorten(str(value)) for key, value in options.items() if value is not None}
        if not stage.reseed:
            paths[f"{path}.reseed"] = "False"
    return json.dumps(paths, separators=(",", ":"))


def _describe_target(path: str, target: Target) -> dict[str, str]:
    arguments = {f"{path}.with.{key}": _describe_value(value) for key, value in target.arguments.items()}
    return {f"{path}.uses": target.uses if isinstance(target.uses, str) else _describe_value(target.uses), **arguments}


def _describe_value(value: Any) -> str:
    """Describe a value in short: the same text for the same value in any process."""
    name = getattr(value, "__qualname__", None)
    if callable(value) and isinstance(name, str):
        return name
    if isinstance(value, Mapping):
        return _shorten("{" + ", ".join(f"{key}: {_describe_value(inner)}" for key, inner in value.items()) + "}")
    if isinstance(value, list | tuple):
        return _shorten(f"[{', '.join(map(_describe_value, value))}]")
    if value is None or isinstance(value, str | bytes | int | float | range):
        return _shorten(repr(value))
    size = f" of {len(value)}" if hasattr(value, "__len__") else ""
    return f"{type(value).__qualname__}{size}"  # its repr may hold an address


def _shorten(text: str) -> str:
    if len(text) <= _MAX_VALUE_CHARS:
        return text
    return f"{text[: _MAX_VALUE_CHARS // 2]}... #{hashlib.sha256(text.encode()).hexdigest()[:12]}"
