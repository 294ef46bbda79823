"""Builds a batch as a tree of columns with the structure of the first item, in the process that collates.

A leaf of the tree is a column for an array, tensor, number or object. `put(row, value)` compares a value with the first
item's and copies it in; `take(row_count)` returns the result. A row may be put twice: the next item overwrites the rest
of an item that failed half-way. Columns whose rows differ in length are padded to the same length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from stagepipe.core import (
    classify_value,
    empty,
    get_field_names,
    is_dataclass_instance,
    is_masked_array,
    rebuild_dataclass,
)

if TYPE_CHECKING:
    import torch

NUMBER_DTYPES = {"bool": np.bool_, "int": np.int64, "float": np.float64}
"""The dtypes of Python numbers in a batch."""


class BatchColumn(Protocol):
    """One entry of the structure, for all rows."""

    def put(self, row: int, value: Any) -> None:
        """Copy `value` into `row`. Raises ValueError, with the path, if it does not match the first item's."""
        ...

    def put_rows(self, row: int, rows: Any, start: int, stop: int) -> None:
        """Copy rows `start` to `stop` of `rows` (see `rows.py`) to `row` and after: they match a row that was put."""
        ...

    def take(self, row_count: int) -> Any:
        """Return the first `row_count` rows. Afterwards the column has no reference to them."""
        ...


def make_leaf_column(value: Any, size: int, path: str) -> BatchColumn:
    """Create the column for a value without inner structure."""
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
    """Raise ValueError for a tensor whose values are not in one dense block."""
    if str(tensor.layout) == "torch.strided" and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta):
        return
    names = {"nested": tensor.is_nested, "quantized": tensor.is_quantized, "meta": tensor.is_meta}
    name = next((name for name, applies in names.items() if applies), "sparse")
    raise ValueError(
        f"Batch: {format_path(path)} is a {name} tensor, which cannot be a row of a dense one; convert it before Batch"
    )


def copy_masked(batch: Any, place: Any, value: Any) -> Any:
    """Copy a masked array into `batch[place]`; return the batch, which the first masked array turns into one."""
    if not is_masked_array(batch):
        batch = np.ma.masked_array(batch, np.zeros(batch.shape, np.ma.make_mask_descr(batch.dtype)), copy=False)
    batch[place] = value
    return batch


def refuse_masked_tensor(path: str, value: Any) -> None:
    """Raise ValueError for a tensor of `torch.masked`, because a batch would keep only its data."""
    if type(value).__name__ == "MaskedTensor":
        raise ValueError(
            f"Batch: {format_path(path)} is a MaskedTensor, which cannot be a row of a dense one; before Batch, fill "
            "it with `to_tensor`, and send the mask as a field"
        )


class ArrayColumn:
    """NumPy arrays and scalars. The batch is a masked array if one of them is."""

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
        """Copy a value after the checks."""
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
        """Copy without the tensor's autograd history, and from a GPU if necessary."""
        refuse_masked_tensor(self.path, value)
        self.batch_array[row].copy_(value.detach())

    def put_rows(self, row: int, rows: Any, start: int, stop: int) -> None:
        """Copy a range of rows."""
        self.batch_array[row : row + stop - start].copy_(rows.tensor[start:stop])


class NumberColumn(ArrayColumn):
    """Python's bool, int and float. The batch is an array."""

    def __init__(self, kind: str, size: int, path: str) -> None:
        super().__init__(np.empty((), NUMBER_DTYPES[kind]), size, path)
        self.kind = kind

    def put(self, row: int, value: Any) -> None:
        """Store one number. Raises ValueError for a different type, or an int that does not fit in 64 bits."""
        check_kind(self.path, value, self.kind)
        try:
            self.batch_array[row] = value
        except OverflowError as error:
            raise ValueError(
                f"Batch: {format_path(self.path)} is {value}, which does not fit in int64; send a str"
            ) from error


class ObjectColumn:
    """All other values. The batch is a list of the objects themselves."""

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
    """Arrays of text or bytes. They are stacked at the end, because the width of their dtype varies between items."""

    kind = "text array"

    def __init__(self, first_value: Any, size: int, path: str) -> None:
        super().__init__(size, path)
        self.shape = first_value.shape
        self.dtype = first_value.dtype

    def put(self, row: int, value: Any) -> None:
        """Store one array. Raises ValueError for a different shape, and for a mix of bytes and text."""
        super().put(row, value)
        _check_shape(self.path, value, self.shape)
        if value.dtype.kind != self.dtype.kind:
            raise make_mismatch_error(self.path, f"dtype {value.dtype}", str(self.dtype), "convert it before Batch")

    def take(self, row_count: int) -> Any:
        """Return one array, as wide as the widest item; a masked array if any row is one."""
        rows = super().take(row_count)
        return np.ma.stack(rows) if any(map(is_masked_array, rows)) else np.stack(rows)


