"""The leaves of a batch while it is filled: one column per array, tensor, number or object. In the collating process.

`put(row, value)` checks a value against the first item's and copies it in; `take(row_count)` hands out the result. A
row may be put twice: the next item overwrites what an item that failed half-way left behind.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from stagepipe.core import classify_value, empty, is_masked_array

NUMBER_DTYPES = {"bool": np.bool_, "int": np.int64, "float": np.float64}
"""The dtypes of Python numbers in a batch."""


class BatchColumn(Protocol):
    """One entry of the structure, for all rows."""

    def put(self, row: int, value: Any) -> None:
        """Copy `value` into `row`. Raises ValueError, with the path, if it does not match the first item's."""
        ...

    def put_rows(self, row: int, rows: Any, start: int, stop: int) -> None:
        """Copy rows `start` to `stop` of `rows` (see `rows.py`) from `row` on: they are like one that was put."""
        ...

    def take(self, row_count: int) -> Any:
        """Return the first `row_count` rows. Afterwards the column holds no reference to them."""
        ...


def make_leaf_column(value: Any, size: int, path: str) -> BatchColumn:
    """Create the column for a value without structure of its own."""
    match classify_value(value):
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


def format_path(path: str) -> str:
    """Format a path for an error."""
    return f"`{path}`" if path else "the item"


def make_mismatch_error(path: str, actual: str, expected: str, hint: str) -> ValueError:
    """Create the error for an item that does not match the batch's first."""
    return ValueError(f"Batch: {format_path(path)} has {actual}, but {expected} in the batch's first item; {hint}")


def check_kind(path: str, value: Any, expected: str) -> None:
    """Raise ValueError if `value` is of a different kind than the first item's."""
    kind = classify_value(value)
    if kind != expected:
        actual = f"{type(value).__name__} ({kind})" if kind == "object" else kind
        raise make_mismatch_error(path, f"the type {actual}", expected, "give every item the same structure and types")


def _check_shape(path: str, value: Any, shape: tuple[int, ...]) -> None:
    if value.shape != shape:
        hint = "resize, crop or pad before Batch"
        if value.ndim and value.ndim == len(shape) and tuple(value.shape[1:]) == tuple(shape[1:]):
            hint += ", or set `pad: 0` on Batch to fill the shorter ones"
        raise make_mismatch_error(path, f"shape {tuple(value.shape)}", str(tuple(shape)), hint)


def _require_dense(path: str, tensor: Any) -> None:
    """Raise ValueError for a tensor whose values do not lie in one dense block."""
    if str(tensor.layout) == "torch.strided" and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta):
        return
    names = {"nested": tensor.is_nested, "quantized": tensor.is_quantized, "meta": tensor.is_meta}
    name = next((name for name, applies in names.items() if applies), "sparse")
    raise ValueError(
        f"Batch: {format_path(path)} is a {name} tensor, which cannot be a row of a dense one; convert it before Batch"
    )


def copy_masked(batch: Any, place: Any, value: Any) -> Any:
    """Copy a masked array into `batch[place]`; return the batch, which is a masked array from the first one on."""
    if not is_masked_array(batch):
        batch = np.ma.masked_array(batch, np.zeros(batch.shape, np.ma.make_mask_descr(batch.dtype)), copy=False)
    batch[place] = value
    return batch


def refuse_masked_tensor(path: str, value: Any) -> None:
    """Raise ValueError for a tensor of `torch.masked`, of which a batch would have only the data."""
    if type(value).__name__ == "MaskedTensor":
        raise ValueError(
            f"Batch: {format_path(path)} is a MaskedTensor, which cannot be a row of a dense one; before Batch, fill "
            "it with `to_tensor`, and send the mask as a field"
        )


