"""Python's warning filters, read in the calling process and set in its workers."""

from __future__ import annotations

import builtins
import re
import warnings
from collections.abc import Iterable
from typing import Any, Final, NamedTuple


class TextPattern(NamedTuple):
    """A regular expression, or with `flags` None a text that must be equal: the filters of `-W` have such."""

    text: str
    flags: int | None


class WarningFilter(NamedTuple):
    """An entry of `warnings.filters` that can be pickled. `category` is `module:qualified name`."""

    action: str
    message: TextPattern | None
    category: str
    module: TextPattern | None
    line: int


def read_warning_filters() -> tuple[WarningFilter, ...]:
    """Return the filters of this process: those of `-W`, of `PYTHONWARNINGS` and of calls such as `simplefilter`."""
    return tuple(map(_encode, warnings.filters))


def apply_warning_filters(filters: Iterable[WarningFilter]) -> None:
    """Replace the filters of this process by `filters`.

    What an imported module has added here, and is not in `filters`, stays in front of them: there it would be too if
    the caller had imported the module after its own calls.
    """
    wanted = tuple(filters)
    dropped = {*_INITIAL_FILTERS, *wanted}
    added = [entry for entry in warnings.filters if _encode(entry) not in dropped]
    warnings.resetwarnings()
    warnings.filters[:] = [*added, *map(_decode, wanted)]  # type: ignore[index]  # typeshed: a Sequence; it is a list


def _encode(entry: Any) -> WarningFilter:
    action, message, category, module, line = entry
    return WarningFilter(action, _encode_pattern(message), _name_category(category), _encode_pattern(module), line)


def _encode_pattern(pattern: str | re.Pattern[str] | None) -> TextPattern | None:
    if pattern is None or isinstance(pattern, str):
        return None if pattern is None else TextPattern(pattern, None)
    return TextPattern(pattern.pattern, pattern.flags)


def _decode(entry: WarningFilter) -> tuple[Any, ...]:
    patterns = (_decode_pattern(pattern) for pattern in (entry.message, entry.module))
    message, module = patterns
    return (entry.action, message, _find_category(entry.category), module, entry.line)


def _decode_pattern(pattern: TextPattern | None) -> str | re.Pattern[str] | None:
    if pattern is None or pattern.flags is None:
        return None if pattern is None else pattern.text
    return re.compile(pattern.text, pattern.flags)


def _name_category(category: type) -> str:
    return category.__category_name__ if isinstance(category, _NamedCategory) else _name_class(category)


def _name_class(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _find_category(name: str) -> type:
    """Return a builtin category, or a class that stands for any other: to import that one may take seconds."""
    module, _, qualname = name.partition(":")
    if module == "builtins":
        return getattr(builtins, qualname)  # type: ignore[no-any-return]
    return _NamedCategory(qualname, (Warning,), {"__category_name__": name})


class _NamedCategory(type):
    """The type of a category that is known by its name. The classes of that name are its subclasses."""

    __category_name__: str

    def __subclasscheck__(cls, subclass: type) -> bool:
        return any(_name_class(base) == cls.__category_name__ for base in subclass.__mro__)


_INITIAL_FILTERS: Final = frozenset(read_warning_filters())
"""Those that the interpreter has begun with. A worker has the caller's instead."""
