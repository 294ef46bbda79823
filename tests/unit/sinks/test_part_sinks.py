"""Sinks with workers: the shards are the same for any number of workers, and the packages of the formats read them."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import stagepipe
from stagepipe import ConfigError, RunError, UsageError, defer, from_source
from stagepipe.config import load
from stagepipe.core import count_bytes
from stagepipe.sinks import (
    HuggingFaceSink,
    ImagesSink,
    JsonlSink,
    NpySink,
    NpzShardSink,
    ParquetSink,
    Parts,
    PartSink,
    WebDatasetSink,
)
from tests.support import sink_stages
from tests.support.sink_output import (
    fit_arguments,
    list_leftovers,
    list_shards,
    make_config,
    read_bytes,
    read_rows,
    write,
)

FILES = {
    "jsonl": 2,
    "webdataset": 2,
    "parquet": 2,
    "npz_shards": 7,
    "huggingface": 4,
    "images": 330,
    "zarr": 3 * 15 + 1,
}
"""By kind of sink: the files of 330 items. A shard of `npz_shards` is a part; two JSON files describe a dataset."""


@dataclasses.dataclass
class Record:
    x: int
    name: str


@pytest.fixture(scope="module")
def expected() -> list[tuple[Any, ...]]:
    """The records of 330 items, as JSON and the like give them back."""
    config = make_config(Path("unused"), "jsonl", 330)
    del config["sink"]
    with stagepipe.Pipeline(config, inline=True) as pipeline:
        return [(item["id"], item["name"], tuple(item["x"].tolist())) for item in pipeline]


@pytest.mark.parametrize("kind", FILES)
def test_shards_are_read_by_the_packages_of_the_format(tmp_path: Path, kind: str, expected: list[tuple[Any, ...]]):
    write(make_config(tmp_path / kind, kind, 330))
    assert len(list_shards(tmp_path / kind)) == FILES[kind]
    assert read_rows(tmp_path / kind, kind) == expected


def test_pandas_reads_the_parquet_shards(tmp_path: Path, expected: list[tuple[Any, ...]]):
    write(make_config(tmp_path / "out", "parquet", 330))
    table = pd.read_parquet(tmp_path / "out")
    assert [tuple(row) for row in table[["id", "name"]].to_numpy()] == [row[:2] for row in expected]
    assert [tuple(x.tolist()) for x in table["x"]] == [row[2] for row in expected]
    assert [pq.ParquetFile(shard).metadata.num_row_groups for shard in list_shards(tmp_path / "out")] == [4, 3]


def test_duckdb_reads_the_parquet_shards(tmp_path: Path, expected: list[tuple[Any, ...]]):
    write(make_config(tmp_path / "out", "parquet", 330))
    shards = f"read_parquet('{tmp_path / 'out'}/*.parquet', filename = true, file_row_number = true)"
    query = f"select id, name, x from {shards} order by filename, file_row_number"
    with duckdb.connect() as database:
        rows = database.execute(query).fetchall()
    assert [(number, name, tuple(x)) for number, name, x in rows] == [(*row[:2], tuple(row[2])) for row in expected]


@pytest.mark.parametrize("kind", FILES)
def test_the_bytes_are_the_same_for_one_and_three_workers(tmp_path: Path, kind: str):
    for out, workers, inline in (("inline", 1, True), ("three", 3, False)):
        write(make_config(tmp_path / out, kind, 330, workers=workers), inline=inline)
    assert read_bytes(tmp_path / "inline") == read_bytes(tmp_path / "three")
    assert list_leftovers(tmp_path / "three") == []


def test_rows_of_an_npy_shard_are_mapped(tmp_path: Path):
    write(make_config(tmp_path / "out", "npy", 330, field="x"))
    arrays = [np.load(shard, mmap_mode="r") for shard in list_shards(tmp_path / "out")]
    assert [(array.shape, array.dtype) for array in arrays] == [((200, 5), np.float32), ((130, 5), np.float32)]
    first = next(iter(stagepipe.Pipeline({**make_config(tmp_path, "npy", 1)}, inline=True)))
    assert arrays[0][0].tobytes() == first["x"].tobytes()


@pytest.mark.parametrize("part_items", [1, 2])
def test_rows_in_fortran_order_are_written_as_they_are(tmp_path: Path, part_items: int):
    rows = [np.arange(6.0).reshape(3, 2).T + 10 * number for number in range(3)]
    sink = {"uses": "stagepipe.sinks.npy", "with": {"path": str(tmp_path), "part_items": part_items}}
    write({"source": {"uses": rows}, "sink": sink})
    assert (np.load(tmp_path / "000000.npy") == np.stack(rows)).all()


def test_parts_end_at_items_and_at_bytes():
    parts = Parts(max_items=3, max_bytes=100, sink_count=1)
    sizes = [10, 10, 10, 99, 1, 200, 5]
    assert [parts.add(bytes(size), 1) for size in sizes[:3]] == [False, False, True]
    parts.clear()
    ends = []
    for size in sizes[3:]:
        ends.append(parts.add(bytes(size), 1))
        if ends[-1]:
            parts.flush(None)
    assert ends == [False, True, True, False]
    assert parts.finish(None)[0][0].item_count == 1


def test_bytes_of_an_item_are_those_of_its_data():
    image = Image.new("RGB", (4, 5))
    item = {"a": np.zeros((2, 3)), "t": torch.zeros(4), "b": [b"abc", "de"], "r": Record(1, "xy"), "i": image}
    assert count_bytes(item) == 48 + 16 + 3 + 2 + 8 + 2 + 60


@pytest.mark.parametrize(
    "sink,items,message",
    [
        (JsonlSink, [{"x": 1}, {"x": object()}], r"row 1 of the part, field `x`: JSON cannot hold object"),
        (ParquetSink, [{"x": 1}, {"x": "a"}], r"field `x`, row 1 of the part: str does not fit"),
        (ParquetSink, [3], r"row 0 of the part is int; an item must be a dict"),
        (
            WebDatasetSink,
            [{"__key__": "a.b", "x": 1}],
            r"row 0 of the part: the name 'a\.b' of a sample must not contain a dot",
        ),
        (WebDatasetSink, [{"__key__": "a", "x": object()}], r"field `x`: no file type for object"),
        (HuggingFaceSink, [{"x": 1}, {"x": "a"}], r"huggingface: field `x`, row 1 of the part: str does not fit"),
        (
            ImagesSink,
            [np.zeros((2, 2), np.uint8), np.zeros((2, 2))],
            r"row 1 of the part: the item has .* dtype float64",
        ),
        (ImagesSink, [np.zeros((2, 2, 4), np.uint8)], r"row 0 of the part: the item has shape \(2, 2, 4\)"),
        (ImagesSink, [{"x": 1}], r"row 0 of the part: an item is a dict; name the `field`"),
        (NpySink, [np.zeros(2), np.zeros(3)], r"row 1 of the part has shape \(3,\)"),
        (NpySink, [{"x": 1}], r"name the `field`"),
        (NpzShardSink, [{"x": np.zeros(2)}, {"x": np.zeros(3)}], r"field `x`, row 1 of the part: shape \(3,\)"),
    ],
)
def test_an_item_that_does_not_fit_is_named(tmp_path: Path, sink: type[PartSink], items: list[Any], message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        sink("out").write_part(items, tmp_path / "part") if sink is not WebDatasetSink else sink(
            "out", key="__key__"
        ).write_part(items, tmp_path / "part")


def test_parquet_keeps_nested_arrays_none_and_dataclasses(tmp_path: Path):
    items = [
        {"m": np.arange(6).reshape(2, 3), "n": None},
        {"m": np.ones((1, 2), int), "n": 2.5},
        {"m": None, "n": None},
    ]
    ParquetSink("out").write_part(items, tmp_path / "part")
    rows = pq.read_table(tmp_path / "part").to_pylist()
    assert rows == [{"m": [[0, 1, 2], [3, 4, 5]], "n": None}, {"m": [[1, 1]], "n": 2.5}, {"m": None, "n": None}]
    ParquetSink("out").write_part([Record(1, "a")], tmp_path / "records")
    assert pq.read_table(tmp_path / "records").to_pylist() == [{"x": 1, "name": "a"}]


def write_values(out: Path, values: list[Any], **options: Any) -> list[Any]:
    source = {"uses": [{"c": value} for value in values]}
    sink = {"uses": "stagepipe.sinks.parquet", "with": {"path": str(out), "part_items": 2, **options}}
    write({"source": source, "sink": sink})
    return [row["c"] for shard in list_shards(out) for row in pq.read_table(shard).to_pylist()]


def test_the_first_part_fixes_the_schema_and_a_later_one_must_fit(tmp_path: Path):
    assert write_values(tmp_path / "null", [1, 2, None, None, 3]) == [1, 2, None, None, 3]
    assert write_values(tmp_path / "float", [1.5, 2, 3, 4]) == [1.5, 2.0, 3.0, 4.0]
    assert write_values(tmp_path / "given", [None, None, 1], schema={"c": "int64"}) == [None, None, 1]
    for name, values in (("late", [None, None, 1]), ("text", [1, 2, 3, "a"]), ("narrow", [1, 2, 3.5, 4])):
        with pytest.raises(RunError, match=r"field `c`, row [01] of the part"):
            write_values(tmp_path / name, values)


def test_a_schema_may_be_arrows_and_an_unknown_type_is_refused():
    assert ParquetSink("out", schema=pa.schema([("x", pa.int8())]))._schema.field("x").type == pa.int8()
    with pytest.raises(ValueError, match=r"column `x` has the unknown type 'int65'"):
        ParquetSink("out", schema={"x": "int65"})


@pytest.mark.parametrize("sink", [stagepipe.sinks.JsonlSink, stagepipe.sinks.NpzSink])
def test_a_url_is_refused_and_no_folder_of_its_name_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="path is 's3://bucket/out', a URL; write to a folder of this machine"):
        sink("s3://bucket/out")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_ours_is_refused_and_its_files_stay(tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"is not empty .it has mine.txt., and this run has no journal"):
        write(make_config(out, "jsonl", 10))
    write(make_config(out, "jsonl", 10, overwrite=True))
    assert [path.name for path in list_shards(out)] == ["000000.jsonl", "mine.txt"]


def test_a_finished_job_is_not_run_again_unless_it_is_overwritten(tmp_path: Path):
    config = make_config(tmp_path / "out", "jsonl", 300)
    write(config)
    with pytest.raises(UsageError, match="shards of an earlier run; add --resume"):
        write(config)
    with stagepipe.api.open_shards(stagepipe.Pipeline(config, inline=True), resume=True) as shards:
        assert shards is not None
        assert shards.is_finished
    changed = from_source(range(3)).sink(defer(JsonlSink, str(tmp_path / "out")))
    with pytest.raises(UsageError, match=r"different config(?s:.*)saved"):
        changed.run(resume=True)
    write(make_config(tmp_path / "out", "jsonl", 20, overwrite=True))
    assert [path.name for path in list_shards(tmp_path / "out")] == ["000000.jsonl"]
    assert len(read_rows(tmp_path / "out", "jsonl")) == 20


@pytest.mark.parametrize(
    "source",
    [
        {"uses": "stagepipe.sources.jsonl", "with": {"path": "out/*.jsonl"}},
        {"uses": "stagepipe.sources.jsonl", "with": {"path": ["other/*.jsonl", "./out/../out/000000.jsonl"]}},
        {"uses": "stagepipe.sources.files", "with": {"glob": "**/*.jsonl"}},
        {"uses": "stagepipe.sources.huggingface", "with": {"path": "out"}},
        {
            "uses": "stagepipe.sources.concat",
            "with": {"sources": [{"uses": "stagepipe.sources.jsonl", "with": {"path": "o?t/*"}}]},
        },
    ],
    ids=["pattern", "list", "recursive", "folder", "nested"],
)
def test_overwrite_refuses_to_delete_files_that_the_source_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source
):
    monkeypatch.chdir(tmp_path)
    write(make_config(Path("out"), "jsonl", 10))
    before = read_bytes(tmp_path / "out")
    config = {**make_config(Path("out"), "jsonl", 10, overwrite=True), "source": source}
    with pytest.raises(UsageError, match=r"`overwrite` would delete .*out/000000\.jsonl, which the source reads"):
        write(config)
    assert read_bytes(tmp_path / "out") == before


def test_overwrite_refuses_to_delete_the_subfolders_that_the_source_reads(tmp_path: Path):
    write(make_config(tmp_path, "images", 5))
    files = {"uses": "stagepipe.sources.files", "with": {"glob": f"{tmp_path}/*/*.png"}}
    with pytest.raises(UsageError, match=r"would delete .*/000000/.*png, which the source reads"):
        write({**make_config(tmp_path, "images", 5, overwrite=True), "source": files})
    assert len(list(tmp_path.glob("*/*.png"))) == 5


def test_overwrite_deletes_only_files_that_a_neighbouring_source_does_not_read(tmp_path: Path):
    write(make_config(tmp_path / "in", "jsonl", 10))
    write(make_config(tmp_path / "out", "jsonl", 10))
    source = {"uses": "stagepipe.sources.jsonl", "with": {"path": f"{tmp_path}/*.jsonl"}}
    again = make_config(tmp_path / "out", "jsonl", 10, overwrite=True)
    with pytest.raises(RunError, match="no file matches"):
        write({**again, "source": source})
    write({**again, "source": {**source, "with": {"path": str(tmp_path / "in/000000.jsonl")}}, "stages": []})
    assert len(read_rows(tmp_path / "out", "jsonl")) == 10


def test_one_run_at_a_time_writes_to_a_folder(tmp_path: Path):
    config = make_config(tmp_path / "out", "jsonl", 10)
    with (
        stagepipe.api.open_shards(stagepipe.Pipeline(config, inline=True)),
        pytest.raises(UsageError, match="another run writes to the folder"),
    ):
        write(config)


def test_a_changed_config_is_refused_with_the_difference(tmp_path: Path):
    def resume(**arguments: Any) -> None:
        config = make_config(tmp_path / "out", "jsonl", 300, **arguments)
        write({**config, "stages": [*config["stages"], {"name": "fail", "uses": fail_at_250}]}, resume=True)

    with pytest.raises(RunError, match="item 250"):
        resume()
    with pytest.raises(UsageError, match=r"stages\.jsonl\.with\.prefix: .*'train-'"):
        resume(prefix="train-")
    with pytest.raises(RunError, match="item 250"):  # as before: neither counts
        resume(workers=2, overwrite=True)
    assert len(read_rows(tmp_path / "out", "jsonl")) == 200


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_failed_before_its_first_item_may_restart_with_another_config(tmp_path: Path, resume: bool):
    config = make_config(tmp_path / "out", "jsonl", 10)
    with pytest.raises(RunError, match="no file matches"):
        write({**config, "source": {"uses": "stagepipe.sources.files", "with": {"glob": str(tmp_path / "*.jpg")}}})
    write(config, resume=resume)
    assert len(read_rows(tmp_path / "out", "jsonl")) == 10
    with pytest.raises(UsageError, match="shards of an earlier run; add --resume"):
        write(config)


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_failed_before_its_first_item_leaves_files_of_the_user(tmp_path: Path, resume: bool):
    config = make_config(tmp_path / "out", "jsonl", 10)
    missing = {"uses": "stagepipe.sources.files", "with": {"glob": str(tmp_path / "*.jpg")}}
    with pytest.raises(RunError, match="no file matches"):
        write({**config, "source": missing})
    (tmp_path / "out/000000.jsonl").write_text("mine")
    with pytest.raises(UsageError, match="different config" if resume else "shards of an earlier run"):
        write(config, resume=resume)
    assert (tmp_path / "out/000000.jsonl").read_text() == "mine"


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "huggingface", "images", "zarr"])
def test_a_finished_job_that_lacks_a_file_is_not_finished(tmp_path: Path, kind: str):
    out = tmp_path / "out"
    config = make_config(out, kind, 60, **fit_arguments(kind, shard_items=20, part_items=10))
    write(config)
    before = read_bytes(out)
    write(config, resume=True)
    assert read_bytes(out) == before
    victim = list_shards(out)[1]
    victim.rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(UsageError, match=r"is missing, but the journal says|files, but \d+ were written"):
            write(config, resume=True)
    (tmp_path / "elsewhere").rename(victim)
    write(config, resume=True)


def test_overwriting_does_not_follow_links(tmp_path: Path):
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    (photographs / "mine.png").write_bytes(b"mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / "000000").symlink_to(photographs)
    with pytest.raises(UsageError, match="000000 is a link to a folder, in the place of a subfolder; remove the link"):
        write(make_config(out, "images", 5, overwrite=True))
    assert read_bytes(photographs) == {"mine.png": b"mine"}
    (out / "000000").unlink()
    (out / "000000").mkdir()
    (out / "000000/mine.png").symlink_to(photographs / "mine.png")
    write(make_config(out, "images", 5, overwrite=True))
    assert read_bytes(photographs) == {"mine.png": b"mine"}
    assert len(list_shards(out)) == 5
    (tmp_path / "lines/000000.jsonl").mkdir(parents=True)
    (tmp_path / "lines/000000.jsonl/mine.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"000000\.jsonl is a folder, in the place of a shard; move it elsewhere"):
        write(make_config(tmp_path / "lines", "jsonl", 5, overwrite=True))
    assert (tmp_path / "lines/000000.jsonl/mine.txt").exists()


def test_resuming_leaves_a_folder_in_the_place_of_the_next_shard(tmp_path: Path):
    config = make_config(tmp_path / "out", "jsonl", 300)
    failing = {**config, "stages": [*config["stages"], {"name": "fail", "uses": fail_at_250}]}
    with pytest.raises(RunError, match="item 250"):
        write(failing)
    folder = tmp_path / "out/000001.jsonl"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"000001\.jsonl is a folder, in the place of a shard; move it elsewhere"):
        write(failing, resume=True)
    assert (folder / "mine.txt").exists()


@pytest.mark.parametrize("kind", ["images", "zarr"])
def test_a_lost_cut_or_foreign_file_is_noticed_among_other_files(tmp_path: Path, kind: str):
    out = tmp_path / "out"
    config = make_config(out, kind, 5)
    write(config)
    file = next(path for path in list_shards(out) if path.name.endswith(("png", "jpg", "c.0")) or path.name[0] == "c")
    file.with_name("notes.txt").write_text("mine")
    write(config, resume=True)
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(UsageError, match="not all with the names and sizes that were written; put the files back and"):
        write(config, resume=True)
    file.write_bytes(content)
    file.rename(out / "elsewhere")
    with pytest.raises(UsageError, match=r"has \d files, but \d were written; put the files back"):
        write(config, resume=True)
    (out / "elsewhere").rename(file)
    if kind == "images":
        file.with_stem("mine").write_bytes(content)
        with pytest.raises(UsageError, match="has 6 files, but 5 were written; move yours elsewhere and"):
            write(config, resume=True)
        file.with_stem("mine").unlink()
    write(config, resume=True)


def test_a_damaged_journal_and_a_missing_shard_are_refused(tmp_path: Path):
    out = tmp_path / "out"
    config = make_config(out, "jsonl", 300)
    failing = {**config, "stages": [*config["stages"], {"name": "fail", "uses": fail_at_250}]}
    with pytest.raises(RunError, match="item 250"):
        write(failing)
    assert [path.name for path in list_shards(out)] == ["000000.jsonl"]
    (out / "000000.jsonl").rename(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"000000.jsonl is missing, but the journal says"):
        write(failing, resume=True)
    journal = out / ".stagepipe-journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"0" + lines[1], *lines[2:], lines[-1]]))
    with pytest.raises(UsageError, match="is not the journal of a run"):
        write(failing, resume=True)


def test_resume_and_overwrite_delete_only_the_shards_of_the_job(tmp_path: Path):
    out = tmp_path / "out"
    config = make_config(out, "jsonl", 300, shard_items=50)
    failing = {**config, "stages": [*config["stages"], {"name": "fail", "uses": fail_at_250}]}
    with pytest.raises(RunError, match="item 250"):
        write(failing)
    (out / "20240101.jsonl").write_text("mine")
    with pytest.raises(RunError, match="item 250"):
        write(failing, resume=True)
    assert [path.name for path in list_shards(out)] == [*(f"{n:06d}.jsonl" for n in range(5)), "20240101.jsonl"]
    (out / "000001.jsonl").unlink()  # the journal names those behind the gap
    write(make_config(out, "jsonl", 10, overwrite=True))
    assert [path.name for path in list_shards(out)] == ["000000.jsonl", "20240101.jsonl"]


def test_an_unfinished_job_in_the_folder_of_a_second_sink_stays(tmp_path: Path):
    config = make_config(tmp_path / "out", "jsonl", 300, shard_items=1000)
    failing = {**config, "stages": [*config["stages"], {"name": "fail", "uses": fail_at_250}]}
    with pytest.raises(RunError, match="item 250"):
        write(failing)
    before = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    other = make_config(tmp_path / "other", "jsonl", 10)
    with pytest.raises(UsageError, match=r"is not empty .it has .stagepipe-"):
        write({**other, "sink": [other["sink"], config["sink"]]})
    assert {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()} == before
    overwriting = make_config(tmp_path / "out", "jsonl", 10, overwrite=True)["sink"]
    write({**other, "sink": [other["sink"], overwriting]})
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".stagepipe-lock", "000000.jsonl"]


def fail_at_250(item: dict[str, Any]) -> dict[str, Any]:
    if item["id"] == 250:
        raise ValueError("no more")
    return item


def test_a_sink_in_the_calling_process_gets_all_items_besides(tmp_path: Path):
    seen: list[Any] = []
    config = make_config(tmp_path / "out", "jsonl", 120)
    write({**config, "sink": [{"uses": seen.append}, config["sink"]]})
    assert [item["id"] for item in seen] == list(range(120))
    assert len(read_rows(tmp_path / "out", "jsonl")) == 120


def test_a_report_has_a_row_for_the_sink_and_arrays_stay_where_they_lie(tmp_path: Path):
    arrays = from_source(range(60)).map(sink_stages.extract_array)
    report = arrays.sink(defer(NpySink, str(tmp_path / "out"), part_items=10), workers=2).run()
    [sink] = report.stages[2:]
    assert (sink.name, sink.kind, sink.workers, sink.items) == ("NpySink", "sink", 2, 60)
    assert (sink.outputs, sink.output_unit) == (1, "files")
    into_parts, into_sink, _ = report.hops[1:]
    array_bytes = 60 * 40_000
    assert into_parts.bytes.copied + into_parts.bytes.zero_copy >= array_bytes
    assert into_sink.bytes.zero_copy == array_bytes
    assert sum(np.load(shard).shape[0] for shard in list_shards(tmp_path / "out")) == 60


class LineSink(PartSink):
    """A user's format."""

    appends = True
    extension = ".txt"

    def write_part(self, items: Any, path: Path) -> None:
        path.write_text("".join(f"{item}\n" for item in items))


