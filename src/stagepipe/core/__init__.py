"""Words that every layer shares: errors, units, ids, targets, the context of a stage. Imports nothing of stagepipe."""

from stagepipe.core.context import SKIP, Context, context, current, empty, seed_of
from stagepipe.core.errors import (
    ArenaFullError,
    ConfigError,
    Problem,
    ReadOnceError,
    RunError,
    StagepipeError,
    TransportError,
    UsageError,
)
from stagepipe.core.ids import Cursor, Key, Skip, by_stretch, cursor_from_plain, cursor_to_plain
from stagepipe.core.version import VERSION

__all__ = [
    "SKIP",
    "VERSION",
    "ArenaFullError",
    "ConfigError",
    "Context",
    "Cursor",
    "Key",
    "Problem",
    "ReadOnceError",
    "RunError",
    "Skip",
    "StagepipeError",
    "TransportError",
    "UsageError",
    "by_stretch",
    "context",
    "current",
    "cursor_from_plain",
    "cursor_to_plain",
    "empty",
    "seed_of",
]
