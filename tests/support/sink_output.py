"""Reads the shards that sinks write, and runs pipelines into them."""

import gc
import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import webdataset
from PIL import Image

from stagepipe import Pipeline
from stagepipe.api import open_shards, run_to_sink
from tests.support import sink_stages


def make_config(out: Path, kind: str, count: int, *, workers: int = 1, **arguments: Any) -> dict[str, Any]:
    """Return a pipeline into one sink: shards of 200 items in parts of 50, unless `arguments` say otherwise."""
    arguments = {"path": str(out), **fit_arguments(kind, shard_items=200, part_items=50), **arguments}
    return {
        "source": {"uses": sink_stages.Numbers(count)},
        "stages": [{"name": "extract", "uses": sink_stages.extract_image if kind == "images" else sink_stages.extract}],
        "sink": {"uses": f"stagepipe.sinks.{kind}", "workers": workers, "with": arguments},
    }


def fit_arguments(kind: str, *, shard_items: int, part_items: int) -> dict[str, Any]:
    """Return the arguments of a sink. A part has two chunks of Zarr; images are named by the records' names."""
    if kind == "zarr":
        return {"chunk_items": part_items // 2, "part_items": part_items}
    image = {"field": "image", "name": "name", "format": "png"} if kind == "images" else {}
    return {"shard_items": shard_items, "part_items": part_items, **image}


def write(config: dict[str, Any], *, inline: bool = True, resume: bool = False) -> Pipeline:
    """Run a pipeline into its sinks, unless it has finished. Return it, closed."""
    pipeline = Pipeline(config, inline=inline)
    with open_shards(pipeline, resume=resume) as shards:
        if shards is None or not shards.is_finished:
            with pipeline:
                run_to_sink(pipeline, lambda progress: None, shards=shards)
    return pipeline


def list_shards(out: Path) -> list[Path]:
    """Return the finished shards, and other files under their final names."""
    shards = (path for path in out.iterdir() if not path.name.startswith("."))  # a run may delete the others meanwhile
    return sorted(file for path in shards for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


def read_bytes(out: Path) -> dict[str, bytes]:
    """Return the content of the finished shards, by name."""
    return {str(path.relative_to(out)): path.read_bytes() for path in list_shards(out)}


def list_leftovers(out: Path) -> list[str]:
    """Return what is neither a shard nor a file that stays."""
    stays = {".stagepipe-journal", ".stagepipe-lock"}
    return [path.name for path in out.iterdir() if path.name.startswith(".") and path.name not in stays]


def read_rows(out: Path, kind: str) -> list[tuple[Any, ...]]:
    """Return the records of `sink_stages.extract` in the shards of a folder, in order, as values that compare."""
    return [(row["id"], row["name"], tuple(row["x"])) for row in _read(out, list_shards(out), kind)]


def _read(out: Path, shards: list[Path], kind: str) -> Iterable[dict[str, Any]]:  # noqa: PLR0911 - one a kind
    if kind == "huggingface":
        import datasets  # takes seconds

        return datasets.load_from_disk(str(out)).to_list()
    if kind == "images":
        return sorted(map(_read_image, shards), key=lambda row: row["id"])
    if kind == "zarr":
        import zarr

        columns = {name: array[:].tolist() for name, array in zarr.open_group(out, mode="r").arrays()}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if kind == "jsonl":
        return [json.loads(line) for shard in shards for line in shard.read_text().splitlines()]
    if kind == "parquet":
        return [row for shard in shards for row in pq.read_table(shard).to_pylist()]
    if kind == "npz_shards":
        return [row for shard in shards for row in _read_archive(shard)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the package leaves the files open
        samples = list(webdataset.WebDataset(list(map(str, shards)), shardshuffle=False).decode())
        gc.collect()
    return [{"id": s["id.json"], "name": s["name.txt"], "x": s["x.npy"].tolist()} for s in samples]


def _read_image(path: Path) -> dict[str, Any]:
    with Image.open(path) as image:
        x = np.asarray(image).reshape(-1).view(np.float32)
    return {"id": int(path.stem.removeprefix("item ")), "name": path.stem, "x": x.tolist()}


def _read_archive(shard: Path) -> list[dict[str, Any]]:
    with np.load(shard) as archive:
        columns = {name: array.tolist() for name, array in archive.items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