def test_a_sink_of_the_user_has_workers(tmp_path: Path):
    from_source(range(100)).sink(defer(LineSink, str(tmp_path / "out"), shard_items=40), workers=2).run()
    shards = [shard.read_text().split() for shard in list_shards(tmp_path / "out")]
    assert [len(shard) for shard in shards] == [40, 40, 20]
    assert [int(line) for shard in shards for line in shard] == list(range(100))


def test_an_item_sink_takes_no_workers_and_folders_are_its_own(tmp_path: Path):
    config = make_config(tmp_path / "out", "jsonl", 10)
    with pytest.raises(stagepipe.ConfigError, match="this sink cannot have `workers`"):
        stagepipe.Pipeline({**config, "sink": {"uses": print, "workers": 2}})
    with pytest.raises(stagepipe.ConfigError, match="did you mean `parquet`") as refused:
        stagepipe.Pipeline({**config, "sink": {"uses": "stagepipe.sinks.parket", "workers": 2}})
    assert len(refused.value.problems) == 1  # nothing is known of the keys of a sink that does not exist
    with pytest.raises(UsageError, match="two sinks write to the folder"):
        write({**config, "sink": [config["sink"], {**config["sink"], "name": "again"}]})


def test_journal_records_are_json(tmp_path: Path):
    write(make_config(tmp_path / "out", "jsonl", 300))
    lines = (tmp_path / "out" / ".stagepipe-journal").read_text().splitlines()
    last = json.loads(lines[-1].partition(" ")[2])
    assert last["is_finished"]
    assert last["items"] == 300


