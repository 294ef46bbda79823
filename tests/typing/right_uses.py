"""Uses of the builder that mypy and pyright accept, with the types that they infer. Read by both, never run."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from stagepipe import SKIP, Pipeline, PipelineBuilder, Skip, defer, from_dataset, from_source, sources
from stagepipe.report import Report
from stagepipe.torch import Loader, StageDataset

Image = NDArray[np.uint8]


class Sample:
    image: Image
    label: int


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def decode(data: bytes, quality: int = 3) -> Sample:
    raise NotImplementedError


async def embed(sample: Sample) -> str:
    return str(sample.label)


class Client:
    async def __call__(self, sample: Sample) -> Sample | Skip:
        return sample


def tiles(sample: Sample) -> Iterator[Image]:
    yield sample.image


def keep(sample: Sample) -> bool:
    return sample.label > 0


def tokenize(samples: list[Sample]) -> list[str]:
    return [str(sample.label) for sample in samples]


def bright(sample: Sample) -> Sample | Skip:
    return sample if sample.image.mean() > 1 else SKIP


class Resize:
    def __init__(self, size: int, *, antialias: bool = True) -> None:
        self.size = size

    def __call__(self, sample: Sample) -> Image:
        return sample.image


class Photos(Dataset[Sample]):
    def __init__(self, root: str) -> None:
        self.root = root

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError


def read_lines() -> Iterator[str]:
    yield ""


# sources
assert_type(from_source(["a.jpg"]), PipelineBuilder[str])
assert_type(from_source(range(3), retries=2, on_error="skip"), PipelineBuilder[int])
assert_type(from_source(read_lines), PipelineBuilder[str])
assert_type(from_source(Photos("data")), PipelineBuilder[Sample])
assert_type(from_source(defer(Photos, "data")), PipelineBuilder[Sample])
assert_type(from_source("my_package.read"), PipelineBuilder[Any])
assert_type(from_source(defer(sources.files, "*.jpg", shuffle=True)), PipelineBuilder[dict[str, Any]])
assert_type(from_source(defer(sources.numbers, 3)), PipelineBuilder[int])
assert_type(from_dataset(Photos("data"), shuffle=True, workers=4), PipelineBuilder[Sample])
assert_type(from_dataset(defer(Photos, "data")), PipelineBuilder[Sample])
assert_type(from_dataset(Photos("data"), batch_sampler=[[1, 2]], collate_fn=tokenize), PipelineBuilder[list[str]])
assert_type(from_dataset("my_package.Photos"), PipelineBuilder[Any])

# stages
samples = from_source(["a.jpg"]).map(read, workers=4, timeout="30s", cpus="0-3").map(decode, workers="auto")
assert_type(samples, PipelineBuilder[Sample])
assert_type(samples.map(defer(Resize, 224, antialias=False), fuse=True), PipelineBuilder[Image])
assert_type(samples.map(bright, workers={"min": 1, "max": 8}), PipelineBuilder[Sample])
assert_type(samples.map(Resize(224)), PipelineBuilder[Image])
assert_type(samples.map(lambda sample: sample.label), PipelineBuilder[int])
assert_type(samples.map("my_package.decode"), PipelineBuilder[Any])
assert_type(samples.map(embed, concurrency=8, timeout="5s"), PipelineBuilder[str])
assert_type(samples.map(defer(Client), concurrency=8), PipelineBuilder[Sample])
assert_type(from_source(["a"]).map(read).map(functools.partial(decode, quality=5)), PipelineBuilder[Sample])
assert_type(from_source(["1"]).map(int), PipelineBuilder[int])
assert_type(from_source(["1"]).map(Path), PipelineBuilder[Path])
assert_type(samples.filter(keep, on_error="skip"), PipelineBuilder[Sample])
assert_type(samples.filter(lambda sample: sample.label), PipelineBuilder[Sample])
assert_type(samples.flat_map(tiles), PipelineBuilder[Image])
assert_type(from_source(["a b"]).flat_map(str.split), PipelineBuilder[str])
assert_type(samples.map_batches(tokenize, batch_size=32, max_wait="20ms"), PipelineBuilder[str])
assert_type(samples.shuffle(1000), PipelineBuilder[Sample])
assert_type(samples.batch(64, drop_last=True), PipelineBuilder[Any])
assert_type(samples.batch(64).unbatch(), PipelineBuilder[Any])
assert_type(from_source([{"a": 1}]).map_field("a", str), PipelineBuilder[dict[str, int]])
assert_type(samples.sink(print), PipelineBuilder[Sample])
assert_type(samples.with_options(seed=17, memory="4GiB", order="any"), PipelineBuilder[Sample])

# use
assert_type(samples.take(3), list[Sample])
assert_type(samples.run(limit=10), Report)
assert_type(samples.to_yaml(), str)
assert_type(samples.loader(device="cuda", rank=0, world_size=2), Loader)
with samples.open(inline=True) as pipeline:
    for sample in pipeline:
        assert_type(sample, Sample)
Pipeline(samples, ["seed=3"])
Pipeline({"source": {"uses": range(3)}})
Loader(samples, pin_memory=True)
StageDataset(samples)
as_any: PipelineBuilder[Any] = samples
as_object: PipelineBuilder[object] = samples
