"""Stages and datasets that keep random generators, as users write them. Imported by worker processes."""

import random
from functools import partial
from typing import Any, NamedTuple

import albumentations
import numpy as np
import torch
from torch.utils.data import Dataset

from tests.support import random_settings

rng = np.random.default_rng()


class Kept(NamedTuple):
    rng: Any


def make_augmentation() -> Any:
    return albumentations.Compose([albumentations.GaussNoise(p=1), albumentations.HorizontalFlip()])


class Images(Dataset[Any]):
    """A dataset with an augmentation, a million paths and a generator in nested containers."""

    def __init__(self, count: int) -> None:
        self.paths = [str(number) for number in range(1_000_000)]
        self.count = count
        self.transforms = {"train": [make_augmentation()]}
        self.generators = ({"torch": torch.Generator()},)
        for generator in self.generators:
            generator["torch"].seed()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        image = np.full((8, 8, 3), index, np.uint8)
        (transform,) = self.transforms["train"]
        noise = torch.rand(1, generator=self.generators[0]["torch"]).item()
        return index, transform(image=image)["image"].tolist(), noise


class Augment:
    """A stage as a class, with an augmentation and generators of each kind."""

    shared = random.Random()

    def __init__(self) -> None:
        self.transform = make_augmentation()
        self.legacy = np.random.RandomState()
        self.draw = np.random.default_rng().random

    def __call__(self, item: Any) -> Any:
        image = self.transform(image=np.zeros((8, 8, 3), np.uint8))["image"].tolist()
        return item, image, self.shared.random(), self.legacy.random_sample(), self.draw(), rng.random()


def by_global(item: Any) -> Any:
    return item, rng.random(), random_settings.rng.random(), _help()


def _help() -> float:
    return random_settings.draw()


class Slotted:
    __slots__ = ("empty", "generator")

    def __init__(self) -> None:
        self.generator = np.random.Generator(np.random.Philox())

    @property
    def forbidden(self) -> Any:
        raise AssertionError("a property was called")

    def __call__(self, item: Any) -> float:
        return self.generator.random()


def make_closure() -> Any:
    kept = random.Random()

    def draw(_: Any) -> float:
        return kept.random()

    return draw


def draw_from(item: Any, generators: Any) -> float:
    (generator,) = generators
    return float(generator.random())


HOLDERS: dict[str, Any] = {
    "closure": make_closure,
    "slots": Slotted,
    "bound method": lambda: Slotted().__call__,
    "partial in a partial": lambda: partial(partial(draw_from, generators=[random.Random()])),
    "set": lambda: partial(draw_from, generators={np.random.RandomState()}),
    "namedtuple": lambda: partial(draw_from, generators=Kept(np.random.default_rng())),
    "other bit generator": lambda: partial(draw_from, generators=[np.random.RandomState(np.random.PCG64())]),
    "global": lambda: by_global,
    "class": Augment,
}
"""Makers of functions that draw from a generator that no seed of a global generator reaches."""
