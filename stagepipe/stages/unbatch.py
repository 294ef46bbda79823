"""`Unbatch`: yields one item per row of a batch. Runs in any worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from stagepipe.core import get_field_names, is_dataclass_instance, is_tensor, rebuild_dataclass

GetRow = Callable[[int], Any]
"""Returns row i of a part of the batch."""


class Unbatch:
    """Yield one item per entry along the first axis of a batch's arrays, tensors and lists: the inverse of `Batch`.

    The batch is one such column, or a dict, tuple, list or dataclass of columns. Nested dicts, tuples and dataclasses
    are structure too; a nested list is a column with one row per entry. An array or tensor column of shape
    `(rows, *shape)` yields rows of shape `shape` and the same dtype; they are views, not copies.

    >>> list(Unbatch()({"x": np.array([1, 2]), "name": ["a", "b"]}))
    [{'x': np.int64(1), 'name': 'a'}, {'x': np.int64(2), 'name': 'b'}]

    Raises ValueError if the columns differ in length, and TypeError for a field without rows; both name the fields.
    """

    takes_whole_items: ClassVar[bool] = True

    def __call__(self, item: Any) -> Iterator[Any]:
        """Yield the rows in order."""
        lengths: dict[str, int] = {}
        get_row = _make_row_getter(_wrap_column_list(item), "", lengths)
        if len(set(lengths.values())) > 1:
            row_counts = ", ".join(f"`{path}` {length}" for path, length in lengths.items())
            raise ValueError(
                f"Unbatch: the fields have different numbers of rows: {row_counts}; drop or repeat those that differ"
            )
        for i in range(next(iter(lengths.values()), 0)):
            yield get_row(i)


def _is_column(value: Any) -> bool:
    return is_tensor(value) or isinstance(value, np.ndarray | list)


def _wrap_column_list(item: Any) -> Any:
    """Return the item; at the top level a list of columns is structure, and its rows are lists."""
    return _ColumnList(item) if isinstance(item, list) and item and all(map(_is_column, item)) else item


class _ColumnList(tuple[Any, ...]):
    """A list that is structure, not a column."""

    __slots__ = ()


def _make_row_getter(value: Any, path: str, lengths: dict[str, int]) -> GetRow:
    if isinstance(value, Mapping):
        return _make_mapping_row_getter(value, path, lengths)
    if is_dataclass_instance(value):
        return _make_dataclass_row_getter(value, path, lengths)
    if isinstance(value, tuple):
        return _make_sequence_row_getter(value, path, lengths)
    if not _is_column(value) or (not isinstance(value, list) and value.ndim == 0):
        hint = (
            "give arrays, tensors or lists with one entry per row; drop the field before Unbatch, or repeat its value"
        )
        raise TypeError(f"Unbatch: `{path or 'item'}` is of type {type(value).__name__} and has no rows; {hint}")
    lengths[path or "item"] = len(value)
    return value.__getitem__  # type: ignore[no-any-return]


def _make_mapping_row_getter(value: Mapping[Any, Any], path: str, lengths: dict[str, int]) -> GetRow:
    get_rows = {
        key: _make_row_getter(part, f"{path}.{key}" if path else str(key), lengths) for key, part in value.items()
    }
    return lambda i: {key: get_row(i) for key, get_row in get_rows.items()}


def _make_dataclass_row_getter(value: Any, path: str, lengths: dict[str, int]) -> GetRow:
    cls, names = type(value), get_field_names(value)
    get_rows = [_make_row_getter(getattr(value, name), f"{path}.{name}" if path else name, lengths) for name in names]
    return lambda i: rebuild_dataclass(cls, names, [get_row(i) for get_row in get_rows])


def _make_sequence_row_getter(value: tuple[Any, ...], path: str, lengths: dict[str, int]) -> GetRow:
    get_rows = [_make_row_getter(part, f"{path}[{index}]", lengths) for index, part in enumerate(value)]
    build = list if isinstance(value, _ColumnList) else getattr(type(value), "_make", type(value))
    return lambda i: build([get_row(i) for get_row in get_rows])
