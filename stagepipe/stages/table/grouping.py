"""`FromRows`: collects dict rows into a table. An order point; runs in its own process."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from stagepipe.stages.optional_packages import describe_value
from stagepipe.stages.order_point import OrderPointStage, check_size
from stagepipe.stages.table.conversion import TableKind, check_kind, make_table


class FromRows(OrderPointStage):
    """Collect `size` rows, dicts of plain values, into one pandas DataFrame or Arrow table.

    Args:
        size: rows in a table; the last one of an epoch may be shorter.
        kind: `pandas` or `arrow`.
        schema: the Arrow type of each column, such as `{id: int64, name: string}`. Without it the types are inferred
            from each group of rows alone: a column without a value in one group has another type there.
        drop_last: drop the last table of an epoch if it has fewer rows.

    >>> from_rows = FromRows(size=2, kind="arrow")
    >>> from_rows.add({"x": 1, "name": "a"}, 1), from_rows.add({"x": 2, "name": None}, 1)
    (False, True)
    >>> [(table, samples)] = from_rows.flush(random.Random(0))
    >>> table.to_pydict(), samples
    ({'x': [1, 2], 'name': ['a', None]}, 2)

    Raises TargetError if pandas or pyarrow is not installed, TypeError for an item that is no dict, and ValueError
    for a value that does not fit its column.
    """

    items_per_output: ClassVar[int | str | None] = "size"

    def __init__(
        self,
        size: int,
        *,
        kind: TableKind = "pandas",
        schema: Mapping[str, str] | None = None,
        drop_last: bool = False,
    ) -> None:
        self.size: Final = check_size(size, "table.FromRows")
        self.kind: Final = kind
        self.schema: Final = schema
        self.drop_last = drop_last
        check_kind(kind, "table.FromRows")
        check_kind("arrow", "table.FromRows")
        self.clear()

    def add(self, value: Any, samples: int) -> bool:
        """Add a row; True when the table is complete."""
        if not isinstance(value, Mapping):
            raise TypeError(f"table.FromRows: expected a dict of columns, found {describe_value(value)}")
        self._rows.append(value)
        self._sample_count += samples
        return len(self._rows) == self.size

    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:  # noqa: ARG002 - a table needs no randomness
        """Return the table."""
        rows, samples = self._rows, self._sample_count
        self.clear()
        if not rows:
            return []
        try:
            return [(make_table(rows, self.kind, self.schema), samples)]
        except (TypeError, ValueError) as error:  # pyarrow's errors are among them
            raise ValueError(f"table.FromRows: {len(rows)} rows make no table: {error}") from error

    def clear(self) -> None:
        """Discard the current rows."""
        self._rows: list[Mapping[str, Any]] = []
        self._sample_count = 0
