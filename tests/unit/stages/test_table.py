"""Rows become tables and tables rows, by pandas and pyarrow; functions of tables are stages."""

import random
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from stagepipe.core import SKIP, TargetError
from stagepipe.stages import OrderPointStage
from stagepipe.stages.table import Apply, Convert, FromRows, ToRows

ROWS = [{"x": 1, "name": "a"}, {"x": 2, "name": None}, {"x": 3, "name": "c"}]


def collect(rows, **arguments):
    stage = FromRows(len(rows), **arguments)
    full = [stage.add(row, 2) for row in rows]
    assert full == [False] * (len(rows) - 1) + [True]
    [(table, samples)] = stage.flush(random.Random(0))
    assert samples == 2 * len(rows)
    return table


def test_rows_become_a_table_and_rows_again():
    frame = collect(ROWS)
    assert isinstance(frame, pd.DataFrame)
    assert frame["x"].tolist() == [1, 2, 3]
    table = collect(ROWS, kind="arrow")
    assert isinstance(table, pa.Table)
    assert list(ToRows()(table)) == ROWS


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
def test_a_schema_fixes_the_types(kind):
    table = Convert("arrow")(collect([{"x": 1, "y": None}], kind=kind, schema={"x": "float32", "y": "string"}))
    assert table.schema.field("x").type == pa.float32()
    assert list(ToRows()(table)) == [{"x": 1.0, "y": None}]


def test_numpy_values_and_arrays_are_columns():
    table = collect([{"x": np.float32(1.5), "v": np.arange(2)}, {"x": np.float32(2), "v": np.arange(3)}], kind="arrow")
    assert table.to_pydict() == {"x": [1.5, 2.0], "v": [[0, 1], [0, 1, 2]]}


def test_the_last_table_may_be_shorter_or_is_dropped():
    for drop_last, expected in ((False, [3]), (True, [])):
        stage = FromRows(5, drop_last=drop_last)
        for row in ROWS:
            stage.add(row, 1)
        assert [len(table) for table, _ in stage.finish(random.Random(0))] == expected
    assert isinstance(stage, OrderPointStage)


def test_rows_that_make_no_table_are_refused():
    with pytest.raises(TypeError, match=r"table.FromRows: expected a dict of columns, found an object of type list"):
        FromRows(2).add([1], 1)
    with pytest.raises(ValueError, match=r"table.FromRows: 2 rows do not form a table: .*"):
        collect([{"x": 1}, {"x": "a"}], kind="arrow")


def test_functions_are_applied_one_after_the_other():
    frame = pd.DataFrame({"x": [1.0, None, 1.0, 2.0]})
    clean = Apply([pd.DataFrame.dropna, pd.DataFrame.drop_duplicates, lambda table: table.assign(y=table["x"] * 2)])
    assert clean(frame)["y"].tolist() == [2.0, 4.0]
    assert frame["x"].isna().sum() == 1, "the input is unchanged"


@pytest.mark.parametrize("item", [pa.table({"x": [1, 2]}), pd.DataFrame({"x": [1, 2]}), {"x": np.array([1, 2])}])
def test_every_kind_of_table_is_converted(item):
    assert Apply(lambda table: table.slice(1), kind="arrow")(item).to_pydict() == {"x": [2]}
    assert Convert("pandas")(item)["x"].tolist() == [1, 2]
    assert Convert("arrow")(item).to_pydict() == {"x": [1, 2]}


def test_an_empty_table_is_dropped_unless_kept():
    frame = pd.DataFrame({"x": [None]})
    assert Apply(pd.DataFrame.dropna)(frame) is SKIP
    assert len(Apply(pd.DataFrame.dropna, keep_empty=True)(frame)) == 0


def in_place(table):
    table["x"] = 0


def test_a_function_that_returns_no_table_is_named():
    frame = pd.DataFrame({"x": [1]})
    with pytest.raises(
        TypeError, match="in_place returned None, not a table; did you forget `return`, or set `inplace`"
    ):
        Apply(in_place)(frame)
    with pytest.raises(TypeError, match=r"sum returned .* not a table; return a DataFrame or an Arrow table"):
        Apply(pd.DataFrame.sum)(frame)
    with pytest.raises(TypeError, match="functions contains 'dropna', not a callable"):
        Apply("dropna")


@pytest.mark.parametrize("stage", [ToRows(), Convert("pandas"), Apply(len)])
def test_an_item_that_is_no_table_is_refused(stage):
    with pytest.raises(TypeError, match="expected a table"):
        list(stage(3))


def test_a_missing_package_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TargetError, match=r"requires the package pyarrow; run `pip install 'pandas>=.*' 'pyarrow>="):
        Convert("arrow")
