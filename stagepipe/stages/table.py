"""Stages for DataFrames and Arrow tables as items: `FromRows`, an order point; `ToRows`, `Apply`, `Convert`.

pandas and pyarrow are imported only if a table of that kind is needed. Any function of a table can be a stage itself,
without a field: `uses: pandas.DataFrame.drop_duplicates`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, Literal

from stagepipe.core import SKIP
from stagepipe.stages.optional_packages import check_choice, check_positive, describe_value, require
from stagepipe.stages.order_point import OrderPointStage

TableKind = Literal["pandas", "arrow"]

_KINDS: Final = ("pandas", "arrow")


def check_kind(kind: str, stage: str) -> None:
    """Import the package of a kind. Raises ValueError for an unknown kind, TargetError if it is not installed."""
    check_choice(kind, _KINDS, "kind", stage)
    require("pandas" if kind == "pandas" else "pyarrow", stage, extra="table")


def is_data_frame(value: Any) -> bool:
    """Whether `value` is a pandas DataFrame. False if pandas is not imported."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def is_arrow_table(value: Any) -> bool:
    """Whether `value` is an Arrow table or record batch. False if pyarrow is not imported."""
    pyarrow = sys.modules.get("pyarrow")
    return pyarrow is not None and isinstance(value, pyarrow.Table | pyarrow.RecordBatch)


def is_table(value: Any) -> bool:
    """Whether `value` is a DataFrame, an Arrow table or a record batch."""
    return is_data_frame(value) or is_arrow_table(value)


def make_table(rows: list[Mapping[str, Any]], kind: str, schema: Mapping[str, str] | None) -> Any:
    """Return a table of rows. `schema` gives the Arrow type of each column; without it, types are inferred."""
    import pyarrow as pa

    arrow_schema = None
    if schema is not None:
        arrow_schema = pa.schema([(name, pa.type_for_alias(alias)) for name, alias in schema.items()])
    if kind == "pandas" and arrow_schema is None:
        import pandas as pd

        return pd.DataFrame.from_records(rows)
    table = pa.Table.from_pylist(rows, schema=arrow_schema)
    return table.to_pandas() if kind == "pandas" else table


def convert_table(value: Any, kind: str, stage: str) -> Any:
    """Convert a DataFrame, an Arrow table, or a dict of columns from `Batch` to a table of `kind`.

    Raises TypeError for other values.
    """
    if not (isinstance(value, Mapping) or is_table(value)):
        raise TypeError(
            f"{stage}: expected a table (a pandas DataFrame, an Arrow table, a dict of columns), found "
            f"{describe_value(value)}; make one with stagepipe.stages.table.FromRows"
        )
    if kind == "pandas":
        import pandas as pd

        if is_data_frame(value):
            return value
        return pd.DataFrame(dict(value)) if isinstance(value, Mapping) else value.to_pandas()
    import pyarrow as pa

    if is_data_frame(value):
        return pa.Table.from_pandas(value, preserve_index=False)
    return pa.table(dict(value)) if isinstance(value, Mapping) else value


