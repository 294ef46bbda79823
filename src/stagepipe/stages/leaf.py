"""A batch's leaves while it is filled: one column for each array, tensor, number or object of the structure.

`put(row, value)` checks a value against the first item's and copies it in; `take(rows)` gives the result away.
Putting a row twice is safe: what an item that failed half way left behind is overwritten by the next.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from stagepipe.core import empty
from stagepipe.stages.kind import kind_of

DTYPES = {"bool": np.bool_, "int": np.int64, "float": np.float64}
"""What a Python number becomes."""


class Column(Protocol):
    """One place of the structure, for all rows."""

    def put(self, row: int, value: Any) -> None:
        """Copy `value` into `row`; ValueError, with the path, if it does not fit the first item's."""
        ...

    def take(self, rows: int) -> Any:
        """The first `rows` rows, given away: the column holds nothing afterwards."""
        ...


def leaf_for(value: Any, size: int, path: str) -> Column:
    """The column for a value that has no structure of its own."""
    match kind_of(value):
        case "array":
            return ArrayColumn(value, size, path)
        case "tensor":
            return TensorColumn(value, size, path)
        case "bool" | "int" | "float" as kind:
            return NumberColumn(kind, size, path)
        case "text array":
            return TextColumn(value, size, path)
        case _:
            return ObjectColumn(size, path)


def named(path: str) -> str:
    """The place as an error names it."""
    return f"`{path}`" if path else "the item"


def differs(path: str, seen: str, first: str, mend: str) -> ValueError:
    """The error for an item that does not fit the batch's first."""
    return ValueError(f"Batch: {named(path)} has {seen}, in the batch's first item {first}; {mend}")


def check_kind(path: str, value: Any, first: str) -> None:
    """ValueError if `value` is of another kind than the first item's."""
    kind = kind_of(value)
    if kind != first:
        seen = f"{type(value).__name__} ({kind})" if kind == "object" else kind
        raise differs(path, f"the type {seen}", first, "give every item the same structure and types")


def _check_shape(path: str, value: Any, shape: tuple[int, ...]) -> None:
    if value.shape != shape:
        raise differs(path, f"shape {tuple(value.shape)}", str(tuple(shape)), "resize, crop or pad before Batch")


class ArrayColumn:
    """NumPy arrays and scalars."""

    kind = "array"

    def __init__(self, first: Any, size: int, path: str) -> None:
        self.shape, self.dtype, self.size, self.path = first.shape, first.dtype, size, path
        self.out = empty((size, *first.shape), first.dtype)

    def put(self, row: int, value: Any) -> None:
        """Copy one item's array in; ValueError on another type, shape or dtype."""
        check_kind(self.path, value, self.kind)
        _check_shape(self.path, value, self.shape)
        if value.dtype != self.dtype:
            raise differs(self.path, f"dtype {value.dtype}", str(self.dtype), "convert it before Batch")
        self.copy(row, value)

    def copy(self, row: int, value: Any) -> None:
        """Copy a value that fits."""
        self.out[row] = value

    def take(self, rows: int) -> Any:
        """The array, or a view of its first rows."""
        out, self.out = self.out, None
        return out if rows == self.size else out[:rows]


class TensorColumn(ArrayColumn):
    """Torch tensors, from any device and of any subclass: what comes out is a plain CPU tensor."""

    kind = "tensor"

    def copy(self, row: int, value: Any) -> None:
        """Copy without the tensor's history; one on a GPU comes over here."""
        self.out[row].copy_(value.detach())


class NumberColumn:
    """Python's bool, int and float, as an array."""

    def __init__(self, kind: str, size: int, path: str) -> None:
        self.kind, self.path = kind, path
        self.out = empty((size,), DTYPES[kind])

    def put(self, row: int, value: Any) -> None:
        """Store one number; ValueError on another type, or an int beyond 64 bits."""
        check_kind(self.path, value, self.kind)
        try:
            self.out[row] = value
        except OverflowError as error:
            raise ValueError(f"Batch: {named(self.path)} is {value}, which int64 does not hold; send a str") from error

    def take(self, rows: int) -> Any:
        """The array, or a view of its first rows."""
        out, self.out = self.out, None
        return out if rows == len(out) else out[:rows]


class ObjectColumn:
    """Whatever is neither array nor number: a list of the objects themselves."""

    kind = "object"

    def __init__(self, size: int, path: str) -> None:
        self.path = path
        self.out: list[Any] = [None] * size

    def put(self, row: int, value: Any) -> None:
        """Keep one object; ValueError if it is of a kind that the first item's was not."""
        check_kind(self.path, value, self.kind)
        self.out[row] = value

    def take(self, rows: int) -> Any:
        """The list of the first rows."""
        out, self.out = self.out, []
        return out[:rows]


class TextColumn(ObjectColumn):
    """Arrays of text or bytes, stacked at the end: their width is in the dtype and differs from item to item."""

    kind = "text array"

    def __init__(self, first: Any, size: int, path: str) -> None:
        super().__init__(size, path)
        self.shape = first.shape

    def put(self, row: int, value: Any) -> None:
        """Keep one array; ValueError on another shape."""
        super().put(row, value)
        _check_shape(self.path, value, self.shape)

    def take(self, rows: int) -> Any:
        """One array as wide as the widest."""
        return np.stack(super().take(rows))
