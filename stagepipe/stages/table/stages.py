"""`Apply`, `Convert` and `ToRows`: stages that take a table. Run in any worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from stagepipe.core import SKIP
from stagepipe.stages.optional_packages import describe_value
from stagepipe.stages.table.conversion import TableKind, check_kind, convert_table, is_table


class Apply:
    """Call functions with a table, one after the other, and pass on what the last one returns.

    The item is a pandas DataFrame, an Arrow table, or a dict of columns as `Batch` makes it.

    Args:
        functions: one function, or a list of them; in YAML each is a nested `uses`, such as `{uses: my_ops.clean}`.
            Each takes a table of `kind` and returns one of any kind.
        kind: what the functions take: `pandas` or `arrow`.
        keep_empty: pass on a table without rows; otherwise it is dropped.

    >>> import pandas
    >>> clean = Apply(functions=[pandas.DataFrame.dropna, pandas.DataFrame.drop_duplicates])
    >>> clean(pandas.DataFrame({"x": [1.0, None, 1.0, 2.0]}))["x"].tolist()
    [1.0, 2.0]

    Raises TypeError for an item that is no table, and for a function that returns none.
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
    """Turn a table of any kind, or a dict of columns as `Batch` makes it, into one of `kind`.

    Args:
        kind: `pandas` or `arrow`.

    >>> Convert("arrow")({"x": [1, 2]}).num_rows
    2

    Raises TargetError if the package is not installed, and TypeError for an item that is no table.
    """

    def __init__(self, kind: TableKind) -> None:
        check_kind(kind, "table.Convert")
        self.kind: Final = kind

    def __call__(self, table: Any) -> Any:
        """Return the table."""
        return convert_table(table, self.kind, "table.Convert")


class ToRows:
    """Yield each row of a table as a dict of Python values: the inverse of `FromRows`.

    >>> import pandas
    >>> list(ToRows()(pandas.DataFrame({"x": [1, 2], "name": ["a", "b"]})))
    [{'x': 1, 'name': 'a'}, {'x': 2, 'name': 'b'}]

    A missing value of an Arrow table is None; one of a DataFrame stays what it is there, mostly NaN.

    Raises TypeError for an item that is no table.
    """

    def __call__(self, table: Any) -> Iterator[dict[str, Any]]:
        """Yield the rows in order."""
        if not is_table(table):
            raise TypeError(f"table.ToRows: expected a table, found {describe_value(table)}")
        yield from table.to_pylist() if hasattr(table, "to_pylist") else table.to_dict("records")
