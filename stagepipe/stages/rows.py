"""Rows of consecutive samples, stacked by field: a worker sends them to `Batch` instead of single samples.

All rows have exactly the structure, types, dtypes and shapes of the first: `Batch` checks one row and copies the others
as a range. A value that might be pickled differently in rows than by itself is refused; its sample is sent by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import classify_value, empty, get_field_names, is_dataclass_instance, rebuild_dataclass
from stagepipe.stages.collating import NUMBER_DTYPES

_PLAIN_TYPES: Final = frozenset({type(None), str, bytes, complex})
"""Pickling objects of these types runs no code of the user."""
_SIZED_TYPES: Final = frozenset({str, bytes})
_MAX_OBJECT_LENGTH: Final = 4096
"""Maximum length of text or bytes in a row: the first row determines the number of rows in a chunk, at most 384."""
_KEY_TYPES: Final = frozenset({str, int, bool})


class NotStackableError(Exception):
    """A sample does not fit these rows, or cannot be a row at all."""


class Rows(Protocol):
    """One entry of the structure, for all rows. It is pickled without conversion."""

    def put(self, row: int, value: Any) -> None:
        """Copy `value` into `row`. Raises NotStackableError if it does not match the first sample's."""
        ...

    def get(self, row: int) -> Any:
        """Return the value of a row. An array is a view."""
        ...

    def trim(self, row_count: int) -> None:
        """Keep the first `row_count` rows. No row can be put afterwards."""
        ...

    def take(self, row_count: int) -> Any:
        """Return all `row_count` rows as the batch that `Batch` would make of them, and release them.

        Received arrays stay read-only, like every input of a stage.
        """
        ...


class ArrayRows:
    """NumPy arrays of one shape, or NumPy scalars."""

    __slots__ = ("array", "dtype", "item_class", "shape")

    def __init__(self, value: Any, size: int) -> None:
        self.item_class = type(value)
        if self.item_class is not np.ndarray and not isinstance(value, np.generic):
            raise NotStackableError
        if value.dtype.hasobject:
            raise NotStackableError
        self.shape = value.shape
        self.dtype = value.dtype
        self.array: Any = empty((size, *value.shape), value.dtype)

    def put(self, row: int, value: Any) -> None:
        """Copy one array."""
        if type(value) is not self.item_class or value.shape != self.shape or value.dtype != self.dtype:
            raise NotStackableError
        self.array[row] = value

    def get(self, row: int) -> Any:
        """Return the array of a row."""
        return self.array[row]

    def trim(self, row_count: int) -> None:
        """Keep the first rows."""
        self.array = self.array[:row_count]

    def take(self, row_count: int) -> Any:  # noqa: ARG002 - all rows are taken
        """Return the array of all rows."""
        array = self.array
        self.array = None
        return array


class TensorRows:
    """Dense CPU tensors. A row is a plain tensor, as in a batch."""

    __slots__ = ("array", "item_class", "shape", "tensor")

    def __init__(self, value: Any, size: int) -> None:
        self.item_class = type(value)
        if not value.is_cpu or value.is_quantized or value.is_nested or str(value.layout) != "torch.strided":
            raise NotStackableError
        self.shape = tuple(value.shape)
        self.tensor: Any = empty((size, *value.shape), value.dtype)
        try:
            self.array: Any = self.tensor.numpy()  # for copying rows: views of rows take longer in torch
        except TypeError:  # a type that NumPy does not have, such as bfloat16
            raise NotStackableError from None

    def put(self, row: int, value: Any) -> None:
        """Copy one tensor, without its autograd history."""
        if type(value) is not self.item_class:
            raise NotStackableError
        try:
            array = value.numpy()
        except (TypeError, RuntimeError):  # it requires a gradient, is not dense, or is not on the CPU
            array = _detach(value)
        if array.shape != self.shape or array.dtype != self.array.dtype:
            raise NotStackableError
        self.array[row] = array

    def get(self, row: int) -> Any:
        """Return the tensor of a row."""
        return self.tensor[row]

    def trim(self, row_count: int) -> None:
        """Keep the first rows."""
        self.array = None
        if row_count < len(self.tensor):
            self.tensor = self.tensor[:row_count]

    def take(self, row_count: int) -> Any:  # noqa: ARG002 - all rows are taken
        """Return the tensor of all rows."""
        tensor = self.tensor
        self.tensor = None
        return tensor


class NumberRows(ArrayRows):
    """Python's bool, int or float."""

    __slots__ = ()

    def __init__(self, value: Any, size: int) -> None:
        self.item_class = type(value)
        self.array: Any = np.empty((size,), NUMBER_DTYPES[self.item_class.__name__])

    def put(self, row: int, value: Any) -> None:
        """Store one number."""
        if type(value) is not self.item_class:
            raise NotStackableError
        try:
            self.array[row] = value
        except OverflowError:
            raise NotStackableError from None

    def get(self, row: int) -> Any:
        """Return the number of a row."""
        return self.array[row].item()


class ObjectRows:
    """None, str, bytes or complex, in any mixture. Long values are refused."""

    __slots__ = ("objects",)

    def __init__(self, size: int) -> None:
        self.objects: list[Any] = [None] * size

    def put(self, row: int, value: Any) -> None:
        """Store one object."""
        if type(value) not in _PLAIN_TYPES or (type(value) in _SIZED_TYPES and len(value) > _MAX_OBJECT_LENGTH):
            raise NotStackableError
        self.objects[row] = value

    def get(self, row: int) -> Any:
        """Return the object of a row."""
        return self.objects[row]

    def trim(self, row_count: int) -> None:
        """Keep the first rows."""
        del self.objects[row_count:]

    def take(self, row_count: int) -> list[Any]:  # noqa: ARG002 - all rows are taken
        """Return the list of all rows."""
        objects = self.objects
        self.objects = []
        return objects


