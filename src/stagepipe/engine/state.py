"""Where an iteration stands, as a state dict: small, flat, of numbers and texts; and back, or why it does not fit.

The same keys at any place of any epoch, so that `torch.distributed.checkpoint` can fill one state dict from another;
what is a rank's own stands under the rank's name, so that it does not take one rank's for another's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from stagepipe.config import PipelineSpec, Target
from stagepipe.core import Cursor, UsageError, cursor_from_plain, cursor_to_plain
from stagepipe.plan import Shard

_FORM: Final = 1
_LONGEST: Final = 96
"""Characters of a value that the state keeps; of a longer one it keeps the head and a hash."""


@dataclass(frozen=True)
class Position:
    """Where in which epoch: `items` of it are out, and `cursor` is that of the last one; None at an epoch's start."""

    epoch: int = 0
    items: int = 0
    cursor: Cursor | None = None


def to_state(position: Position, config: str, shard: Shard) -> dict[str, Any]:
    """The state dict of `position`; `config` is what `described` says."""
    place = {"epoch": position.epoch, "items": position.items, "cursor": cursor_to_plain(position.cursor)}
    return {
        "version": _FORM,
        "world_size": shard.world_size,
        "config": config,
        f"rank{shard.rank}": json.dumps(place, separators=(",", ":")),
    }


def from_state(state: Mapping[str, Any], config: str, shard: Shard) -> Position:
    """The position of a state dict. UsageError for what is none, and, with the difference, for another config's."""
    if not isinstance(state, Mapping) or "version" not in state or "config" not in state:
        seen = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        message = f"this is no state of a stagepipe pipeline: {seen}; pass what state_dict() gave"
        raise UsageError(message)
    if state["version"] != _FORM:
        message = f"the state has form {state['version']}, and this stagepipe reads form {_FORM}; resume with the other"
        raise UsageError(message)
    differences = list(_differences(json.loads(state["config"]), json.loads(config)))
    if differences:
        message = "the state is of another config, and what it would go on with is not what it left:\n  " + "\n  ".join(
            differences
        )
        raise UsageError(message)
    own = state.get(f"rank{shard.rank}")
    if own is None:
        ranks = ", ".join(sorted(key for key in state if key.startswith("rank")))
        message = f"the state is of {ranks or 'no rank'}, and this is rank{shard.rank}; load what this rank saved"
        raise UsageError(message)
    place = json.loads(own)
    return Position(int(place["epoch"]), int(place["items"]), cursor_from_plain(place["cursor"]))


def _differences(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for path in [*was, *(path for path in now if path not in was)]:
        if was.get(path) != now.get(path):
            yield f"{path}: was {was.get(path, 'not there')}, is {now.get(path, 'not there')}"


def described(spec: PipelineSpec, limit: int | None, shard: Shard) -> str:
    """All that decides what comes out, and in what order, as JSON; not how it is made: workers, transport, memory."""
    paths: dict[str, str] = {"seed": str(spec.seed), "order": spec.order, "limit": str(limit)}
    paths |= {key: str(value) for key, value in asdict(shard).items() if key != "rank"}
    paths["stages"] = _short(" ".join(stage.name for stage in spec.stages))
    paths |= _target("source", spec.source)
    for stage in spec.stages:
        path = f"stages.{stage.name}"
        paths |= _target(path, stage.target)
        chosen = {"field": stage.field, "as": stage.as_, "batch": stage.batch and stage.batch.size}
        paths |= {f"{path}.{key}": _short(str(value)) for key, value in chosen.items() if value is not None}
        if not stage.reseed:
            paths[f"{path}.reseed"] = "False"
    return json.dumps(paths, separators=(",", ":"))


def _target(path: str, target: Target) -> dict[str, str]:
    arguments = {f"{path}.with.{key}": _text(value) for key, value in target.arguments.items()}
    return {f"{path}.uses": target.uses if isinstance(target.uses, str) else _text(target.uses), **arguments}


def _text(value: Any) -> str:
    """A value in short: the same text for the same value in another process."""
    name = getattr(value, "__qualname__", None)
    if callable(value) and isinstance(name, str):
        return name
    if isinstance(value, Mapping):
        return _short("{" + ", ".join(f"{key}: {_text(inner)}" for key, inner in value.items()) + "}")
    if isinstance(value, list | tuple):
        return _short(f"[{', '.join(map(_text, value))}]")
    if value is None or isinstance(value, str | bytes | int | float | range):
        return _short(repr(value))
    size = f" of {len(value)}" if hasattr(value, "__len__") else ""
    return f"{type(value).__qualname__}{size}"  # its repr may hold an address


def _short(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]}... #{hashlib.sha256(text.encode()).hexdigest()[:12]}"