def test_a_sink_with_when_writes_the_items_that_match(tmp_path: Path):
    config = make_config(tmp_path / "all", "jsonl", 120)
    few = make_config(tmp_path / "few", "npz_shards", 120)["sink"]
    write({**config, "sink": [config["sink"], {**few, "when": {"id": {"ge": 70}}}]}, inline=False)
    assert [row[0] for row in read_rows(tmp_path / "all", "jsonl")] == list(range(120))
    assert [row[0] for row in read_rows(tmp_path / "few", "npz_shards")] == list(range(70, 120))


@pytest.mark.parametrize(
    "sink, name", [("zarr", "chunk_items"), ("zarr", "part_items"), ("jsonl", "shard_items"), ("images", "shard_items")]
)
def test_a_number_of_items_is_checked_with_its_place(tmp_path: Path, sink: str, name: str):
    path = tmp_path / "config.yaml"
    path.write_text(
        "source: {uses: stagepipe.sources.numbers, with: {count: 3}}\n"
        f"sink:\n  uses: stagepipe.sinks.{sink}\n  with:\n    path: out\n    {name}: 0\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(path)
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (6, 5 + len(f"{name}: "))
    assert problem.message == f"`{name}` is 0; it must be a whole number of at least 1"
    assert problem.hint == f"write a number, or remove `{name}` for the default"


class FullDiskSink(PartSink):
    def write_part(self, items: Sequence[Any], path: Path):
        path.write_text("half of it")
        Path("/dev/full").write_text("the rest")


def test_a_full_disk_in_a_worker_is_told_without_a_traceback(tmp_path: Path):
    config = make_config(tmp_path / "out", "jsonl", 5)
    config["sink"] = {"uses": FullDiskSink, "with": {"path": str(tmp_path / "out")}}
    with pytest.raises(RunError, match=r"out: No space left on device; free disk space, then --resume$") as caught:
        write(config)
    assert "Traceback" not in caught.value.trace
    assert "Errno" not in str(caught.value)
