"""What is a table, and conversion of one kind to the other. In the process of the stage that converts.

pandas and pyarrow are imported only where a table of that kind is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, Literal

from stagepipe.stages.optional_packages import check_choice, describe_value, requires

TableKind = Literal["pandas", "arrow"]

_KINDS: Final = ("pandas", "arrow")


def check_kind(kind: str, stage: str) -> None:
    """Import the package of a kind. Raises ValueError for another kind, TargetError if it is not installed."""
    check_choice(kind, _KINDS, "kind", stage)
    if kind == "pandas":
        with requires(stage, extra="table"):
            import pandas as pd  # noqa: F401 - fails early
    else:
        with requires(stage, extra="table"):
            import pyarrow as pa  # noqa: F401 - fails early


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
    """Return a table of rows. `schema` gives the Arrow type of each column; without it they are inferred."""
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
    """Return a table as one of `kind`: a DataFrame, an Arrow table, or a dict of columns as `Batch` makes it.

    Raises TypeError for anything else.
    """
    if isinstance(value, Mapping):
        return _from_columns(value, kind)
    if is_data_frame(value):
        return value if kind == "pandas" else _to_arrow(value)
    if is_arrow_table(value):
        return value.to_pandas() if kind == "pandas" else value
    raise TypeError(
        f"{stage}: expected a table (a pandas DataFrame, an Arrow table, a dict of columns), found "
        f"{describe_value(value)}; make one with stagepipe.stages.table.FromRows"
    )


def _from_columns(columns: Mapping[str, Any], kind: str) -> Any:
    if kind == "pandas":
        import pandas as pd

        return pd.DataFrame(dict(columns))
    import pyarrow as pa

    return pa.table(dict(columns))


def _to_arrow(frame: Any) -> Any:
    import pyarrow as pa

    return pa.Table.from_pandas(frame, preserve_index=False)
