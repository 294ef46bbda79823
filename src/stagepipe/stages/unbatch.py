"""`Unbatch`: one item for each row of a batch. Runs in any worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from stagepipe.stages.kind import is_record, is_tensor, names_of, rebuilt

Row = Callable[[int], Any]
"""Gives row i of a part of the batch."""


class Unbatch:
    """Yield one item for each entry along the first axis of all arrays, tensors and lists of a batch.

    The batch is a dict, tuple, list or dataclass of such columns, or one column. Dicts, tuples and dataclasses inside
    are structure too; a list inside is a column, an entry a row. Rows of arrays and tensors are views, not copies.

    >>> list(Unbatch()({"x": np.array([1, 2]), "name": ["a", "b"]}))
    [{'x': np.int64(1), 'name': 'a'}, {'x': np.int64(2), 'name': 'b'}]

    Raises ValueError when the columns' lengths differ, TypeError for a field that has no rows; both name the fields.
    """

    def __call__(self, item: Any) -> Iterator[Any]:
        """The rows, first to last."""
        lengths: dict[str, int] = {}
        row = _rows_of(_opened(item), "", lengths)
        if len(set(lengths.values())) > 1:
            seen = ", ".join(f"`{path}` {length}" for path, length in lengths.items())
            raise ValueError(f"Unbatch: the fields differ in their number of rows: {seen}; drop or repeat what differs")
        for i in range(next(iter(lengths.values()), 0)):
            yield row(i)


def _is_column(value: Any) -> bool:
    return is_tensor(value) or isinstance(value, np.ndarray | list)


def _opened(item: Any) -> Any:
    """The item; a list of columns is structure at the top, and its rows are lists."""
    return _Columns(item) if isinstance(item, list) and item and all(map(_is_column, item)) else item


class _Columns(tuple[Any, ...]):
    """A list that is structure, not a column."""

    __slots__ = ()


def _rows_of(value: Any, path: str, lengths: dict[str, int]) -> Row:
    if isinstance(value, Mapping):
        return _mapping(value, path, lengths)
    if is_record(value):
        return _record(value, path, lengths)
    if isinstance(value, tuple):
        return _sequence(value, path, lengths)
    if not _is_column(value) or (not isinstance(value, list) and value.ndim == 0):
        mend = "Unbatch wants arrays, tensors and lists with one entry a row; drop it before, or repeat it"
        raise TypeError(f"Unbatch: `{path or 'item'}` is a {type(value).__name__} without rows; {mend}")
    lengths[path or "item"] = len(value)
    return value.__getitem__  # type: ignore[no-any-return]


def _mapping(value: Mapping[Any, Any], path: str, lengths: dict[str, int]) -> Row:
    rows = {key: _rows_of(part, f"{path}.{key}" if path else str(key), lengths) for key, part in value.items()}
    return lambda i: {key: row(i) for key, row in rows.items()}


def _record(value: Any, path: str, lengths: dict[str, int]) -> Row:
    cls, names = type(value), names_of(value)
    rows = [_rows_of(getattr(value, name), f"{path}.{name}" if path else name, lengths) for name in names]
    return lambda i: rebuilt(cls, names, [row(i) for row in rows])


def _sequence(value: tuple[Any, ...], path: str, lengths: dict[str, int]) -> Row:
    rows = [_rows_of(part, f"{path}[{n}]", lengths) for n, part in enumerate(value)]
    make = list if isinstance(value, _Columns) else getattr(type(value), "_make", type(value))
    return lambda i: make([row(i) for row in rows])
