"""How a pipeline was written, and how a setting is written there: messages advise in the caller's terms.

Used in every process.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any


class Placeholder(str):
    """A word that stands for a value that only the caller knows: `N` in `size: N`."""

    __slots__ = ()


class ConfigSyntax(enum.Enum):
    """The form in which a pipeline was written.

    >>> [syntax.format_setting("on_error", "skip") for syntax in ConfigSyntax]
    ['on_error: skip', '"on_error": "skip"', 'on_error="skip"']
    """

    YAML = "yaml"
    """A file."""
    MAPPING = "mapping"
    """A dict that is passed to `Pipeline`."""
    BUILDER = "builder"
    """Calls such as `from_source(...).map(...)`."""

    def format_value(self, value: Any) -> str:
        """Return a value as it is written in this form.

        >>> ConfigSyntax.YAML.format_value({"size": [1, True]}), ConfigSyntax.BUILDER.format_value({"size": [1, True]})
        ('{size: [1, true]}', '{"size": [1, True]}')
        """
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{self._format_text(key)}: {self.format_value(v)}' for key, v in value.items())}}}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self.format_value, value))}]"
        if self is ConfigSyntax.YAML and (value is None or isinstance(value, bool)):
            return "null" if value is None else str(value).lower()
        return self._format_text(value) if isinstance(value, str) else repr(value)

    def _format_text(self, text: str) -> str:
        return str(text) if self is ConfigSyntax.YAML or isinstance(text, Placeholder) else f'"{text}"'

    def format_setting(self, key: str, value: Any) -> str:
        """Return a key with its value."""
        if self is ConfigSyntax.BUILDER:
            return f"{self.format_key(key)}={self.format_value(value)}"
        return f"{self._format_text(key)}: {self.format_value(value)}"

    def format_key(self, key: str) -> str:
        """Return the name of a key: a builder's methods call a few of them otherwise."""
        names = {"as": "as_", "batch": "batch_size", "size": "batch_size"}
        return names.get(key, key) if self is ConfigSyntax.BUILDER else key

    def format_built_in_stage(self, name: str, size: Any, **arguments: Any) -> str:
        """Return how to add a built-in stage such as `Batch`.

        >>> ConfigSyntax.BUILDER.format_built_in_stage("Batch", 64, drop_last=True)
        '.batch(64, drop_last=True)'
        """
        if self is ConfigSyntax.BUILDER:
            named = (self.format_setting(key, value) for key, value in arguments.items())
            return f".{name.lower()}({', '.join((self.format_value(size), *named))})"
        target = {"uses": f"stagepipe.stages.{name}", "with": {"size": size, **arguments}}
        return self.format_value({"name": name.lower(), **target})


AdviceText = str | Callable[[ConfigSyntax], str]
"""A text that is the same in every form, or the function that writes it for one."""


def write_advice(text: AdviceText, syntax: ConfigSyntax) -> str:
    """Return a text for pipelines of this form.

    >>> write_advice(lambda syntax: f"set `{syntax.format_setting('mutable', True)}`", ConfigSyntax.MAPPING)
    'set `"mutable": True`'
    """
    return text if isinstance(text, str) else text(syntax)
