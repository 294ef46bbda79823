"""The form of `save_to_disk`: files of its names, which `datasets` reads as it reads its own."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from stagepipe import RunError
from stagepipe.sinks import HuggingFaceSink
from tests.support.sink_output import list_shards, make_config, write


def write_items(out: Path, items: list[Any], **options: Any) -> datasets.Dataset:
    sink = {"uses": "stagepipe.sinks.huggingface", "with": {"path": str(out), "part_items": 2, **options}}
    write({"source": {"uses": items}, "sink": sink})
    return datasets.load_from_disk(str(out))


def test_files_have_the_names_that_datasets_gives_them(tmp_path: Path):
    write(make_config(tmp_path / "ours", "huggingface", 450))
    datasets.load_from_disk(str(tmp_path / "ours")).save_to_disk(str(tmp_path / "theirs"), num_shards=3)
    names = [[path.name for path in list_shards(tmp_path / out)] for out in ("ours", "theirs")]
    assert names[0] == names[1]
    assert names[0][0] == "data-00000-of-00003.arrow"


def test_features_and_rows_are_those_of_the_items(tmp_path: Path):
    items = [{"m": np.arange(6).reshape(2, 3) + n, "n": None if n else 2.5, "t": "ab"} for n in range(5)]
    dataset = write_items(tmp_path, items)
    assert dataset.to_list() == [{**item, "m": item["m"].tolist()} for item in items]
    assert dataset.with_format("numpy")[4]["m"].tolist() == items[4]["m"].tolist()
    assert dataset.select([3]).map(lambda row: {"n": 1.0}, load_from_cache_file=False)[0]["n"] == 1.0


def test_a_schema_may_be_that_of_features(tmp_path: Path):
    features = datasets.Features({"label": datasets.ClassLabel(names=["cat", "dog"]), "x": datasets.Value("int8")})
    sink = HuggingFaceSink(tmp_path, schema=features.arrow_schema)
    write({"source": {"uses": [{"label": 1, "x": 2}, {"label": 0, "x": 3}]}, "sink": {"uses": sink}})
    assert datasets.load_from_disk(str(tmp_path)).features == features


def test_the_first_part_fixes_the_schema_and_a_later_one_must_fit(tmp_path: Path):
    assert write_items(tmp_path / "float", [{"x": v} for v in (1.5, 2, 3, 4)])["x"][:] == [1.5, 2.0, 3.0, 4.0]
    with pytest.raises(RunError, match=r"huggingface: field `x`, row 1 of the part"):
        write_items(tmp_path / "text", [{"x": v} for v in (1, 2, 3, "a")])


def test_overwrite_deletes_the_files_of_a_finished_job(tmp_path: Path):
    write(make_config(tmp_path, "huggingface", 450))
    (tmp_path / "notes.txt").write_text("mine")
    write(make_config(tmp_path, "huggingface", 10, overwrite=True))
    assert [path.name for path in list_shards(tmp_path)] == [
        "data-00000-of-00001.arrow",
        "dataset_info.json",
        "notes.txt",
        "state.json",
    ]
    assert len(datasets.load_from_disk(str(tmp_path))) == 10
