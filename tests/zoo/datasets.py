"""Datasets, samplers and collate functions as users of torch write them. Imports torch: used by its own tests alone."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info


class Squares(Dataset[dict[str, Any]]):
    """Map-style. `noise` and `shift` are drawn from global generators, as augmentations do."""

    def __init__(self, count: int, side: int = 4) -> None:
        self.count, self.side = count, side

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        assert get_worker_info() is None
        return {
            "index": index,
            "image": torch.full((self.side, self.side), float(index)),
            "noise": torch.rand(2),
            "shift": random.random() + np.random.random(),  # noqa: NPY002 - what others' datasets draw from
        }


class Together(Squares):
    """Fetches lists at once, and says so."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "alone": True}

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [{"index": index, "alone": False} for index in indices]


class Endless(Dataset[int]):
    """Map-style, without a length."""

    def __getitem__(self, index: int) -> int:
        return -index


class Broken(Squares):
    """One of its samples cannot be read."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 5:
            message = "sample 5 is broken"
            raise OSError(message)
        return super().__getitem__(index)


class Lines(IterableDataset[dict[str, Any]]):
    """Iterable; its length is known all the same, which makes it no map-style one."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        assert get_worker_info() is None
        for number in range(self.count):
            yield {"line": number, "epoch": self.epoch}


class Epochs(Sampler[int]):
    """Tells by its order which epoch it was told."""

    def __init__(self, data_source: Dataset[Any]) -> None:
        self.count, self.epoch = len(data_source), 0  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        yield from ((number + self.epoch) % self.count for number in range(self.count))


class Keeper:
    """A sampler that keeps a generator of its own."""

    def __init__(self, kind: str, count: int = 8) -> None:
        makers = {"torch": torch.Generator, "numpy": np.random.default_rng, "legacy": np.random.RandomState}
        self.generator = makers.get(kind, random.Random)()
        self.kind, self.count = kind, count

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
    return [[at, at + 1] for at in range(0, len(dataset) - 1, 2)]


def squares(count: int) -> Squares:
    """A function that returns a dataset."""
    return Squares(count)


def lines(count: int) -> Lines:
    """A function that returns an iterable one: nobody sees what it is before it is called."""
    return Lines(count)


def collate(samples: list[dict[str, Any]], *, key: str) -> dict[str, Any]:
    """A user's own."""
    return {"indices": [sample[key] for sample in samples], "count": len(samples)}