_PADDED_KINDS: Final = frozenset({"array", "tensor"})


@dataclass(kw_only=True)
class PaddingRules:
    """The fields that a `Batch` pads, their fill values, and the length.

    `fill` is the value for all arrays and tensors that have an axis, or a mapping of the paths of fields to values.
    """

    fill: float | Mapping[str, float]
    length: int | None = None
    multiple: int = 1
    adds_lengths: bool = False
    adds_masks: bool = False
    unmatched: set[str] = field(default_factory=set)
    """Named fields that have no column yet."""

    def __post_init__(self) -> None:
        """Check the values of the config."""
        fills = self.fill.values() if isinstance(self.fill, Mapping) else [self.fill]
        for fill in fills:
            if not isinstance(fill, int | float):
                raise ValueError(  # noqa: TRY004 - a value of a config
                    f"Batch: pad is {self.fill!r}; give a number, or a number for each field: {{input_ids: 0}}"
                )
        self.unmatched = set(self.fill) if isinstance(self.fill, Mapping) else set()

    @property
    def adds_fields(self) -> bool:
        """Whether a batch gets fields that its items do not have."""
        return self.adds_lengths or self.adds_masks

    def find_fill(self, value: Any, path: str) -> float | None:
        """Return the fill value of the field at `path`; None if it is not padded."""
        if isinstance(self.fill, Mapping):
            self.unmatched.discard(path)
            return self.fill.get(path)
        return self.fill if classify_value(value) in _PADDED_KINDS and value.ndim else None

    def round_length(self, longest: int) -> int:
        """Return the length of the padded axis of a batch."""
        return -(-longest // self.multiple) * self.multiple if self.length is None else self.length


class PaddedColumn:
    """Arrays or tensors that differ in the length of their first axis. A list of numbers counts as an array.

    Items are kept until the batch is complete, because the longest item determines its length.
    """

    def __init__(self, first_value: Any, size: int, path: str, *, fill: float, rules: PaddingRules) -> None:
        value = _to_array(first_value, path)
        self.kind = classify_value(value)
        self.path = path
        self.fill = fill
        self.rules = rules
        self.row_shape = tuple(value.shape[1:])
        self.dtype = value.dtype
        self.values: list[Any] = [None] * size
        self.added_fields: dict[str, Any] = {}
        """After `take`, the fields that the surrounding mapping adds to the batch, by suffix."""
        if self.kind == "array":
            _check_fill(fill, self.dtype, path)

    def put(self, row: int, value: Any) -> None:
        """Keep one item's array. Raises ValueError for a different type, dtype or shape after the first axis."""
        array = _to_array(value, self.path)
        check_kind(self.path, array, self.kind)
        refuse_masked_tensor(self.path, array)
        if array.dtype != self.dtype:
            raise make_mismatch_error(self.path, f"dtype {array.dtype}", str(self.dtype), "convert it before Batch")
        if array.ndim == 0 or tuple(array.shape[1:]) != self.row_shape:
            expected = f"({', '.join(['any', *map(str, self.row_shape)])})"
            hint = "only the first axis is padded; resize or transpose before Batch"
            raise make_mismatch_error(self.path, f"shape {tuple(array.shape)}", expected, hint)
        limit = self.rules.length
        if limit is not None and len(array) > limit:
            raise ValueError(
                f"Batch: {format_path(self.path)} has the length {len(array)}, but `pad_to` is {limit}; cut it before "
                "Batch, or raise `pad_to`"
            )
        self.values[row] = array

    def put_rows(self, row: int, rows: Any, start: int, stop: int) -> None:
        """Keep a range of rows."""
        for index in range(start, stop):
            self.put(row + index - start, rows.get(index))

    def take(self, row_count: int) -> Any:
        """Return the padded rows as one array or tensor."""
        values = self.values[:row_count]
        self.values = []
        lengths = [len(value) for value in values]
        length = self.rules.round_length(max(lengths, default=0))
        batch = empty((row_count, length, *self.row_shape), self.dtype)
        # NumPy 2.5 deprecates assigning a number to a timedelta without a unit, but not converting it.
        batch[...] = self.fill if self.kind == "tensor" else np.array(self.fill).astype(self.dtype)
        for row, value in enumerate(values):
            if is_masked_array(value):
                batch = copy_masked(batch, (row, slice(len(value))), value)
            else:
                batch[row, : len(value)] = value.detach() if self.kind == "tensor" else value
        self.added_fields = self._make_added_fields(lengths, length)
        return batch

    def _make_added_fields(self, lengths: list[int], length: int) -> dict[str, Any]:
        added: dict[str, Any] = {}
        if self.rules.adds_lengths:
            added["length"] = np.array(lengths, np.int64)
        if self.rules.adds_masks:
            added["mask"] = np.arange(length) < np.array(lengths, np.int64)[:, np.newaxis]
        return added


def refuse_added_fields(columns: list[Any], rules: PaddingRules | None, path: str) -> None:
    """Raise ValueError if lengths or masks are wanted but a padded column is not in a dict that could hold them."""
    if rules is not None and rules.adds_fields and any(isinstance(column, PaddedColumn) for column in columns):
        raise ValueError(
            f"Batch: `lengths` and `mask` add fields to a dict, but {format_path(path)} holds a padded array and is "
            "not a dict; yield dicts"
        )


def refuse_taken_names(columns: Mapping[Any, Any], rules: PaddingRules | None, path: str) -> None:
    """Raise ValueError if an added field would have the name of an item's field."""
    if rules is None:
        return
    suffixes = [*(["length"] if rules.adds_lengths else []), *(["mask"] if rules.adds_masks else [])]
    for key, column in columns.items():
        for suffix in suffixes if isinstance(column, PaddedColumn) else ():
            if f"{key}_{suffix}" in columns:
                raise ValueError(
                    f"Batch: {format_path(path)} has a field `{key}_{suffix}`, which `lengths` or `mask` would add; "
                    "rename it"
                )


def _to_array(value: Any, path: str) -> Any:
    """Return an array or tensor unchanged, and a list of numbers as an array. Raises ValueError for other values."""
    array = np.asarray(value or np.empty(0, np.int64)) if isinstance(value, list | tuple) else value
    if classify_value(array) not in _PADDED_KINDS or array.ndim == 0:
        raise ValueError(
            f"Batch: {format_path(path)} is of type {type(value).__name__} and cannot be padded; give an array, a "
            "tensor or a list of numbers"
        )
    return array


def _check_fill(fill: float, dtype: Any, path: str) -> None:
    try:
        fits = dtype.kind not in "iu" or int(np.full((), fill, dtype)) == fill
    except (OverflowError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"Batch: {format_path(path)} has the dtype {dtype}, which cannot hold the pad value {fill}")


def make_column(value: Any, size: int, path: str = "", rules: PaddingRules | None = None) -> BatchColumn:
    """Create a column of `size` rows for values like `value`, without adding `value`. Errors mention `path`.

    `rules` determine which arrays may differ in length.

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


class _EntryColumns:
    """The columns of a structure with the same entries in the same order in each item."""

    columns: list[BatchColumn]

    def put_rows(self, row: int, rows: Any, start: int, stop: int) -> None:
        """Copy a range of rows of each entry."""
        for column, entry_rows in zip(self.columns, rows.columns, strict=True):
            column.put_rows(row, entry_rows, start, stop)


class DataclassColumn(_EntryColumns):
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

    def take(self, row_count: int) -> Any:
        """Return an instance of the items' class, created without its `__init__`."""
        return rebuild_dataclass(self.item_class, self.field_names, [column.take(row_count) for column in self.columns])


class SequenceColumn(_EntryColumns):
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

    def take(self, row_count: int) -> Any:
        """Return a sequence of the items' class, or a tuple or list if that class cannot hold arrays."""
        values = [column.take(row_count) for column in self.columns]
        build = getattr(self.item_class, "_make", self.item_class)  # a namedtuple's constructor takes separate fields
        try:
            return build(values)
        except TypeError:  # for example a torch.Size
            return tuple(values) if issubclass(self.item_class, tuple) else values


def collate_as_torch(samples: list[Any]) -> Any:
    """Collate like torch's `default_collate`, but into the memory in which a batch leaves the process.

    In a worker, torch's own function puts each tensor into a separate file, from which it would be copied again.

    >>> collate_as_torch([{"x": 1}, {"x": 2}])
    {'x': tensor([1, 2])}

    Raises the errors of `default_collate`.
    """
    import torch
    from torch.utils.data._utils.collate import collate, default_collate_fn_map

    return collate(samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: _stack_tensors})


def _stack_tensors(tensors: list[torch.Tensor], *, collate_fn_map: Any) -> torch.Tensor:  # noqa: ARG001 - torch passes it
    import torch
    from torch.utils.data import default_collate, get_worker_info

    first = tensors[0]
    is_plain = type(first) is torch.Tensor and first.layout is torch.strided and first.device.type == "cpu"
    if not is_plain or first.is_nested or get_worker_info() is None:
        stacked: torch.Tensor = default_collate(tensors)
        return stacked
    return torch.stack(tensors, 0, out=empty((len(tensors), *first.shape), first.dtype))