class ArrayColumn:
    """NumPy arrays and scalars. If one of them is a masked array, so is the batch."""

    kind = "array"

    def __init__(self, first_value: Any, size: int, path: str) -> None:
        self.shape = first_value.shape
        self.dtype = first_value.dtype
        self.size = size
        self.path = path
        self.batch_array = empty((size, *first_value.shape), first_value.dtype)

    def put(self, row: int, value: Any) -> None:
        """Copy one item's array. Raises ValueError for a different type, shape or dtype."""
        check_kind(self.path, value, self.kind)
        _check_shape(self.path, value, self.shape)
        if value.dtype != self.dtype:
            raise make_mismatch_error(self.path, f"dtype {value.dtype}", str(self.dtype), "convert it before Batch")
        self.copy_row(row, value)

    def copy_row(self, row: int, value: Any) -> None:
        """Copy a value that was checked."""
        if is_masked_array(value):
            self.batch_array = copy_masked(self.batch_array, row, value)
        else:
            self.batch_array[row] = value

    def put_rows(self, row: int, rows: Any, start: int, stop: int) -> None:
        """Copy a range of rows."""
        self.batch_array[row : row + stop - start] = rows.array[start:stop]

    def take(self, row_count: int) -> Any:
        """Return the array, or a view of its first rows."""
        batch_array = self.batch_array
        self.batch_array = None
        return batch_array if row_count == self.size else batch_array[:row_count]


class TensorColumn(ArrayColumn):
    """Dense torch tensors of any subclass, on any device. The batch is a plain CPU tensor."""

    kind = "tensor"

    def __init__(self, first_value: Any, size: int, path: str) -> None:
        _require_dense(path, first_value)
        super().__init__(first_value, size, path)

    def copy_row(self, row: int, value: Any) -> None:
        """Copy without the tensor's autograd history, from a GPU if it is there."""
        refuse_masked_tensor(self.path, value)
        self.batch_array[row].copy_(value.detach())

    def put_rows(self, row: int, rows: Any, start: int, stop: int) -> None:
        """Copy a range of rows."""
        self.batch_array[row : row + stop - start].copy_(rows.tensor[start:stop])


class NumberColumn:
    """Python's bool, int and float. The batch is an array."""

    def __init__(self, kind: str, size: int, path: str) -> None:
        self.kind = kind
        self.path = path
        self.batch_array = empty((size,), NUMBER_DTYPES[kind])

    def put(self, row: int, value: Any) -> None:
        """Store one number. Raises ValueError for a different type, or an int that does not fit in 64 bits."""
        check_kind(self.path, value, self.kind)
        try:
            self.batch_array[row] = value
        except OverflowError as error:
            raise ValueError(
                f"Batch: {format_path(self.path)} is {value}, which does not fit in int64; send a str"
            ) from error

    def put_rows(self, row: int, rows: Any, start: int, stop: int) -> None:
        """Copy a range of rows."""
        self.batch_array[row : row + stop - start] = rows.array[start:stop]

    def take(self, row_count: int) -> Any:
        """Return the array, or a view of its first rows."""
        batch_array = self.batch_array
        self.batch_array = None
        return batch_array if row_count == len(batch_array) else batch_array[:row_count]


class ObjectColumn:
    """Everything that is neither array nor number. The batch is a list of the objects themselves."""

    kind = "object"

    def __init__(self, size: int, path: str) -> None:
        self.path = path
        self.objects: list[Any] = [None] * size

    def put(self, row: int, value: Any) -> None:
        """Store one object. Raises ValueError if it is of a different kind than the first item's."""
        check_kind(self.path, value, self.kind)
        self.objects[row] = value

    def put_rows(self, row: int, rows: Any, start: int, stop: int) -> None:
        """Store a range of rows."""
        self.objects[row : row + stop - start] = rows.objects[start:stop]

    def take(self, row_count: int) -> Any:
        """Return the list of the first rows."""
        objects = self.objects
        self.objects = []
        return objects[:row_count]


class TextColumn(ObjectColumn):
    """Arrays of text or bytes. They are stacked at the end, because their dtype's width differs from item to item."""

    kind = "text array"

    def __init__(self, first_value: Any, size: int, path: str) -> None:
        super().__init__(size, path)
        self.shape = first_value.shape
        self.dtype = first_value.dtype

    def put(self, row: int, value: Any) -> None:
        """Store one array. Raises ValueError for a different shape, and for bytes among text."""
        super().put(row, value)
        _check_shape(self.path, value, self.shape)
        if value.dtype.kind != self.dtype.kind:
            raise make_mismatch_error(self.path, f"dtype {value.dtype}", str(self.dtype), "convert it before Batch")

    def take(self, row_count: int) -> Any:
        """Return one array, as wide as the widest item; a masked one if a row is."""
        rows = super().take(row_count)
        return np.ma.stack(rows) if any(map(is_masked_array, rows)) else np.stack(rows)
