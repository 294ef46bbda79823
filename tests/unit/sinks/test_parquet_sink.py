"""Floats that do not repeat get no dictionary; all other columns do, and the rows are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stagepipe.sinks import ParquetSink
from stagepipe.sinks.parquet_sink import choose_dictionary_columns

RANDOM = np.random.default_rng(0)


def test_only_distinct_floats_have_no_dictionary(tmp_path: Path):
    items = [
        {
            "id": number,
            "a.b": RANDOM.random(8, np.float32),
            "image": RANDOM.random((2, 4)),
            "mask": np.array([0.0, 1.0]),
            "y": float(number),
            "meta": {"score": number / 7, "words": ["a"]},
            "none": None,
        }
        for number in range(600)
    ]
    ParquetSink("out").write_part(items, tmp_path / "part")
    columns = pq.read_metadata(tmp_path / "part").row_group(0)
    plain = {
        columns.column(index).path_in_schema
        for index in range(columns.num_columns)
        if not columns.column(index).has_dictionary_page
    }
    assert plain == {"a.b.list.element", "image.list.element.list.element", "y"}
    rows = pq.read_table(tmp_path / "part").to_pylist()
    assert [row["image"] for row in rows] == [item["image"].tolist() for item in items]


def test_lists_of_every_kind_and_nulls_are_sampled():
    values = RANDOM.random(4000)
    for column_type in (pa.list_(pa.float64()), pa.large_list(pa.float64()), pa.list_(pa.float64(), 4)):
        column = pa.array([None, *values.reshape(-1, 4).tolist()], column_type)
        assert choose_dictionary_columns(pa.table({"x": column, "n": range(1001)})) == ["n"]
    few = pa.table({"x": values[:100]})
    assert choose_dictionary_columns(few) is True
    assert choose_dictionary_columns(pa.table({"x": np.round(values, 1)})) is True
