"""A batch while it is filled: a tree of columns with the structure of the first item. In the collating process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagepipe.core import classify_value, get_field_names, is_dataclass_instance, rebuild_dataclass
from stagepipe.stages.collate.leaves import BatchColumn, check_kind, make_leaf_column, make_mismatch_error
from stagepipe.stages.collate.padding import PaddedColumn, PaddingRules, refuse_added_fields, refuse_taken_names


def make_column(value: Any, size: int, path: str = "", rules: PaddingRules | None = None) -> BatchColumn:
    """Create a column of `size` rows for values like `value`, without adding `value`. `path` names it in errors.

    `rules` says which arrays may differ in length.

    >>> column = make_column({"x": 1}, size=2)
    >>> column.put(0, {"x": 5})
    >>> column.take(1)
    {'x': array([5])}
    """
    fill = None if rules is None else rules.find_fill(value, path)
    if rules is not None and fill is not None:
        return PaddedColumn(value, size, path, fill=fill, rules=rules)
    if isinstance(value, Mapping):
        return MappingColumn(value, size, path, rules)
    if is_dataclass_instance(value):
        return DataclassColumn(value, size, path, rules)
    if isinstance(value, list | tuple):
        return SequenceColumn(value, size, path, rules)
    return make_leaf_column(value, size, path)


def _join_path(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


class MappingColumn:
    """The column of a mapping. All items must have the same keys, in any order."""

    def __init__(self, first_value: Mapping[Any, Any], size: int, path: str, rules: PaddingRules | None) -> None:
        self.item_class = type(first_value)
        self.path = path
        self.columns = {
            key: make_column(value, size, _join_path(path, key), rules) for key, value in first_value.items()
        }
        refuse_taken_names(self.columns, rules, path)

    def put(self, row: int, value: Any) -> None:
        """Put each key's value into its column."""
        check_kind(self.path, value, "mapping")
        if value.keys() != self.columns.keys():
            actual, expected = f"the keys {list(value)}", str(list(self.columns))
            raise make_mismatch_error(self.path, actual, expected, "give every item the same keys")
        for key, column in self.columns.items():
            column.put(row, value[key])

    def put_rows(self, row: int, rows: Any, start: int, stop: int) -> None:
        """Copy a range of rows of each key."""
        for key, column in self.columns.items():
            column.put_rows(row, rows.column(key), start, stop)

    def take(self, row_count: int) -> Any:
        """Return a mapping of the items' class, or a dict if that class cannot be created from a dict."""
        values = {key: column.take(row_count) for key, column in self.columns.items()}
        for key, column in self.columns.items():
            if isinstance(column, PaddedColumn):
                values |= {f"{key}_{suffix}": array for suffix, array in column.added_fields.items()}
        if self.item_class is dict:
            return values
        try:
            return self.item_class(values)  # type: ignore[call-arg]
        except TypeError:  # for example a defaultdict
            return values


class DataclassColumn:
    """The column of a dataclass."""

    def __init__(self, first_value: Any, size: int, path: str, rules: PaddingRules | None) -> None:
        self.item_class = type(first_value)
        self.path = path
        self.field_names = get_field_names(first_value)
        self.columns = [
            make_column(getattr(first_value, name), size, _join_path(path, name), rules) for name in self.field_names
        ]
        refuse_added_fields(self.columns, rules, path)

    def put(self, row: int, value: Any) -> None:
        """Put each field into its column."""
        check_kind(self.path, value, self.item_class.__name__)
        for name, column in zip(self.field_names, self.columns, strict=True):
            column.put(row, getattr(value, name))

    def put_rows(self, row: int, rows: Any, start: int, stop: int) -> None:
        """Copy a range of rows of each field."""
        for column, entry_rows in zip(self.columns, rows.columns, strict=True):
            column.put_rows(row, entry_rows, start, stop)

    def take(self, row_count: int) -> Any:
        """Return an instance of the items' class, created without its `__init__`."""
        return rebuild_dataclass(self.item_class, self.field_names, [column.take(row_count) for column in self.columns])


class SequenceColumn:
    """The column of a tuple, namedtuple or list: one column per entry."""

    def __init__(
        self, first_value: list[Any] | tuple[Any, ...], size: int, path: str, rules: PaddingRules | None
    ) -> None:
        self.item_class = type(first_value)
        self.kind = classify_value(first_value)
        self.path = path
        names = getattr(first_value, "_fields", None)
        paths = (
            [_join_path(path, name) for name in names] if names else [f"{path}[{i}]" for i in range(len(first_value))]
        )
        self.columns = [
            make_column(value, size, entry_path, rules) for value, entry_path in zip(first_value, paths, strict=True)
        ]
        refuse_added_fields(self.columns, rules, path)

    def put(self, row: int, value: Any) -> None:
        """Put each entry into its column."""
        check_kind(self.path, value, self.kind)
        if len(value) != len(self.columns):
            hint = "pad it to one length, or send it as an array of objects, which Batch collects in a list"
            raise make_mismatch_error(self.path, f"{len(value)} entries", str(len(self.columns)), hint)
        for entry, column in zip(value, self.columns, strict=True):
            column.put(row, entry)

    def put_rows(self, row: int, rows: Any, start: int, stop: int) -> None:
        """Copy a range of rows of each entry."""
        for column, entry_rows in zip(self.columns, rows.columns, strict=True):
            column.put_rows(row, entry_rows, start, stop)

    def take(self, row_count: int) -> Any:
        """Return a sequence of the items' class, or a tuple or list if that class cannot hold arrays."""
        values = [column.take(row_count) for column in self.columns]
        build = getattr(self.item_class, "_make", self.item_class)  # a namedtuple's constructor takes separate fields
        try:
            return build(values)
        except TypeError:  # for example a torch.Size
            return tuple(values) if issubclass(self.item_class, tuple) else values