class FromRows(OrderPointStage):
    """Collect `size` rows (dicts of plain values) into a pandas DataFrame or Arrow table.

    Args:
        size: rows in a table; the last table of an epoch may be shorter.
        kind: `pandas` or `arrow`.
        schema: the Arrow type of each column, such as `{id: int64, name: string}`. Without it, types are inferred for
            each table separately: a column without values may get another type.
        drop_last: drop the last table of an epoch if it has fewer rows.

    >>> from_rows = FromRows(size=2, kind="arrow")
    >>> from_rows.add({"x": 1, "name": "a"}, 1), from_rows.add({"x": 2, "name": None}, 1)
    (False, True)
    >>> [(table, samples)] = from_rows.flush(random.Random(0))
    >>> table.to_pydict(), samples
    ({'x': [1, 2], 'name': ['a', None]}, 2)

    Raises TargetError if pandas or pyarrow is not installed, TypeError for an item that is not a dict, and ValueError
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
        self.size: Final = check_positive(size, "size", "table.FromRows")
        self.kind: Final = kind
        self.schema: Final = schema
        self.drop_last = drop_last
        check_kind(kind, "table.FromRows")
        check_kind("arrow", "table.FromRows")
        self.clear()

    def add(self, value: Any, samples: int) -> bool:
        """Add a row; return True when the table is complete."""
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
            raise ValueError(f"table.FromRows: {len(rows)} rows do not form a table: {error}") from error

    def clear(self) -> None:
        """Discard the current rows."""
        self._rows: list[Mapping[str, Any]] = []
        self._sample_count = 0


class Apply:
    """Apply functions to a table, one after the other, and return the last result.

    The item is a pandas DataFrame, an Arrow table, or a dict of columns from `Batch`.

    Args:
        functions: one function, or a list of them; in YAML each is a nested `uses`, such as `{uses: my_ops.clean}`.
            Each takes a table of `kind` and returns one of any kind.
        kind: the type that the functions take: `pandas` or `arrow`.
        keep_empty: keep tables without rows. False: drop them.

    >>> import pandas
    >>> clean = Apply(functions=[pandas.DataFrame.dropna, pandas.DataFrame.drop_duplicates])
    >>> clean(pandas.DataFrame({"x": [1.0, None, 1.0, 2.0]}))["x"].tolist()
    [1.0, 2.0]

    Raises TypeError for an item that is not a table and for a function that does not return one.
    """

    def __init__(
        self,
        functions: Callable[[Any], Any] | list[Callable[[Any], Any]],
        *,
        kind: TableKind = "pandas",
        keep_empty: bool = False,
    ) -> None:
        check_kind(kind, "table.Apply")
        self.functions: Final = functions if isinstance(functions, list) else [functions]
        for function in self.functions:
            if not callable(function):
                raise TypeError(
                    f"table.Apply: functions contains {function!r}, not a callable; in YAML write "
                    "`functions: [{uses: my_ops.clean}]`"
                )
        self.kind: Final = kind
        self.keep_empty: Final = keep_empty

    def __call__(self, table: Any) -> Any:
        """Return the new table, or SKIP for one without rows."""
        result = table
        for function in self.functions:
            result = function(convert_table(result, self.kind, "table.Apply"))
            if not is_table(result):
                raise _make_no_table_error(function, result)
        return result if len(result) or self.keep_empty else SKIP


def _make_no_table_error(function: Any, result: Any) -> TypeError:
    name = getattr(function, "__name__", None) or getattr(getattr(function, "func", None), "__name__", repr(function))
    hint = "did you forget `return`, or set `inplace`?" if result is None else "return a DataFrame or an Arrow table"
    found = "None" if result is None else describe_value(result)
    return TypeError(f"table.Apply: {name} returned {found}, not a table; {hint}")


class Convert:
    """Convert a table of any kind, or a dict of columns from `Batch`, to `kind`.

    Args:
        kind: `pandas` or `arrow`.

    >>> Convert("arrow")({"x": [1, 2]}).num_rows
    2

    Raises TargetError if the package is not installed, and TypeError for an item that is not a table.
    """

    def __init__(self, kind: TableKind) -> None:
        check_kind(kind, "table.Convert")
        self.kind: Final = kind

    def __call__(self, table: Any) -> Any:
        """Return the table."""
        return convert_table(table, self.kind, "table.Convert")


class ToRows:
    """Yield each row of a table as a dict of Python values; the inverse of `FromRows`.

    >>> import pandas
    >>> list(ToRows()(pandas.DataFrame({"x": [1, 2], "name": ["a", "b"]})))
    [{'x': 1, 'name': 'a'}, {'x': 2, 'name': 'b'}]

    Missing values of an Arrow table become None; those of a DataFrame stay as they are, usually NaN.

    Raises TypeError for an item that is not a table.
    """

    def __call__(self, table: Any) -> Iterator[dict[str, Any]]:
        """Yield the rows in order."""
        if not is_table(table):
            raise TypeError(f"table.ToRows: expected a table, found {describe_value(table)}")
        yield from table.to_pylist() if hasattr(table, "to_pylist") else table.to_dict("records")
