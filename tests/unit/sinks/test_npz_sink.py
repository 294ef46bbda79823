"""NpzSink writes what np.load reads loaded, and a file is complete or not there."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from stagepipe.core import build_target
from stagepipe.sinks import NpzSink


@dataclasses.dataclass
class Record:
    x: int


class Pair(NamedTuple):
    left: int
    right: int


def write_and_load(folder: Path, item: Any, **options: Any) -> dict[str, np.ndarray]:
    NpzSink(folder, **options)(item)
    with np.load(folder / "000000.npz", allow_pickle=False) as archive:
        return dict(archive)


@pytest.mark.parametrize("compress", [False, True])
def test_arrays_are_loaded_bit_for_bit(tmp_path: Path, compress: bool):
    image = np.random.default_rng(0).normal(size=(3, 4)).astype("f4")
    loaded = write_and_load(tmp_path, {"image": image.T, "file": np.array([True])}, compress=compress)
    assert loaded["image"].tobytes() == image.T.tobytes()
    assert loaded["file"].tolist() == [True]


def test_nested_names_are_joined(tmp_path: Path):
    loaded = write_and_load(tmp_path, {"a": {"b": (np.ones(1), {"c": 2})}, "r": Record(3), "p": Pair(4, 5), 6: 7})
    assert {name: array.tolist() for name, array in loaded.items()} == {
        "a/b/0": [1],
        "a/b/1/c": 2,
        "r/x": 3,
        "p/left": 4,
        "p/right": 5,
        "6": 7,
    }


def test_other_values_become_arrays(tmp_path: Path):
    loaded = write_and_load(
        tmp_path,
        {
            "names": ["a", "bcd"],
            "name": "a",
            "numbers": [1, 2.5],
            "file": b"\0\1",
            "files": [b"\0", b"\1\2"],
            "tensor": torch.ones(2, requires_grad=True),
            "image": Image.new("RGB", (2, 3)),
        },
    )
    assert loaded["names"].tolist() == ["a", "bcd"]
    assert loaded["names"].dtype == "<U3"
    assert loaded["name"] == "a"
    assert loaded["numbers"].tolist() == [1, 2.5]
    assert loaded["file"].tolist() == [0, 1]
    assert loaded["files/1"].tolist() == [1, 2]
    assert loaded["tensor"].tolist() == [1, 1]
    assert loaded["image"].shape == (3, 2, 3)


def test_an_item_that_is_one_array_is_called_data(tmp_path: Path):
    assert write_and_load(tmp_path, np.arange(3))["data"].tolist() == [0, 1, 2]


def test_items_are_numbered_and_nothing_else_is_left(tmp_path: Path):
    sink = build_target("stagepipe.sinks.npz", {"path": tmp_path / "new" / "out"})
    for number in range(3):
        assert sink({"x": number}) is None
    sink.close()
    assert sorted(p.name for p in (tmp_path / "new" / "out").iterdir()) == ["000000.npz", "000001.npz", "000002.npz"]


@pytest.mark.parametrize(
    "item,words",
    [
        ({"x": None}, "`x` is of type NoneType"),
        ({"a": {"x": {1, 2}}}, "`a/x` is of type set"),
        ({"x": np.array([None])}, "`x` is of type ndarray of object"),
        ({"x": torch.zeros(1, dtype=torch.bfloat16)}, "`x` is of type Tensor of torch.bfloat16"),
    ],
)
def test_an_unsupported_value_is_named_and_leaves_no_file(tmp_path: Path, item: Any, words: str):
    with pytest.raises(TypeError, match=words):
        NpzSink(tmp_path)(item)
    assert list(tmp_path.iterdir()) == []


def test_two_fields_of_one_name_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="`a/b`"):
        NpzSink(tmp_path)({"a": {"b": 1}, "a/b": 2})


def test_a_crash_while_writing_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sink = NpzSink(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("numpy.lib.format.write_array", full)
        with pytest.raises(OSError, match="No space"):
            sink({"x": 1})
    assert list(tmp_path.iterdir()) == []
    sink({"x": 2})
    assert np.load(tmp_path / "000000.npz")["x"] == 2


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path):
    (tmp_path / "000007.npz").touch()
    with pytest.raises(FileExistsError, match="not empty; use another folder, or set `overwrite` to true"):
        NpzSink(tmp_path)


def test_overwrite_deletes_only_files_of_an_earlier_run(tmp_path: Path):
    for name in ("000007.npz", "mine.npz", "notes.txt"):
        (tmp_path / name).touch()
    NpzSink(tmp_path, overwrite=True)({"x": 1})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000000.npz", "mine.npz", "notes.txt"]
