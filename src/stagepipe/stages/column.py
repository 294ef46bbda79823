"""A batch while it is filled: a tree of columns with the structure of the first item. Used by `Batch` alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagepipe.stages.kind import is_record, kind_of, names_of, rebuilt
from stagepipe.stages.leaf import Column, check_kind, differs, leaf_for


def column_for(value: Any, size: int, path: str = "") -> Column:
    """A column of `size` rows for values like `value`, which is not put into it. `path` names it in errors.

    >>> column = column_for({"x": 1}, size=2)
    >>> column.put(0, {"x": 5})
    >>> column.take(1)
    {'x': array([5])}
    """
    if isinstance(value, Mapping):
        return MappingColumn(value, size, path)
    if is_record(value):
        return RecordColumn(value, size, path)
    if isinstance(value, list | tuple):
        return SequenceColumn(value, size, path)
    return leaf_for(value, size, path)


def _under(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


class MappingColumn:
    """A dict or any other mapping; keys may come in any order, but must be the same."""

    def __init__(self, first: Mapping[Any, Any], size: int, path: str) -> None:
        self.cls, self.path = type(first), path
        self.columns = {key: column_for(value, size, _under(path, key)) for key, value in first.items()}

    def put(self, row: int, value: Any) -> None:
        """Put each key's value into its column."""
        check_kind(self.path, value, "mapping")
        if value.keys() != self.columns.keys():
            seen, first = f"the keys {list(value)}", str(list(self.columns))
            raise differs(self.path, seen, first, "give every item the same keys")
        for key, column in self.columns.items():
            column.put(row, value[key])

    def take(self, rows: int) -> Any:
        """A mapping of the items' class, or a dict where that class is not made from a dict."""
        values = {key: column.take(rows) for key, column in self.columns.items()}
        if self.cls is dict:
            return values
        try:
            return self.cls(values)  # type: ignore[call-arg]
        except TypeError:  # a defaultdict, say
            return values


class RecordColumn:
    """A dataclass."""

    def __init__(self, first: Any, size: int, path: str) -> None:
        self.cls, self.path, self.names = type(first), path, names_of(first)
        self.columns = [column_for(getattr(first, name), size, _under(path, name)) for name in self.names]

    def put(self, row: int, value: Any) -> None:
        """Put each field into its column."""
        check_kind(self.path, value, self.cls.__name__)
        for name, column in zip(self.names, self.columns, strict=True):
            column.put(row, getattr(value, name))

    def take(self, rows: int) -> Any:
        """An instance of the items' class, made without its `__init__`."""
        return rebuilt(self.cls, self.names, [column.take(rows) for column in self.columns])


class SequenceColumn:
    """A tuple, namedtuple or list, place by place."""

    def __init__(self, first: list[Any] | tuple[Any, ...], size: int, path: str) -> None:
        self.cls, self.kind, self.path = type(first), kind_of(first), path
        names = getattr(first, "_fields", None)
        paths = [_under(path, name) for name in names] if names else [f"{path}[{i}]" for i in range(len(first))]
        self.columns = [column_for(value, size, place) for value, place in zip(first, paths, strict=True)]

    def put(self, row: int, value: Any) -> None:
        """Put each place's value into its column."""
        check_kind(self.path, value, self.kind)
        if len(value) != len(self.columns):
            mend = "pad it to one length; or send it as an array of objects, which Batch makes a list of"
            raise differs(self.path, f"{len(value)} entries", str(len(self.columns)), mend)
        for entry, column in zip(value, self.columns, strict=True):
            column.put(row, entry)

    def take(self, rows: int) -> Any:
        """A sequence of the items' class."""
        values = [column.take(rows) for column in self.columns]
        make = getattr(self.cls, "_make", self.cls)  # a namedtuple takes its fields one by one
        return make(values)
