"""The sink `jsonl`: what the source `jsonl` reads is what was written, or the item is refused."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.json
import pytest

from stagepipe.sinks import JsonlSink
from stagepipe.sources import jsonl as read_jsonl


@dataclass
class Box:
    sides: Any


def write_and_read(items: list[Any], folder: Path) -> list[Any]:
    path = folder / "a.jsonl"
    JsonlSink(folder / "out").write_part(items, path)
    source = read_jsonl(str(path))
    return [source[index] for index in range(len(source))]


def test_nan_infinity_and_none_come_back(tmp_path: Path):
    items = [{"x": math.nan, "y": None, "text": "null, né"}, {"x": -math.inf, "y": [math.inf, 0.1, None], "text": ""}]
    assert json.dumps(write_and_read(items, tmp_path)) == json.dumps(items)
    table = pyarrow.json.read_json(tmp_path / "a.jsonl")
    assert table.column("x").to_pylist()[1] == -math.inf


def test_nan_in_arrays_and_objects_comes_back(tmp_path: Path):
    x = np.array([1.5, np.nan, np.inf], np.float32)
    (row,) = write_and_read([{"x": x, "box": Box(np.float32("nan")), 7: b"x"}], tmp_path)
    assert json.dumps(row) == '{"x": [1.5, NaN, Infinity], "box": {"sides": NaN}, "7": "eA=="}'


@pytest.mark.parametrize(
    "item",
    [
        {1: "x", "1": "y"},
        {"a": 0, "b": [[{1.5: 0, "1.5": 1}]]},
        {"b": Box([{"x": None}, {2: 0, "2": 1}])},
        [{1: 0, "1": 0}],
    ],
    ids=repr,
)
def test_two_keys_of_one_text_are_refused(item: Any, tmp_path: Path):
    with pytest.raises(TypeError, match=r"row 1 of the part.*: two keys of a dict become the same string \([12]"):
        write_and_read([{}, item], tmp_path)


def test_other_keys_than_texts_are_written(tmp_path: Path):
    assert write_and_read([{1: {2.5: "x", "2": Box(())}}], tmp_path) == [{"1": {"2.5": "x", "2": {"sides": []}}}]
