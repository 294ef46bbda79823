"""The code that a stage, a source, a sink or an argument names: an import path or an object, and arguments. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from stagepipe.spec.keys import ConfigKey


@dataclass(frozen=True)
class Target:
    """The code to run: an import path and its arguments.

    `uses` is an object instead of a path if it comes from Python. `arguments` may contain nested targets
    `{"uses": ..., "with": ...}` at any depth. The worker builds them, innermost first. A mapping with the key `uses` is
    always a nested target.

    >>> Target("pkg.ops.resize", {"size": 224}).label
    'pkg.ops.resize'
    """

    uses: Annotated[
        str | Callable[..., Any] | object,
        ConfigKey(
            "Import path of a function or class: pkg.mod.name, pkg.mod:name, or ./file.py:name relative to this file.",
            value_type="Uses",
        ),
    ]
    arguments: Annotated[
        Mapping[Any, Any],
        ConfigKey(
            "Keyword arguments. A nested mapping with `uses` (and `with`) is built first, at any depth.",
            name="with",
            value_type="Arguments",
        ),
    ] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """A short name for messages: the import path, or the name of the object."""
        if isinstance(self.uses, str):
            return self.uses
        return getattr(self.uses, "__qualname__", type(self.uses).__name__)
