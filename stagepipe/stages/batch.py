"""`Batch`: collates items, and copies each into its row on arrival. `Unbatch`: yields the rows of a batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np

from stagepipe.core import get_field_names, is_dataclass_instance, is_tensor, rebuild_dataclass
from stagepipe.stages.collating import BatchColumn, PaddingRules, make_column, refuse_added_fields
from stagepipe.stages.optional_packages import check_positive
from stagepipe.stages.order_point import OrderPointStage
from stagepipe.stages.rows import Rows


class Batch(OrderPointStage):
    """Collate `size` items into one value of the same structure, with a new first axis of length `size`.

    The first item allocates the output arrays with `stagepipe.empty`. Each item is copied in and released, so a batch
    holds at most one input at a time and leaves the process without another copy.

    Structures may be dicts and other mappings, tuples, namedtuples, lists and dataclasses, at any depth. Leaves become:

    - NumPy arrays and scalars of any dtype: an array `(size, *shape)` of that dtype; object arrays: a list of them;
    - torch tensors and tv_tensors: a plain CPU tensor `(size, *shape)` of their dtype;
    - Python `bool`, `int`, `float`: arrays of `bool`, `int64`, `float64`;
    - everything else (str, bytes, None, PIL images): a list.

    This matches `torch.utils.data.default_collate`, except that arrays remain arrays; docs/how-to/datasets.md lists the
    other differences. The last batch of an epoch may be shorter; `drop_last` drops it.

    >>> batch = Batch(size=2)
    >>> batch.add({"x": 1, "name": "a"}, samples=1)
    False
    >>> batch.add({"x": 2, "name": "b"}, samples=1)
    True
    >>> batch.flush(random.Random(0))
    [({'x': array([1, 2]), 'name': ['a', 'b']}, 2)]

    With `pad`, arrays and tensors may differ in the length of their first axis; shorter ones are filled at the end.
    Such items are kept until the batch is complete.

    Args:
        size: items in a batch.
        drop_last: drop the last batch of an epoch if it is shorter.
        pad: the fill value of all arrays and tensors that have an axis, or of each field to pad, by its path:
            `{input_ids: 0, labels: -100}`. A named field may also be a list of numbers.
        pad_to: pad to this length; a longer item is an error. None: pad to the longest item of the batch.
        pad_to_multiple_of: pad to the next multiple of this number.
        lengths: add `<field>_length`, an int64 array of the lengths before padding, for each padded field of a dict.
        mask: add `<field>_mask`, a bool array of shape (size, length) that is true for values and false for padding.

    >>> import numpy as np
    >>> batch = Batch(size=2, pad={"ids": 0}, lengths=True)
    >>> batch.add({"ids": np.array([1, 2, 3])}, 1), batch.add({"ids": np.array([4])}, 1)
    (False, True)
    >>> batch.flush(random.Random(0))[0][0]["ids"].tolist()
    [[1, 2, 3], [4, 0, 0]]

    Raises ValueError if items differ in structure, keys, shape or dtype (the error names the field), or for an argument
    out of range.
    """

    items_per_output: ClassVar[int | str | None] = "size"

    def __init__(
        self,
        size: int,
        *,
        drop_last: bool = False,
        pad: float | Mapping[str, float] | None = None,
        pad_to: int | None = None,
        pad_to_multiple_of: int | None = None,
        lengths: bool = False,
        mask: bool = False,
    ) -> None:
        self.size: Final = check_positive(size, "size", "Batch")
        self.drop_last = drop_last
        self._rules = _make_rules(pad, pad_to, pad_to_multiple_of, lengths=lengths, mask=mask)
        self._root_column: BatchColumn | None = None
        self._whole_rows: Rows | None = None
        """Rows that form the whole batch."""
        self._row_count = 0
        self._sample_count = 0

    def add(self, value: Any, samples: int) -> bool:
        """Copy one item into its row; return True when the batch is full. An item that raises changes nothing."""
        root = self._root_column
        if root is None:
            root = self._root_column = self._make_root_column(value)
        root.put(self._row_count, value)
        self._row_count += 1
        self._sample_count += samples
        return self._row_count == self.size

    def add_rows(self, rows: Rows, start: int, stop: int, *, passes_on: bool = False) -> int:
        """Add as many of the rows `start` to `stop - 1` as there is room for; return their number, at least 1.

        Each row counts as one sample, as if it were added by itself. With `passes_on`, rows that are the whole batch
        become it without a copy; its arrays may be read-only. Raises the errors of `add` for the first row.
        """
        if passes_on and self._rules is None and start == 0 and stop == self.size and self._root_column is None:
            self._whole_rows = rows
            self._row_count = self._sample_count = stop
            return stop
        stop = min(stop, start + self.size - self._row_count)
        self.add(rows.get(start), 1)  # checks the first row: the others are like it
        added_rows = stop - start - 1
        column = self._root_column
        if added_rows and column is not None:
            column.put_rows(self._row_count, rows, start + 1, stop)
            self._row_count += added_rows
            self._sample_count += added_rows
        return stop - start

    def _make_root_column(self, value: Any) -> BatchColumn:
        rules = self._rules
        root = make_column(value, self.size, rules=rules)
        if rules is not None:
            refuse_added_fields([root], rules, "")
            if rules.unmatched:
                raise ValueError(f"Batch: pad names `{min(rules.unmatched)}`, which the item does not have")
        return root

    @property
    def is_full(self) -> bool:
        """Whether the batch is full."""
        return self._row_count == self.size

    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:  # noqa: ARG002 - a batch needs no randomness
        """Return the current batch, which may be shorter than `size`, and release its arrays."""
        root = self._root_column if self._whole_rows is None else self._whole_rows
        rows, samples = self._row_count, self._sample_count
        self.clear()
        return [] if root is None or rows == 0 else [(root.take(rows), samples)]

    def clear(self) -> None:
        """Discard the current batch."""
        self._root_column = None
        self._whole_rows = None
        self._row_count = 0
        self._sample_count = 0


def _make_rules(
    pad: float | Mapping[str, float] | None,
    pad_to: int | None,
    pad_to_multiple_of: int | None,
    *,
    lengths: bool,
    mask: bool,
) -> PaddingRules | None:
    """Return the rules of padding; None without `pad`. Raises ValueError for options that contradict each other."""
    options = {"pad_to": pad_to, "pad_to_multiple_of": pad_to_multiple_of}
    for name, value in options.items():
        if value is not None:
            check_positive(value, name, "Batch")
    if pad_to is not None and pad_to_multiple_of is not None:
        raise ValueError("Batch: `pad_to` sets the length, so `pad_to_multiple_of` has no effect; remove one")
    if pad is None:
        if lengths or mask or pad_to is not None or pad_to_multiple_of is not None:
            raise ValueError("Batch: only padded fields have lengths and masks; set `pad`, for example `pad: 0`")
        return None
    return PaddingRules(
        fill=pad, length=pad_to, multiple=pad_to_multiple_of or 1, adds_lengths=lengths, adds_masks=mask
    )


GetRow = Callable[[int], Any]
"""Returns row i of a part of the batch."""


class Unbatch:
    """Yield one item per row of a batch; the inverse of `Batch`.

    The batch is a column (an array, tensor or list), or a dict, tuple, list or dataclass of columns, also nested. A
    nested list is a column with one row per entry. An array or tensor column of shape `(rows, *shape)` yields views of
    shape `shape` and the same dtype.

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
    """Wrap a list of columns at the top level: it is structure, so its rows are lists. Return other items unchanged."""
    return _ColumnList(item) if isinstance(item, list) and item and all(map(_is_column, item)) else item


