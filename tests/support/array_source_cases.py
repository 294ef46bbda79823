"""The cases of tests/integration/test_sources.py whose records are rows of arrays and tables, or joined sources."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.source_cases import COUNT, case


def make_images(numbers: range) -> np.ndarray:
    """Return a tiny image for each number, filled with it."""
    return np.stack([np.full((2, 3), number, np.uint8) for number in numbers])


def write_lines(path: Path, numbers: range) -> str:
    path.write_text("".join(json.dumps({"id": number}) + "\n" for number in numbers))
    return str(path)


@case("npy")
def write_npy(folder: Path) -> dict[str, Any]:
    np.save(folder / "ids-0.npy", np.arange(9))
    np.save(folder / "ids-1.npy", np.arange(9, COUNT))
    np.save(folder / "images.npy", make_images(range(COUNT)))
    return {"path": {"id": str(folder / "ids-*.npy"), "image": str(folder / "images.npy")}}


@case("hdf5")
def write_hdf5(folder: Path) -> dict[str, Any]:
    import h5py

    for part, numbers in enumerate((range(17), range(17, COUNT))):
        with h5py.File(folder / f"{part}.h5", "w") as file:
            file["train/id"] = np.array(numbers)
            file.create_dataset("image", data=make_images(numbers), chunks=(5, 2, 3), compression="gzip")
            file["word"] = [f"é{number}" for number in numbers]
    return {"path": str(folder / "*.h5"), "keys": {"id": "train/id", "image": "image", "word": "word"}}


@case("zarr")
def write_zarr(folder: Path) -> dict[str, Any]:
    import zarr

    group = zarr.open_group(str(folder / "train.zarr"), mode="w")
    group.create_array("id", data=np.arange(COUNT), chunks=(7,))
    group.create_array("image", data=make_images(range(COUNT)), chunks=(5, 2, 2))
    return {"path": str(folder / "*.zarr")}


@case("huggingface")
def write_hugging_face(folder: Path) -> dict[str, Any]:
    import datasets

    rows = {"id": list(range(COUNT)), "text": [f"line {number}" for number in range(COUNT)]}
    datasets.Dataset.from_dict(rows).save_to_disk(folder / "saved")
    return {"path": str(folder / "saved")}


@case("concat")
def write_concat(folder: Path) -> dict[str, Any]:
    np.save(folder / "ids.npy", np.arange(11, COUNT))
    return {
        "sources": [
            {"uses": "stagepipe.sources.jsonl", "with": {"path": write_lines(folder / "a.jsonl", range(11))}},
            {"uses": "stagepipe.sources.npy", "with": {"path": {"id": str(folder / "ids.npy")}}},
        ]
    }


@case("zip", get_id=lambda item: item["line"]["id"])
def write_zip(folder: Path) -> dict[str, Any]:
    np.save(folder / "images.npy", make_images(range(COUNT)))
    lines = write_lines(folder / "a.jsonl", range(COUNT))
    return {
        "sources": {
            "line": {"uses": "stagepipe.sources.jsonl", "with": {"path": lines}},
            "image": {"uses": "stagepipe.sources.npy", "with": {"path": str(folder / "images.npy")}},
        }
    }
