"""The jobs of benchmarks.auto: a pipeline, its hand-made layouts and its layout by `auto`, and their stages."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

import stagepipe


def decode_image(item: dict[str, Any]) -> dict[str, Any]:
    """Decode the bytes of a JPEG file to `image`, an array of (height, width, 3)."""
    return {"image": np.asarray(Image.open(io.BytesIO(item["data"])).convert("RGB"))}


def resize_image(item: dict[str, Any], size: int) -> dict[str, Any]:
    """Resize the image to `size` by `size`."""
    image = Image.fromarray(item["image"]).resize((size, size), Image.Resampling.BILINEAR)
    return {"image": np.asarray(image)}


def to_float32(item: dict[str, Any]) -> dict[str, Any]:
    """Convert uint8 (height, width, 3) to float32 (3, height, width) from 0 to 1, in shared memory."""
    image = stagepipe.empty((3, *item["image"].shape[:2]), np.float32)
    np.multiply(item["image"].transpose(2, 0, 1), np.float32(1 / 255), out=image)
    return {"image": image}


class TinyTensors:
    """A dataset of images as small as CIFAR's, already in memory."""

    def __init__(self, count: int) -> None:
        self._images = torch.zeros((count, 3, 32, 32), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._images[index], index % 10


class Model:
    """A `torch.nn.Linear` on the CPU, of about `weight_bytes`."""

    def __init__(self, weight_bytes: int) -> None:
        """Fill all weights, so that each process that builds a model has its pages."""
        width = int((weight_bytes / 4) ** 0.5)
        self._layer = (
            torch.nn.Linear(width, width, device="meta").to_empty(device="cpu").requires_grad_(requires_grad=False)
        )
        self._layer.weight.fill_(1 / width)
        self._layer.bias.fill_(0.0)
        self._input = torch.ones(width)

    def __call__(self, number: int) -> int:
        """Run the model; the item itself passes on."""
        self._layer(self._input)
        return number


Config = dict[str, Any]
Layout = tuple[dict[str, Any], ...]
"""The keys of each stage that may share a process: `workers` or `fuse`."""


@dataclass(frozen=True)
class Job:
    """A pipeline. `stages` are those that a layout is about; `make_config` makes the config of one layout."""

    name: str
    stages: tuple[str, ...]
    make_config: Callable[[Layout], Config]
    trial_factor: float = 1.0  # its items are so many times cheaper than an image


def make_auto_layout(job: Job) -> Layout:
    """`workers: auto` and `fuse: auto` on every stage."""
    return tuple({"workers": "auto", "fuse": "auto"} for _ in job.stages)


def list_layouts(job: Job, cpus: int) -> Iterator[tuple[str, Layout]]:
    """Yield each way to cut the chain, with 1 or `cpus` workers a process, each with a name.

    Layouts with more than `cpus` + 1 workers are left out: they only divide the same CPUs.
    """
    counts = sorted({1, cpus})
    choices: list[dict[str, Any]] = [{"fuse": True}, *({"workers": count} for count in counts)]
    for keys in itertools.product(choices, repeat=len(job.stages)):
        if sum(each.get("workers", 0) for each in keys) <= cpus + 1:
            yield name_layout(job, keys), keys


def name_layout(job: Job, layout: Layout) -> str:
    """Name a layout: `source | decode+resize x2`."""
    groups: list[tuple[list[str], int]] = [(["source"], 1)]
    for stage, keys in zip(job.stages, layout, strict=True):
        if keys.get("fuse"):
            groups[-1][0].append(stage)
        else:
            groups.append(([stage], keys["workers"]))
    return " | ".join("+".join(names) + (f" x{workers}" if workers > 1 else "") for names, workers in groups)


def make_jobs(images: str, out: str, scale: float) -> list[Job]:
    """Make the four jobs; `scale` times the usual number of items."""
    glob = {"uses": "stagepipe.sources.files", "with": {"glob": f"{images}/**/*.jpg", "read": True}}

    def stage(name: str, uses: object, keys: dict[str, Any], **arguments: Any) -> Config:
        return {"name": name, "uses": uses, "with": arguments, **keys}

    def batch(size: int) -> Config:
        return {"name": "batch", "uses": "stagepipe.stages.Batch", "with": {"size": size}}

    def make_images(layout: Layout) -> Config:
        decode, resize, convert = layout
        stages = [
            stage("decode", decode_image, decode),
            stage("resize", resize_image, resize, size=224),
            stage("to_float32", to_float32, convert),
            batch(64),
        ]
        return {"name": "images", "source": glob, "stages": stages}

    def make_thumbnails(layout: Layout) -> Config:
        decode, resize = layout
        stages = [stage("decode", decode_image, decode), stage("resize", resize_image, resize, size=64)]
        sink = {"uses": "stagepipe.sinks.npz", "with": {"path": out, "overwrite": True}}
        return {"name": "thumbnails", "source": glob, "stages": stages, "sink": sink}

    def make_tensors(layout: Layout) -> Config:
        dataset = {"dataset": TinyTensors, "with": {"count": int(60_000 * scale)}}
        stages = [{"name": "dataset", **layout[0]}, batch(256)]
        source = {"uses": "stagepipe.sources.dataset", "with": dataset}
        return {"name": "tensors", "source": source, "stages": stages}

    def make_models(layout: Layout) -> Config:
        stages = [
            stage(name, Model, keys, weight_bytes=100_000_000)
            for name, keys in zip(("detect", "embed", "rank"), layout, strict=True)
        ]
        return {"name": "models", "source": {"uses": range(int(200 * scale))}, "stages": stages}

    return [
        Job("images", ("decode", "resize", "to_float32"), make_images),
        Job("thumbnails", ("decode", "resize"), make_thumbnails),
        Job("tensors", ("dataset",), make_tensors, 30),
        Job("models", ("detect", "embed", "rank"), make_models, 0.1),
    ]
