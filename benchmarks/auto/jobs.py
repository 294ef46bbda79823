"""The jobs: a pipeline, its hand-made layouts and its layout by `auto`. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.auto import ops

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
            stage("decode", ops.decode, decode),
            stage("resize", ops.resize, resize, size=224),
            stage("to_float32", ops.to_float32, convert),
            batch(64),
        ]
        return {"name": "images", "source": glob, "stages": stages}

    def make_thumbnails(layout: Layout) -> Config:
        decode, resize = layout
        stages = [stage("decode", ops.decode, decode), stage("resize", ops.resize, resize, size=64)]
        sink = {"uses": "stagepipe.sinks.npz", "with": {"path": out, "overwrite": True}}
        return {"name": "thumbnails", "source": glob, "stages": stages, "sink": sink}

    def make_tensors(layout: Layout) -> Config:
        dataset = {"dataset": ops.TinyTensors, "with": {"count": int(60_000 * scale)}}
        stages = [{"name": "dataset", **layout[0]}, batch(256)]
        source = {"uses": "stagepipe.sources.dataset", "with": dataset}
        return {"name": "tensors", "source": source, "stages": stages}

    def make_models(layout: Layout) -> Config:
        stages = [
            stage(name, ops.Model, keys, weight_bytes=100_000_000)
            for name, keys in zip(("detect", "embed", "rank"), layout, strict=True)
        ]
        return {"name": "models", "source": {"uses": range(int(200 * scale))}, "stages": stages}

    return [
        Job("images", ("decode", "resize", "to_float32"), make_images),
        Job("thumbnails", ("decode", "resize"), make_thumbnails),
        Job("tensors", ("dataset",), make_tensors, 30),
        Job("models", ("detect", "embed", "rank"), make_models, 0.1),
    ]