class _ColumnList(tuple[Any, ...]):
    """A list that is structure, not a column."""

    __slots__ = ()


def _make_row_getter(value: Any, path: str, lengths: dict[str, int]) -> GetRow:
    prefix = f"{path}." if path else ""
    if isinstance(value, Mapping):
        keys = list(value)
        parts = [(f"{prefix}{key}", part) for key, part in value.items()]
        build: Callable[[list[Any]], Any] = lambda row: dict(zip(keys, row, strict=True))  # noqa: E731 - one of three
    elif is_dataclass_instance(value):
        names = get_field_names(value)
        parts = [(f"{prefix}{name}", getattr(value, name)) for name in names]
        build = partial(rebuild_dataclass, type(value), names)
    elif isinstance(value, tuple):
        parts = [(f"{path}[{index}]", part) for index, part in enumerate(value)]
        build = list if isinstance(value, _ColumnList) else getattr(type(value), "_make", type(value))
    elif _is_column(value) and (isinstance(value, list) or value.ndim):
        lengths[path or "item"] = len(value)
        return value.__getitem__  # type: ignore[no-any-return]
    else:
        hint = (
            "give arrays, tensors or lists with one entry per row; drop the field before Unbatch, or repeat its value"
        )
        raise TypeError(f"Unbatch: `{path or 'item'}` is of type {type(value).__name__} and has no rows; {hint}")
    get_rows = [_make_row_getter(part, part_path, lengths) for part_path, part in parts]
    return lambda i: build([get_row(i) for get_row in get_rows])
