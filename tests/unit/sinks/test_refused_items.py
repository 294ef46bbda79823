"""Items that a format cannot hold, or would lose, are refused with their row; unknown words before the run."""

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stagepipe import ConfigError, Pipeline, RunError
from stagepipe.sinks import (
    HuggingFaceSink,
    ImagesSink,
    NpySink,
    NpzShardSink,
    ParquetSink,
    PartSink,
    WebDatasetSink,
    ZarrSink,
)
from tests.support.sink_output import make_config, write


@pytest.mark.parametrize(
    "items,message",
    [
        ([{"a": "a", "x": 1}, {"a": "b"}], r"row 1 of the part: the item has no fields"),
        (
            [{"a": "a", "x": 1}, {"a": "a", "y": 1}],
            r"row 1 of the part: the name 'a' is also the name of the previous item",
        ),
        ([{"a": "a", "X": 1, "x": 2}], r"row 0 of the part: the fields `X` and `x` are both the file `\.x\.json`"),
        ([{"a": "a", "x": 1, "x.json": 2}], r"the fields `x` and `x\.json` are both"),
        ([{"a": "a", "x/y": 1}], r"row 0 of the part: field `x/y`: `/` would make it a file in a folder"),
    ],
)
def test_a_sample_that_would_be_lost_or_joined_is_refused(tmp_path: Path, items: list[Any], message: str):
    with pytest.raises(ValueError, match=message):
        WebDatasetSink("out", key="a").write_part(items, tmp_path / "part")


@pytest.mark.parametrize("sink", [NpzShardSink, ZarrSink])
@pytest.mark.parametrize("items,row", [([{}, {}], 0), ([{"x": 1}, {}], 1), ([{"x": {}}, {}], 0)])
def test_a_row_without_fields_cannot_be_stacked(tmp_path: Path, sink: type[PartSink], items: list[Any], row: int):
    with pytest.raises(ValueError, match=rf"row {row} of the part has no fields to write; drop it"):
        sink("out").write_part(items, tmp_path / "part")


@pytest.mark.parametrize("sink", [ParquetSink, HuggingFaceSink])
@pytest.mark.parametrize(
    "items,message",
    [
        ([{}, {}], r"row 0 of the part has no fields"),
        ([{"x": 1}, {}], r"row 1 of the part has no fields"),
        ([{"x": 1}, {"x": 2, 3: 4}], r"field 3 of row 1 of the part is int; column names must be strings"),
        ([{None: 4}], r"field None of row 0 of the part is NoneType"),
        (
            [{"x": torch.zeros(2)}, {"x": torch.zeros(2, dtype=torch.bfloat16)}],
            r"field `x`, row 1 of the part: a tensor of torch\.bfloat16",
        ),
    ],
)
def test_a_row_that_is_none_of_a_table_is_refused(tmp_path: Path, sink: type[PartSink], items: list[Any], message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        sink("out").write_part(items, tmp_path / "part")


def test_an_image_that_is_too_wide_for_a_jpeg_is_refused(tmp_path: Path):
    wide = np.zeros((1, 65_501), np.uint8)
    with pytest.raises(ValueError, match=r"row 0 of the part: the image has 65,501 x 1 pixels"):
        ImagesSink("out").write_part([wide], tmp_path / "jpeg")
    ImagesSink("out", format="png").write_part([wide], tmp_path / "png")


@pytest.mark.parametrize("kind,name", [("parquet", "compression"), ("zarr", "compression"), ("images", "format")])
def test_an_unknown_word_is_found_before_the_run(tmp_path: Path, kind: str, name: str):
    with pytest.raises(ConfigError, match=rf"(?s){name}.*lz"):
        Pipeline(make_config(tmp_path, kind, 1, **{name: "lz"}), inline=True)


@pytest.mark.parametrize("numbers", [[0, 1, 1, 2], [0, 1, 5, 1]])
def test_names_of_samples_are_compared_over_parts(tmp_path: Path, numbers: list[int]):
    items = [{"__key__": f"{number}", "x": place} for place, number in enumerate(numbers)]
    sink = {"uses": WebDatasetSink, "with": {"path": str(tmp_path / "out"), "part_items": 2}}
    config = {"source": {"uses": items}, "sink": sink}
    if numbers[1] == numbers[2]:
        with pytest.raises(
            RunError, match="item 2 and after: ValueError: the name '1' is also the name of the previous item"
        ):
            write(config)
        return
    write(config)
    with tarfile.open(tmp_path / "out/000000.tar") as shard:
        assert shard.getnames() == [f"{number}.x.json" for number in numbers]


def test_a_value_that_the_schema_refuses_is_reported_without_a_traceback(tmp_path: Path):
    sink = {"uses": ParquetSink, "with": {"path": str(tmp_path / "out"), "schema": {"m": "int64"}}}
    with pytest.raises(RunError, match="field `n` of row 0 of the part is not in `schema`") as caught:
        write({"source": {"uses": [{"n": 1}]}, "sink": sink})
    assert caught.value.trace == ""


@pytest.mark.parametrize("name", ["shard_bytes", "part_bytes"])
def test_a_wrong_size_is_named(name: str):
    with pytest.raises(ValueError, match=rf"^{name}: expected a size such as 512MB or 4GiB, found -1"):
        ParquetSink("out", **{name: -1})


MASKED = np.ma.masked_array([1, 2], [True, False])


@pytest.mark.parametrize("sink", [NpySink, NpzShardSink, WebDatasetSink, ZarrSink])
@pytest.mark.parametrize("value", [MASKED, np.ma.masked, [MASKED]])
def test_a_masked_value_is_refused_where_the_format_has_no_masks(tmp_path: Path, sink: type[PartSink], value: Any):
    if sink is WebDatasetSink:
        value, options = {"x.npy": value, "key": "a"}, {"key": "key"}
    else:
        value, options = {"x": value}, {"field": "x"} if sink is NpySink else {}
    with pytest.raises(TypeError, match=r"`x.*masked values, and the format has no masks; before the sink, fill them"):
        sink("out", **options).write_part([value], tmp_path / "part")


@pytest.mark.parametrize("value", [1.7, np.float32(1.5), float("nan"), None, "1.7", np.ma.masked])
def test_a_class_that_is_no_whole_number_is_refused(tmp_path: Path, value: Any):
    with pytest.raises(TypeError, match=r"row 0 of the part: field `cls`: a \.cls file cannot hold"):
        WebDatasetSink("out", key="key").write_part([{"key": "a", "cls": value}], tmp_path / "part")


@pytest.mark.parametrize("value", [3, 3.0, True, np.uint8(3), torch.tensor(3), "3"])
def test_a_class_is_a_whole_number(tmp_path: Path, value: Any):
    WebDatasetSink("out", key="key").write_part([{"key": "a", "cls": value}], tmp_path / "part")
    assert str(int(value)).encode() in (tmp_path / "part").read_bytes()


def test_columns_of_numbers_and_text_are_not_joined(tmp_path: Path):
    rows = [{"x": np.array([1])}, {"x": np.array(["a"])}]
    with pytest.raises(TypeError, match=r"field `x`, row 1 of the part: an array of <U1 with shape \(1,\)"):
        ParquetSink("out").write_part(rows, tmp_path / "part")
    numbers = [{"x": np.array([2**53 + 1])}, {"x": np.array([0.5])}]
    with pytest.raises(TypeError, match=r"field `x`, row 1 of the part: an array of float64"):
        ParquetSink("out").write_part(numbers, tmp_path / "part")
