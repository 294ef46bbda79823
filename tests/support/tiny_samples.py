"""Map-style datasets of tiny samples, which travel in chunks."""

import dataclasses
import os
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from stagepipe import SKIP


class Label(NamedTuple):
    number: int
    name: str | None


@dataclasses.dataclass
class Box:
    corner: np.ndarray
    score: float


class Tiny:
    """`kind` chooses the structure; `draw` is from the global generators, as in augmentations."""

    def __init__(self, count: int, kind: str = "nested") -> None:
        self.count = count
        self.kind = kind

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.kind == "images":
            return np.full((3, 4, 4), index % 256, np.uint8), index
        if self.kind == "tensors":
            import torch

            return torch.full((3, 4), float(index)), torch.rand(2), index
        draw = random.random() + np.random.random()  # noqa: NPY002 - users' datasets draw from it
        return {
            "index": index,
            "row": np.arange(index, index + 20, dtype=np.float32),
            "draw": draw,
            "label": Label(index % 7, f"class {index % 7}" if index % 3 else None),
            "box": Box(np.array([index, -index]), index / 2),
            "pair": [index % 2 == 0, b"bytes" * (index % 4)],
        }


class Reused(Tiny):
    """Writes every sample into the same array."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.array = np.zeros(5)

    def __getitem__(self, index: int) -> np.ndarray:
        self.array[:] = index
        return self.array


class Bad(Tiny):
    """Raises for some samples, returns SKIP or None for others."""

    def __getitem__(self, index: int) -> Any:
        if index % 97 == 50:
            message = f"sample {index} is broken"
            raise OSError(message)
        return SKIP if index % 101 == 70 else super().__getitem__(index)


class Deadly(Tiny):
    """Sample 777 kills its worker."""

    def __getitem__(self, index: int) -> Any:
        if index == 777:
            os._exit(7)
        return super().__getitem__(index)


class Together(Tiny):
    """Reads a list of samples with one call, which notes how many it has read; `kind` says what is wrong with it."""

    def __init__(self, count: int, kind: str = "") -> None:
        super().__init__(count, kind)
        self.call_counts: list[int] = []

    def __getitem__(self, index: int) -> Any:
        if self.kind == "deadly" and index == 777:
            os._exit(7)
        if self.kind == "bad" and index % 97 == 50:
            message = f"sample {index} is broken"
            raise OSError(message)
        return np.full(6, index), index

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.call_counts.append(len(indices))
        if self.kind == "changing":  # its list, after it has read
            samples = [self[index] for index in indices]
            indices.clear()
            return samples
        if self.kind == "sorting":
            indices.sort(reverse=True)
            raise OSError("sorted")
        samples = [self[index] for index in indices[: -1 if self.kind == "short" else None]]
        kinds = {"mapping": dict(enumerate(samples)), "array": np.zeros((len(samples), 2)), "parts": iter(samples)}
        return kinds.get(self.kind, samples)


class Odd(Tiny):
    """Sample 333 has another shape than the others."""

    def __getitem__(self, index: int) -> Any:
        return np.zeros(3 if index == 333 else 2)


class Mixed(Tiny):
    """Structure and types change every 64 samples, with the batches."""

    def __getitem__(self, index: int) -> Any:
        box = Box(np.ones(2), 1.0)
        values = [
            index,
            float(index),
            {"x": index},
            {"x": np.int64(index)},
            (index, "a"),
            [index, b"b"],
            box,
        ]
        return values[index // 64 % len(values)]


def double(sample: dict[str, Any]) -> Any:
    """Drops some samples, and changes the others."""
    return SKIP if sample["index"] % 89 == 3 else {**sample, "row": sample["row"] * 2}


def parts(sample: dict[str, Any]) -> Any:
    """Gives two samples for one."""
    yield {"index": sample["index"], "part": 0}
    yield {"index": sample["index"], "part": 1}


def negate(batch: Any) -> Any:
    """Write to the arrays of a batch."""
    images, _ = batch
    np.subtract(255, images, out=images)
    return batch


class Sums:
    """A dataset whose index is a list of numbers."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: list[int]) -> int:
        return sum(index)


class Pairs:
    """A sampler that yields 20 lists of two."""

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[number, number + 1] for number in range(20)])
