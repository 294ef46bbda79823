"""npy, hdf5, zarr and huggingface: what is special about each, and what they say about wrong files and names."""

import gc
import json
import os
import resource
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from stagepipe import Pipeline, RunError, from_source
from stagepipe.cli.app import app
from stagepipe.core import UsageError, saves_state
from stagepipe.sources import Hdf5Source, HuggingFaceSource, MixSource, NpySource, ZarrSource, array_sources
from tests.support.pipelines import batch, plain, stage


def make_config(name: str, *stages: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    source = {"uses": f"stagepipe.sources.{name}", **arguments.pop("source_keys", {}), "with": arguments}
    return {"name": "test", "seed": 3, "source": source, "stages": list(stages)}


def sum_row(row: np.ndarray) -> int:
    assert not row.flags.writeable
    assert not row.flags.owndata
    return int(row.sum())


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Ten rows of 256 KiB."""
    np.save(tmp_path / "rows.npy", np.arange(10, dtype=np.float32)[:, None] * np.ones((1, 65_536), np.float32))
    return tmp_path / "rows.npy"


def test_npy_rows_share_the_files_memory(large):
    source = NpySource(str(large))
    mapped = source._map(str(large))
    row = source[3]
    assert type(row) is np.ndarray
    assert np.shares_memory(row, mapped)
    assert isinstance(mapped.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        row[0] = 1


def test_npy_rows_reach_a_stage_in_their_process_uncopied(large):
    work = {"name": "work", "uses": sum_row, "fuse": True}
    config = make_config("npy", work, source_keys={"workers": 2}, path=str(large))
    with Pipeline(config) as pipeline:
        assert list(pipeline) == [65_536 * number for number in range(10)]
    assert [hop.bytes.copied for hop in pipeline.report().hops] == [0, 0, 0]
    config = make_config("npy", {**work, "fuse": False}, source_keys={"workers": 2}, path=str(large))
    with Pipeline(config) as pipeline:
        assert len(list(pipeline)) == 10
    copied = [hop.bytes.copied for hop in pipeline.report().hops]
    assert copied == [0, 10 * 65_536 * 4, 0]  # once, into shared memory


def test_npy_one_array_gives_rows_or_numbers(tmp_path):
    np.save(tmp_path / "n.npy", np.arange(4.0))
    assert [type(number) for number in from_source(NpySource(str(tmp_path / "n.npy"))).take(2)] == [np.float64] * 2
    with Pipeline(
        make_config("npy", batch(4), path=str(tmp_path / "n.npy"), shuffle="blocks"), inline=True
    ) as pipeline:
        assert sorted(next(iter(pipeline)).tolist()) == [0, 1, 2, 3]


def test_npy_refuses_arrays_that_it_cannot_map(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    np.save(tmp_path / "b.npy", np.zeros((2, 3)))
    np.save(tmp_path / "c.npy", np.zeros((4, 3)))
    np.save(tmp_path / "one.npy", np.float32(3))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "text.npy").write_text("not an array")
    with pytest.raises(ValueError, match=r"b\.npy are float64 of shape \(3,\), but the rows of .*a\.npy are float32"):
        len(NpySource([str(tmp_path / "a.npy"), str(tmp_path / "b.npy")]))
    with pytest.raises(ValueError, match=r"one\.npy holds a single float32, which has no rows"):
        len(NpySource(str(tmp_path / "one.npy")))
    for name in ("objects", "text"):
        with pytest.raises(
            ValueError,
            match=rf"npy: .*{name}\.npy: .*give files of numbers or fixed-length strings that `numpy\.save` wrote",
        ):
            len(NpySource(str(tmp_path / f"{name}.npy")))
    with pytest.raises(ValueError, match="cannot be memory-mapped; download it first"):
        NpySource("s3://bucket/a.npy")
    with pytest.raises(ValueError, match=r"the arrays differ in their number of rows: `x` 2, `y` 4"):
        len(NpySource({"x": str(tmp_path / "a.npy"), "y": str(tmp_path / "c.npy")}))


@pytest.fixture
def train_h5(tmp_path: Path) -> Path:
    import h5py

    with h5py.File(tmp_path / "train.h5", "w") as file:
        file.create_dataset("images", data=np.arange(24).reshape(12, 2), chunks=(5, 2), compression="gzip")
        file["labels"] = np.arange(12)
        file["few"] = np.arange(3)
        file["one"] = 3
    return tmp_path / "train.h5"


def test_hdf5_reads_one_dataset_or_several(train_h5):
    assert plain(Hdf5Source(str(train_h5), keys="images")[7]) == ("array", "int64", [14, 15])
    assert plain(Hdf5Source(str(train_h5), keys=["labels", "images"])[-1]) == {
        "labels": 11,
        "images": ("array", "int64", [22, 23]),
    }


def test_a_damaged_chunk_is_named_with_its_file(train_h5, tmp_path):
    import h5py
    import zarr

    with h5py.File(train_h5) as file:
        chunk = file["images"].id.get_chunk_info(1)
    with train_h5.open("r+b") as file:
        file.seek(chunk.byte_offset)
        file.write(b"\xff" * chunk.size)
    source = Hdf5Source(str(train_h5), keys="images")
    assert source[0].tolist() == [0, 1]
    with pytest.raises(OSError, match=r"^hdf5: .*train\.h5: row 5 cannot be read: "):
        source[7]

    zarr.create_array(tmp_path / "a.zarr", data=np.arange(24).reshape(12, 2), chunks=(5, 2))
    (tmp_path / "a.zarr/c/1/0").write_bytes(b"\xff" * 40)
    with pytest.raises((OSError, ValueError), match=r"^zarr: .*a\.zarr: row 5 cannot be read: "):
        ZarrSource(str(tmp_path / "a.zarr"))[7]


def test_hdf5_reads_a_chunk_once_where_rows_of_it_follow(tmp_path):
    import h5py

    with h5py.File(tmp_path / "train.h5", "w") as file:
        file.create_dataset("images", data=np.arange(400).reshape(100, 4), chunks=(10, 4), compression="gzip")
        file.create_dataset("labels", data=np.arange(100), chunks=(4,), compression="gzip")
    source = Hdf5Source(str(tmp_path / "train.h5"), shuffle="blocks")
    order = source.make_order("blocks")
    order.begin(0, 3)
    reads: Counter[tuple[str, int, int]] = Counter()
    for name, rows in source._rows.items():

        def read(number: int, chunk: int, name: str = name, read_chunk: Any = rows._read_chunk) -> Any:
            reads[name, number, chunk] += 1
            return read_chunk(number, chunk)

        rows._get_chunk = lru_cache(rows._get_chunk.cache_parameters()["maxsize"])(read)
    found = [source[order[position]] for position in range(100)]
    assert sorted(int(one["labels"]) for one in found) == list(range(100))
    assert all(one["images"][0] == 4 * one["labels"] for one in found)
    counts = {name: [count for (one, *_), count in reads.items() if one == name] for name in ("images", "labels")}
    assert counts["images"] == [1] * 10
    assert max(counts["labels"]) <= 2  # a block of images may begin within a chunk of labels


def test_hdf5_keeps_few_of_many_files_open(tmp_path):
    import h5py

    for number in range(150):
        with h5py.File(tmp_path / f"{number:03}.h5", "w") as file:
            file["x"] = [number]
    source = Hdf5Source(str(tmp_path / "*.h5"))
    open_before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert [int(source[number]["x"]) for number in range(150)] == list(range(150))
    most_open = array_sources._MAX_OPEN_STORES
    assert len(os.listdir("/proc/self/fd")) - open_before <= most_open  # noqa: PTH208
    del source
    gc.collect()  # the source is in a cycle
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_before + most_open + 20, limits[1]))
    try:
        assert len(Hdf5Source(str(tmp_path / "*.h5"))) == 150
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_hdf5_refuses_a_virtual_dataset_whose_files_cannot_be_opened(tmp_path):
    import h5py

    layout = h5py.VirtualLayout(shape=(3, 2), dtype="i8")
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = [number, number]
        layout[number] = h5py.VirtualSource(f"{number}.h5", "x", shape=(2,))
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file.create_virtual_dataset("x", layout, fillvalue=0)
    source = str(tmp_path / "all.h5")
    assert plain(Hdf5Source(source)[2]["x"]) == ("array", "int64", [2, 2])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (130, limits[1]))
    try:
        with pytest.raises(ValueError, match=r"`x` has 3 files, which HDF5 keeps open, but only 130 may be open"):
            Hdf5Source(source)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    (tmp_path / "1.h5").unlink()
    with pytest.raises(ValueError, match=r"hdf5: .*all\.h5: the virtual dataset `x` needs .*/1\.h5, which is missing"):
        Hdf5Source(source)[0]


def test_a_row_can_be_written_without_changing_the_file(train_h5):
    source = Hdf5Source(str(train_h5), keys="images")
    source[0][:] = 99
    assert source[0].tolist() == [0, 1]


def test_hdf5_lists_the_datasets_of_the_file(train_h5):
    expected = (
        r"train\.h5 has no array `image`, did you mean `images`\?; it holds `few` \(3, int64\), `images` \(12 x 2"
    )
    with pytest.raises(ValueError, match=expected):
        len(Hdf5Source(str(train_h5), keys=["image"]))
    with pytest.raises(ValueError, match=r"differ in their number of rows: `few` 3, `images` 12, `labels` 12"):
        len(Hdf5Source(str(train_h5)))
    (train_h5.parent / "no.h5").write_text("no")
    with pytest.raises(ValueError, match=r"hdf5: .*no\.h5: .*give files in HDF5 format"):
        len(Hdf5Source(str(train_h5.parent / "no.h5")))
    with pytest.raises(ValueError, match="hdf5: `keys` is empty"):
        Hdf5Source(str(train_h5), keys=[])


def test_zarr_reads_an_array_and_lists_the_arrays(tmp_path):
    import zarr

    zarr.save_array(str(tmp_path / "array.zarr"), np.arange(6).reshape(3, 2))
    group = zarr.open_group(str(tmp_path / "group.zarr"), mode="w")
    group.create_array("train/images", data=np.zeros((4, 2), np.uint8))
    assert plain(ZarrSource(str(tmp_path / "array.zarr"))[1]) == ("array", "int64", [2, 3])
    assert ZarrSource(str(tmp_path / "group.zarr"), keys="train/images")[3].shape == (2,)
    with pytest.raises(
        ValueError,
        match=r"has no array `images`, did you mean `train/images`\?; it holds `train/images` \(4 x 2, uint8\)",
    ):
        len(ZarrSource(str(tmp_path / "group.zarr"), keys="images"))
    with pytest.raises(ValueError, match="is itself an array, so it has no `x`; remove `keys`"):
        len(ZarrSource(str(tmp_path / "array.zarr"), keys="x"))
    with pytest.raises(ValueError, match=r"zarr: no file matches '.*no\.zarr'"):
        ZarrSource(str(tmp_path / "no.zarr"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"zarr: .*empty: .*give the folder of a Zarr array or group"):
        len(ZarrSource(str(tmp_path / "empty")))


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    import datasets

    rows = {"id": list(range(30)), "vector": np.arange(60.0).reshape(30, 2).tolist()}
    parts = {"train": datasets.Dataset.from_dict(rows), "test": datasets.Dataset.from_dict({"id": [7]})}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_hugging_face_names_splits_and_columns(splits):
    with pytest.raises(ValueError, match=r"has several splits; set `split` to one of `train`, `test`"):
        len(HuggingFaceSource(str(splits)))
    with pytest.raises(ValueError, match=r"has no split `trian`; set `split` to one of `train`, `test`"):
        len(HuggingFaceSource(str(splits), split="trian"))
    with pytest.raises(ValueError, match=r"has no column `vectr`; did you mean `vector`\? It has id, vector"):
        len(HuggingFaceSource(str(splits), split="train", columns=["vectr"]))
    source = HuggingFaceSource(str(splits), split="train", columns=["vector"], format="numpy")
    assert plain(source[-1]) == {"vector": ("array", "float32", [58.0, 59.0])}


def test_hugging_face_reads_arrow_and_parquet_files(splits, tmp_path):
    import datasets

    assert HuggingFaceSource(str(splits / "train" / "*.arrow"))[29]["id"] == 29
    datasets.load_from_disk(str(splits))["train"].to_parquet(tmp_path / "train.parquet")
    source = HuggingFaceSource(str(tmp_path / "*.parquet"), columns=["id"], options={"cache_dir": str(tmp_path / "c")})
    assert source.__getitems__([3, 1]) == [{"id": 3}, {"id": 1}]
    files = {"train": str(tmp_path / "train.parquet"), "test": str(tmp_path / "train.parquet")}
    options = {"cache_dir": str(tmp_path / "c"), "data_files": files}
    assert [
        len(HuggingFaceSource(files["train"], split=split, options=options)) for split in ("test", "train+test")
    ] == [
        30,
        60,
    ]


@pytest.mark.parametrize(
    "text, arguments, message",
    [
        ("", {}, r"huggingface: .*rows\.jsonl has no rows; name files with at least one$"),
        ('{"id": 1}\n{bad\n', {}, r"huggingface: .*rows\.jsonl cannot be read: JSON parse error: Missing a name"),
        ('{"id": 1}\n', {"split": "test"}, r"rows\.jsonl has no split `test`; set `split` to one of `train`$"),
        ('{"id": 1}\n', {"split": "train[:x]"}, r"rows\.jsonl cannot be read: Unrecognized instruction format"),
        ('{"id": 1}\n', {"columns": ["ids"]}, r"rows\.jsonl has no column `ids`; did you mean `id`\? It has id$"),
    ],
)
def test_hugging_face_names_wrong_files_in_one_line(tmp_path, text, arguments, message):
    (tmp_path / "rows.jsonl").write_text(text)
    source = HuggingFaceSource(str(tmp_path / "rows.jsonl"), options={"cache_dir": str(tmp_path / "c")}, **arguments)
    with pytest.raises(ValueError, match=message) as error:
        len(source)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", ["./corpus", "/corpus/en", "here/corpus", "corpus.zip", "corpus/*"])
def test_hugging_face_does_not_ask_the_hub_for_a_missing_local_path(tmp_path, monkeypatch, path):
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("the Hub was asked"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(ValueError, match=r"huggingface: there is no file or folder '.*' in the current directory /"):
        len(HuggingFaceSource(path))


def test_hugging_face_asks_the_hub_for_a_name_with_a_dot(monkeypatch):
    import datasets

    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda name, *_, **__: asked.append(name) or {"train": [7]})
    assert len(HuggingFaceSource("teknium/OpenHermes-2.5")) == 1
    assert asked == ["teknium/OpenHermes-2.5"]


def test_a_hugging_face_stream_resumes_from_its_state(splits):
    fused = {"fuse": True}  # so that one process imports datasets
    config = make_config(
        "huggingface", source_keys=fused, path=str(splits), split="train", columns=["id"], streaming=True
    )
    expected = [{"id": number} for number in range(30)]
    with Pipeline(config, inline=True) as pipeline:
        items = iter(pipeline)
        assert [next(items) for _ in range(11)] == expected[:11]
        state = pipeline.state_dict()
    with Pipeline(config) as pipeline:
        pipeline.load_state_dict(state)
        assert list(pipeline) == expected[11:]
        assert list(pipeline) == expected
    stream = HuggingFaceSource(str(splits), split="train", streaming=True)
    assert saves_state(stream)
    mixed = MixSource([stream, list("abc")], until="each_once")
    items = iter(mixed)
    head = [next(items) for _ in range(12)]
    resumed = iter(mixed)
    resumed.load_state_dict(json.loads(json.dumps(items.state_dict())))
    assert [item for item in [*head, *resumed] if isinstance(item, dict)] == list(stream)


def test_a_stream_is_not_shuffled_by_index(splits):
    with pytest.raises(ValueError, match=r"has no indices for `shuffle` to order; .* stagepipe\.stages\.Shuffle"):
        HuggingFaceSource(str(splits), split="train", streaming=True, shuffle=True)


@pytest.mark.parametrize("module, source", [("h5py", "hdf5"), ("zarr", "zarr"), ("datasets", "huggingface")])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, module, source):
    monkeypatch.setitem(sys.modules, module, None)
    build = {"hdf5": Hdf5Source, "zarr": ZarrSource, "huggingface": HuggingFaceSource}[source]
    with pytest.raises(UsageError, match=rf"{source}.* needs {module}: pip install '{module}>=[\d.]+'"):
        build("somewhere")


def test_a_wrong_argument_of_a_nested_source_is_found_before_the_run(tmp_path):
    (tmp_path / "mix.yaml").write_text(
        "name: x\nsource:\n  uses: stagepipe.sources.mix\n  with:\n    sources:\n"
        "      - {uses: stagepipe.sources.npy, with: {pth: a.npy}}\n"
    )
    found = CliRunner().invoke(app, ["validate", str(tmp_path / "mix.yaml")])
    assert found.exit_code == 2
    assert "mix.yaml:6" in found.output
    assert "pth" in found.output


def test_a_missing_key_ends_the_run_with_its_message_and_no_traceback(train_h5):
    config = make_config("hdf5", stage("double"), path=str(train_h5), keys="image")
    with pytest.raises(RunError, match=r"stage source.* did you mean `images`") as caught, Pipeline(config) as pipeline:
        list(pipeline)
    assert caught.value.trace == ""
