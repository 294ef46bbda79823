"""Columns of `Batch` whose rows differ in length, and are padded to one. In the collating process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from stagepipe.core import classify_value, empty, is_masked_array
from stagepipe.stages.collate.leaves import (
    check_kind,
    copy_masked,
    format_path,
    make_mismatch_error,
    refuse_masked_tensor,
)

_PADDED_KINDS: Final = frozenset({"array", "tensor"})


@dataclass(kw_only=True)
class PaddingRules:
    """Which fields a `Batch` pads, with what and to what length.

    `fill` is the value for every array and tensor that has an axis, or one for each field to pad, by its path.
    """

    fill: float | Mapping[str, float]
    length: int | None = None
    multiple: int = 1
    adds_lengths: bool = False
    adds_masks: bool = False
    unmatched: set[str] = field(default_factory=set)
    """Named fields that no column has been made for."""

    def __post_init__(self) -> None:
        """Check what the config gives."""
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
        """Return what the field at `path` is padded with; None if it is not padded."""
        if isinstance(self.fill, Mapping):
            self.unmatched.discard(path)
            return self.fill.get(path)
        return self.fill if classify_value(value) in _PADDED_KINDS and value.ndim else None

    def round_length(self, longest: int) -> int:
        """Return the length of the padded axis of a batch."""
        return -(-longest // self.multiple) * self.multiple if self.length is None else self.length


class PaddedColumn:
    """Arrays or tensors that differ in the length of their first axis. A list of numbers counts as an array.

    Items are kept until the batch is complete, because its length is that of the longest.
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
        """By suffix, what the mapping that holds this column adds to the batch after `take`."""
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
        # A number assigned to a timedelta without a unit is deprecated in NumPy 2.5; a conversion is not.
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
    """Raise ValueError if lengths or masks are asked for, and a padded column is in no dict that could hold them."""
    if rules is not None and rules.adds_fields and any(isinstance(column, PaddedColumn) for column in columns):
        raise ValueError(
            f"Batch: `lengths` and `mask` add fields to a dict, but {format_path(path)} holds a padded array and is "
            "none; yield dicts"
        )


def refuse_taken_names(columns: Mapping[Any, Any], rules: PaddingRules | None, path: str) -> None:
    """Raise ValueError if a field that a batch gets has the name of one of its items' fields."""
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
    """Return an array or tensor as it is, a list of numbers as an array. Raises ValueError for anything else."""
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
