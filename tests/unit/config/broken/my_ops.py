"""Stages that the broken configs name. Importing this file fails the test: reading a config must not."""

import dataclasses
import functools

from torchvision.transforms.v2 import Resize as Smaller  # noqa: F401 - a re-export

raise_on_import = "reading a config imported a target"


def read(pattern="*"):
    yield pattern


def decode(item, quality=90):
    return item


def mix(left, right, *, weight):
    return left


def fixed(item, scale, /):
    return item


def nothing():
    return None


@functools.lru_cache
def cached(item, size):
    return item


class Base:
    def __init__(self, size, fill=0):
        self.size, self.fill = size, fill


class Resize(Base):
    def __call__(self, item):
        return item


class Reader(Base):
    pass


@dataclasses.dataclass
class Crop:
    width: int
    height: int = 1

    def __call__(self, item):
        return item


class Grouping:
    order_point = True


class Pairs(Grouping):
    def __init__(self, *, drop_last=False):
        self.drop_last = drop_last


raise RuntimeError(raise_on_import)
