"""Zarr: rows of one kind in whole chunks, readable once the run has finished."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from stagepipe import ConfigError, Pipeline, RunError
from stagepipe.sinks import ZarrSink
from stagepipe.sources import ZarrSource
from tests.support.sink_output import list_shards, make_config, write


def write_items(out: Path, items: list[Any], **options: Any) -> zarr.Group:
    sink = {"uses": "stagepipe.sinks.zarr", "with": {"path": str(out), "chunk_items": 2, "part_items": 4, **options}}
    write({"source": {"uses": items}, "sink": sink})
    return zarr.open_group(out, mode="r")


@pytest.mark.parametrize("compression", ["zstd", "blosc", "gzip", "none"])
def test_arrays_have_all_rows_and_chunks_of_the_given_size(tmp_path: Path, compression: str):
    items = [{"x": np.full((2, 3), number, np.int16), "meta": {"name": "n" * number}} for number in range(7)]
    group = write_items(tmp_path, items, compression=compression)
    assert (group["x"].shape, group["x"].chunks, group["x"].dtype) == ((7, 2, 3), (2, 2, 3), np.int16)
    assert (group["x"][:] == np.stack([item["x"] for item in items])).all()
    assert group["meta/name"][:].tolist() == ["n" * number for number in range(7)]
    assert sorted(name for name, _ in group.members(max_depth=None)) == ["meta", "meta/name", "x"]


def test_the_source_zarr_reads_the_output_of_the_sink(tmp_path: Path):
    write_items(tmp_path, [np.arange(3) + number for number in range(5)])
    source = ZarrSource(str(tmp_path), keys="data")
    assert [source[row].tolist() for row in range(len(source))] == [[n, n + 1, n + 2] for n in range(5)]


def test_parts_are_whole_chunks_also_where_their_bytes_end(tmp_path: Path):
    config = make_config(tmp_path, "zarr", 30, chunk_items=4, part_items=9, part_bytes=1)
    write(config)
    assert zarr.open_array(tmp_path / "x", mode="r").shape == (30, 5)


def test_there_are_no_arrays_before_the_end(tmp_path: Path):
    items: list[Any] = [*({"x": number} for number in range(8)), {"x": "text"}]
    with pytest.raises(RunError, match=r"field `x` has rows of shape \[\] and dtype string, but the first part has"):
        write_items(tmp_path, items)
    assert "zarr.json" not in {path.name for path in list_shards(tmp_path)}


def test_rows_that_do_not_fit_are_named(tmp_path: Path):
    sink = ZarrSink("out", chunk_items=2)
    for number, (items, message) in enumerate(
        (
            ([{"x": np.zeros(2)}, {"x": np.zeros(3)}], r"field `x`, row 1 of the part: shape \(3,\)"),
            ([{"x": 1}, {"x": 1.5}], r"field `x`, row 1 of the part: shape \(\) and dtype float64"),
            ([{"x": 1}, {"y": 1}], r"row 1 of the part has the fields y, the first has x"),
            ([{"x": None}], r"zarr: `x` is of type NoneType, which the format cannot hold"),
            ([{"../x": 1}], r"the field `\.\./x` cannot be the name of an array"),
            ([{"a\0b": 1}], r"row 0 of the part: the field `a\\x00b` cannot be"),
            ([{"é" * 128: 1}], r"row 0 of the part: the field `é{80}\.\.\.` cannot be"),
            ([{"\udc80": 1}], r"the field `\\udc80` cannot be"),
            ([{"x/y": 1, "x": 1}], r"row 0 of the part: the field `x` is an array, so it cannot be a group for `x/y`"),
        )
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            sink.write_part(items, tmp_path / str(number))


def test_a_missing_chunk_is_no_finished_group(tmp_path: Path):
    sink = ZarrSink(tmp_path, chunk_items=2)
    sink.write_part([{"x": 1}, {"x": 2}], tmp_path / "part")
    kept: dict[str, Any] = {}
    assert sink.place_files(tmp_path / "part", 0, 2, kept) == {"x/c.0": "x/c.0"}
    assert sink.place_files(tmp_path / "part", 6, 2, kept) == {"x/c.0": "x/c.3"}
    (tmp_path / "x").mkdir()
    with pytest.raises(ValueError, match=r"the chunk .*x/c\.0 is missing"):
        sink.describe(0, 2, kept)
    with pytest.raises(ValueError, match=r"3 rows have been written, which do not fill chunks of 2"):
        sink.place_files(tmp_path / "part", 3, 2, kept)


def test_a_deleted_array_is_missing_and_no_disk_is_full(tmp_path: Path):
    sink = ZarrSink(tmp_path, chunk_items=2)
    sink.write_part([{"x": 1}, {"x": 2}], tmp_path / "part")
    kept: dict[str, Any] = {}
    sink.place_files(tmp_path / "part", 0, 2, kept)
    with pytest.raises(ValueError, match=r"the chunk .*x/c\.0 is missing"):
        sink.describe(0, 2, kept)


def test_rows_without_elements_have_no_chunks(tmp_path: Path):
    group = write_items(tmp_path, [{"boxes": np.zeros((0, 4)), "id": number} for number in range(5)])
    assert group["boxes"].shape == (5, 0, 4)
    assert group["boxes"][:].size == 0
    assert group["id"][:].tolist() == list(range(5))


def test_items_that_when_leaves_need_chunks_of_one(tmp_path: Path):
    config = make_config(tmp_path / "out", "zarr", 30)
    config["sink"]["when"] = {"id": {"ge": 20}}
    with pytest.raises(ConfigError, match=r"this sink cannot have `when`: its workers write whole chunks of 25 items"):
        Pipeline(config)
    config["sink"]["with"]["chunk_items"] = 1
    write(config)
    assert zarr.open_group(tmp_path / "out", mode="r")["id"][:].tolist() == list(range(20, 30))


def test_overwrite_deletes_the_arrays_and_leaves_other_files(tmp_path: Path):
    write_items(tmp_path, [{"old": {"x": number}} for number in range(9)])
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    write_items(tmp_path, [{"x": number} for number in range(3)], overwrite=True)
    names = [str(path.relative_to(tmp_path)) for path in list_shards(tmp_path)]
    assert names == ["notes/a.txt", "x/c.0", "x/c.1", "x/zarr.json", "zarr.json"]