class _ContainerRows:
    """Rows of a structure, with a column for each entry."""

    __slots__ = ("columns", "puts")

    def __init__(self, entries: Iterable[Any], size: int) -> None:
        self.columns = [make_rows(entry, size) for entry in entries]
        self.puts = [column.put for column in self.columns]

    def trim(self, row_count: int) -> None:
        """Keep the first rows."""
        self.puts = []
        for column in self.columns:
            column.trim(row_count)

    def _take_columns(self, row_count: int) -> list[Any]:
        return [column.take(row_count) for column in self.columns]


class MappingRows(_ContainerRows):
    """Dicts with the same keys in the same order."""

    __slots__ = ("keys",)

    def __init__(self, value: dict[Any, Any], size: int) -> None:
        if any(type(key) not in _KEY_TYPES for key in value):
            raise NotStackableError
        self.keys = tuple(value)
        super().__init__(value.values(), size)

    def put(self, row: int, value: Any) -> None:
        """Put each key's value into its column."""
        if type(value) is not dict or tuple(value) != self.keys:
            raise NotStackableError
        for put, entry in zip(self.puts, value.values()):  # noqa: B905 - as in SequenceRows
            put(row, entry)

    def get(self, row: int) -> dict[Any, Any]:
        """Return the dict of a row."""
        return {key: column.get(row) for key, column in zip(self.keys, self.columns, strict=True)}

    def take(self, row_count: int) -> dict[Any, Any]:
        """Return a dict of all rows."""
        return dict(zip(self.keys, self._take_columns(row_count), strict=True))

    def column(self, key: Any) -> Rows:
        """Return the column of a key."""
        return self.columns[self.keys.index(key)]


class SequenceRows(_ContainerRows):
    """Tuples, namedtuples or lists of equal length."""

    __slots__ = ("item_class",)

    def __init__(self, value: Sequence[Any], size: int) -> None:
        self.item_class = type(value)
        is_plain = self.item_class is tuple or self.item_class is list
        if not is_plain and not (hasattr(value, "_fields") and _is_importable(self.item_class)):
            raise NotStackableError
        super().__init__(value, size)

    def put(self, row: int, value: Any) -> None:
        """Put each entry into its column."""
        puts = self.puts
        if type(value) is not self.item_class or len(value) != len(puts):
            raise NotStackableError
        for put, entry in zip(puts, value):  # noqa: B905 - `strict` takes as long as the rest of the loop
            put(row, entry)

    def get(self, row: int) -> Any:
        """Return the sequence of a row."""
        return self._build([column.get(row) for column in self.columns])

    def take(self, row_count: int) -> Any:
        """Return a sequence of all rows."""
        return self._build(self._take_columns(row_count))

    def _build(self, entries: list[Any]) -> Any:
        build: Callable[[list[Any]], Any] = getattr(self.item_class, "_make", self.item_class)
        return build(entries)


class DataclassRows(_ContainerRows):
    """Instances of the same dataclass."""

    __slots__ = ("item_class", "names")

    def __init__(self, value: Any, size: int) -> None:
        self.item_class = type(value)
        if not _is_importable(self.item_class):
            raise NotStackableError
        self.names = get_field_names(value)
        super().__init__([getattr(value, name) for name in self.names], size)

    def put(self, row: int, value: Any) -> None:
        """Put each field into its column."""
        if type(value) is not self.item_class:
            raise NotStackableError
        for put, name in zip(self.puts, self.names):  # noqa: B905 - as in SequenceRows
            put(row, getattr(value, name))

    def get(self, row: int) -> Any:
        """Return the instance of a row, created without its `__init__`."""
        return rebuild_dataclass(self.item_class, self.names, [column.get(row) for column in self.columns])

    def take(self, row_count: int) -> Any:
        """Return an instance of all rows, created without its `__init__`."""
        return rebuild_dataclass(self.item_class, self.names, self._take_columns(row_count))


def _detach(tensor: Any) -> NDArray[Any]:
    """Return the array of a tensor that requires a gradient. Raises NotStackableError for any other tensor."""
    try:
        return tensor.detach().numpy()  # type: ignore[no-any-return]
    except (TypeError, RuntimeError):
        raise NotStackableError from None


def make_rows(value: Any, size: int) -> Rows:
    """Create `size` rows for values like `value`, without adding it. Raises NotStackableError for other values.

    >>> rows = make_rows({"x": 1, "name": "a"}, size=2)
    >>> rows.put(0, {"x": 5, "name": "b"})
    >>> rows.get(0)
    {'x': 5, 'name': 'b'}
    """
    if type(value) is dict:
        return MappingRows(value, size)
    if is_dataclass_instance(value):
        return DataclassRows(value, size)
    return SequenceRows(value, size) if isinstance(value, list | tuple) else _make_leaf_rows(value, size)


def _make_leaf_rows(value: Any, size: int) -> Rows:
    match classify_value(value):
        case "array":
            return ArrayRows(value, size)
        case "tensor":
            return TensorRows(value, size)
        case "bool" | "int" | "float":
            return NumberRows(value, size)
    if type(value) in _PLAIN_TYPES:
        return ObjectRows(size)
    raise NotStackableError


def _is_importable(cls: type) -> bool:
    """Whether pickle in the receiving process finds the class under its name."""
    return getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is cls
