"""`RowArraySource`: the base of sources whose records are rows of arrays. Runs where it is built and read."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from stagepipe.sources.arrays.row_arrays import RowArrays
from stagepipe.sources.record_source import RecordSource


class RowArraySource(RecordSource):
    """Records that are rows of arrays along their first axis: the row, or a dict of a row of each array.

    A subclass defines `open_rows`, which returns arrays of equal length by name; the name "" stands for a record that
    is the row itself.
    """

    @abstractmethod
    def open_rows(self) -> Mapping[str, RowArrays]:
        """Read what the files hold, without their rows."""

    def __len__(self) -> int:
        return len(next(iter(self._rows.values())))

    def read_records(self, indices: Sequence[int]) -> list[Any]:
        """Return the row, or the dict of rows, of several indices."""
        columns = [array.read_rows(indices) for array in self._rows.values()]
        if "" in self._rows:
            return list(columns[0])
        names = list(self._rows)
        return [dict(zip(names, rows, strict=True)) for rows in zip(*columns, strict=True)]

    def get_block_starts(self) -> Sequence[int]:
        """Return the first record of each chunk of the array with the largest chunks in bytes."""
        return max(self._rows.values(), key=lambda rows: rows.block_bytes).get_block_starts()

    @functools.cached_property
    def _rows(self) -> Mapping[str, RowArrays]:
        rows = self.open_rows()
        if len({len(array) for array in rows.values()}) > 1:
            lengths = ", ".join(f"`{name}` {len(array)}" for name, array in rows.items())
            raise ValueError(
                f"{self.label}: the arrays differ in their number of rows: {lengths}; name arrays of equal length"
            )
        return rows
