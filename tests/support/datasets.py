"""Datasets, samplers and collate functions as users of torch write them. Imports torch: only for tests that need it."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info


class TellsItsId:
    """Its only sample is the object's id."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return id(self)


class Squares(Dataset[dict[str, Any]]):
    """Map-style. `noise` and `shift` come from the global generators, as in augmentations."""

    def __init__(self, count: int, side: int = 4) -> None:
        self.count = count
        self.side = side

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "image": torch.full((self.side, self.side), float(index)),
            "noise": torch.rand(2),
            "shift": random.random() + np.random.random(),  # noqa: NPY002 - users' datasets draw from it
        }


class Together(Squares):
    """Fetches a list of indices with one call, and records that in `alone`."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "alone": True}

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [{"index": index, "alone": False} for index in indices]


class Endless(Dataset[int]):
    """Map-style, without a length."""

    def __getitem__(self, index: int) -> int:
        return -index


class Broken(Squares):
    """Sample 5 cannot be read."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 5:
            message = "sample 5 is broken"
            raise OSError(message)
        return super().__getitem__(index)


class Lines(IterableDataset[dict[str, Any]]):
    """Iterable with a known length, which does not make it map-style."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        assert get_worker_info() is None
        for number in range(self.count):
            yield {"line": number, "epoch": self.epoch}


class NoisyLines(Lines):
    """What it has drawn before goes into each sample."""

    def __iter__(self) -> Iterator[Any]:
        total = torch.rand(1).item()
        for number in range(self.count):
            total += torch.rand(1).item() + random.random()
            yield number, self.epoch, total


class Epochs(Sampler[int]):
    """Yields an order that shows which epoch was set."""

    def __init__(self, data_source: Dataset[Any]) -> None:
        self.count = len(data_source)  # type: ignore[arg-type]
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        yield from ((number + self.epoch) % self.count for number in range(self.count))


class Keeper:
    """A sampler that holds its own generator."""

    def __init__(self, kind: str, count: int = 8) -> None:
        generator_classes = {"torch": torch.Generator, "numpy": np.random.default_rng, "legacy": np.random.RandomState}
        self.generator = generator_classes.get(kind, random.Random)()
        self.kind = kind
        self.count = count

    def __iter__(self) -> Iterator[int]:
        if self.kind == "torch":
            return iter(torch.randperm(self.count, generator=self.generator).tolist())
        if self.kind == "python":
            return iter(self.generator.sample(range(self.count), self.count))
        return iter(self.generator.permutation(self.count).tolist())


def every(dataset: Sequence[Any], step: int) -> Iterator[int]:
    """A sampler as a generator function."""
    yield from range(0, len(dataset), step)


def pairs(dataset: Sequence[Any]) -> list[list[int]]:
    """A batch sampler as a function."""
    return [[index, index + 1] for index in range(0, len(dataset) - 1, 2)]


def squares(count: int) -> Squares:
    """A function that returns a dataset."""
    return Squares(count)


def lines(count: int) -> Lines:
    """A function that returns an iterable dataset: only calling it shows the kind."""
    return Lines(count)


def collate(samples: list[dict[str, Any]], *, key: str) -> dict[str, Any]:
    """A user's collate function."""
    return {"indices": [sample[key] for sample in samples], "count": len(samples)}
