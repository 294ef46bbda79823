"""Scikit-learn's handwritten digits as a map-style dataset, and an augmentation; `examples/digits.yaml` uses both.

    stagepipe run examples/digits.yaml

Requires the `demo` extra, for the digits of scikit-learn.
"""

from typing import Any, Literal

import numpy as np

import stagepipe

TEST = 400  # the last 400 digits are the test set


class Digits:
    """1,797 images of 8 x 8, with the two methods of a `torch.utils.data.Dataset`. Each worker builds its own."""

    def __init__(self, split: Literal["train", "test"] = "train") -> None:
        from sklearn.datasets import load_digits  # takes seconds; the worker of `augment` does not need it

        bunch = load_digits()
        part = slice(None, -TEST) if split == "train" else slice(-TEST, None)
        self.images = (bunch.images[part] / 16).astype(np.float32)
        self.labels = bunch.target[part]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.images[index], "label": int(self.labels[index])}


def augment(item: dict[str, Any]) -> dict[str, Any]:
    """Shift by up to a pixel and add noise. The generator is seeded for each item, so the result is reproducible."""
    rng = stagepipe.context().rng
    shifted = np.roll(item["image"], rng.integers(-1, 2, size=2), axis=(0, 1))
    return {**item, "image": shifted + rng.normal(0, 0.05, size=shifted.shape).astype(np.float32)}
