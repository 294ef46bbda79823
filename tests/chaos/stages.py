"""Stages and sources of the random pipelines, for items of any shape. Imported by worker processes."""

from __future__ import annotations

import asyncio
import os
import random
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import stagepipe

FOLDER = "STAGEPIPE_CHAOS_FOLDER"
"""Environment variable of the workers: the folder that records raised errors. Unset, no stage raises."""


# ---------------------------------------------------------------------------------------------- digests of items


def digest(value: Any) -> str:
    """Return a short digest of an item: equal items have equal digests."""
    return f"{zlib.crc32(_describe(value).encode()):08x}"


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value)
        return f"{data.dtype}{data.shape}{zlib.crc32(data.reshape(-1).view(np.uint8)) if data.size else 0}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_describe(child)}" for key, child in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}(" + ",".join(map(_describe, value)) + ")"
    return repr(value.item() if isinstance(value, np.generic) else value)


def _make_random(item: Any, salt: int) -> random.Random:
    return random.Random(f"{salt} {digest(item)}")


def _map_leaves(item: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(item, Mapping):
        return {key: _map_leaves(child, change) for key, child in item.items()}
    if isinstance(item, list | tuple):
        return type(item)(_map_leaves(child, change) for child in item)
    return change(item)


# ---------------------------------------------------------------------------------------------- sources


class Items:
    """An indexed source whose order depends on the epoch."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = 0

    def begin(self, epoch: int, seed: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return 1000 * self.epoch + index


def stream(count: int) -> Iterator[int]:
    yield from range(count)


def drawing_stream(count: int) -> Iterator[int]:
    """Numbers that end in a draw from each global generator and the context's."""
    for index in range(count):
        yield _append_draws(index)


class OwnDrawingStream:
    """A stream that draws from a generator of its own, and counts by epochs."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._generators = [np.random.default_rng(), random.Random()]

    def __iter__(self) -> Iterator[int]:
        numpy_rng, python_rng = self._generators
        for index in range(self.count):
            yield index << 32 | int(numpy_rng.integers(1 << 16)) << 16 | python_rng.getrandbits(16)


class DrawingItems:
    """An indexed source whose items end in draws."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return _append_draws(index)


def _append_draws(index: int) -> int:
    own = int(stagepipe.context().rng.integers(1 << 10))
    return index << 32 | random.getrandbits(10) << 20 | int(np.random.randint(1 << 10)) << 10 | own  # noqa: NPY002 - the global generator is meant


# ---------------------------------------------------------------------------------------------- payloads


def number(item: int, salt: int) -> int:
    return item * 3 + salt


def small(item: int, salt: int) -> dict[str, Any]:
    """A small item: 0 to 1,024 bytes beside its number."""
    rnd = _make_random(item, salt)
    return {"id": item, "data": rnd.randbytes(rnd.choice([0, 1, rnd.randint(2, 1024)]))}


def text(item: int, salt: int) -> dict[str, Any]:
    return {"id": item, "text": f"{salt} {item} " * (_make_random(item, salt).choice([0, 1, 9, 900]))}


def arrays(item: int, salt: int, max_size: int = 2_000_000) -> dict[str, Any]:
    """Arrays of very different sizes, also from item to item."""
    rnd = _make_random(item, salt)
    sizes = [int(max_size ** rnd.random()) - 1 for _ in range(rnd.randint(1, 4))]
    values = [np.full(size, (item + index) % 251, np.uint8) for index, size in enumerate(sizes)]
    return {"id": item, "arrays": values}


def image(item: int, salt: int) -> dict[str, Any]:
    """An image of the same size for all items of a pipeline, so that they can be batched."""
    side = _make_random(0, salt).choice([1, 8, 60, 200])
    return {"id": item, "x": np.full((side, side, 3), (item + salt) % 251, np.uint8)}


def loaned(item: int, salt: int) -> dict[str, Any]:
    """An array allocated in the outgoing shared memory."""
    array = stagepipe.empty((_make_random(0, salt).choice([10, 5000, 100_000]),), np.int32)
    array[:] = (item + salt) % (1 << 31)
    return {"id": item, "x": array}


# ---------------------------------------------------------------------------------------------- stages


def same(item: Any) -> Any:
    return item


def changed(item: Any, salt: int) -> Any:
    """The item with changed values, in new arrays."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return leaf ^ salt if leaf.dtype.kind in "iu" else leaf + salt
        return leaf if isinstance(leaf, str | None) else leaf + salt

    return _map_leaves(item, change)


def borrowed(item: Any, salt: int) -> Any:
    """The item with its arrays copied into loaned memory; returns views of them."""

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray) or leaf.dtype.hasobject:
            return leaf
        array = stagepipe.empty(leaf.shape, leaf.dtype)
        array[...] = leaf
        return array[::2] if salt % 2 and array.ndim and array.shape[0] > 1 else array

    return _map_leaves(item, change)


def nested(item: Any) -> Any:
    """The item, beside views of views of its arrays."""
    leaves: list[np.ndarray] = []
    _map_leaves(item, lambda leaf: leaves.append(leaf) if isinstance(leaf, np.ndarray) else None)
    views = [leaf.reshape(-1)[1:][: max(leaf.size // 2, 1)] for leaf in leaves]
    return {"of": item, "views": views}


def drawn(item: Any) -> dict[str, Any]:
    """The item with draws from all kinds of generators, which must be reproducible in any worker at any time."""
    own = int(stagepipe.context().rng.integers(0, 1 << 30))
    return {"of": item, "draws": [own, random.randrange(1 << 30), int(np.random.randint(1 << 30))]}  # noqa: NPY002


class OwnGenerators:
    """Draws from generators that the stage keeps for itself, as transforms of libraries do."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()
        self._others = {"python": [random.Random()], "legacy": np.random.RandomState()}

    def __call__(self, item: Any) -> dict[str, Any]:
        python, legacy = self._others["python"][0], self._others["legacy"]
        return {"of": item, "own": [int(self.rng.integers(1 << 30)), python.getrandbits(30), legacy.randint(1 << 30)]}


def drawn_parts(item: Any) -> Iterator[Any]:
    """Zero to three parts, with draws between them: some parts are dropped."""
    for part in range(random.randrange(4)):
        draws = drawn(part)
        yield stagepipe.SKIP if random.random() < 0.1 else {"item": item, **draws}


def context_drawn(item: Any) -> dict[str, Any]:
    """The item with a draw from its own generator: the only one that a stage with `concurrency` may use."""
    return {"of": item, "draw": int(stagepipe.context().rng.integers(1 << 30))}


def context_parts(item: Any) -> Iterator[Any]:
    """Zero to three parts, with draws from the item's own generator between them: some parts are dropped."""
    rng = stagepipe.context().rng
    for part in range(int(rng.integers(4))):
        yield stagepipe.SKIP if rng.random() < 0.1 else {"item": item, **context_drawn(part)}


def torch_drawn(item: Any) -> dict[str, Any]:
    """The item with a draw of torch, whose import takes seconds."""
    import torch

    return {"of": item, "draw": int(torch.randint(1 << 30, ()))}


class Augmented:
    """Adds an image, changed by albumentations transforms that it holds in a list. Their import takes a second."""

    def __init__(self) -> None:
        import albumentations

        self._transforms = [albumentations.Compose([albumentations.GaussNoise(p=0.8)])]

    def __call__(self, item: Any) -> dict[str, Any]:
        image = np.full((4, 4, 3), 100, np.uint8)
        return {"of": item, "image": self._transforms[0](image=image)["image"]}


def dropped(item: Any, salt: int) -> Any:
    return stagepipe.SKIP if _make_random(item, salt).random() < 0.3 else item


def parts(item: Any, salt: int) -> Iterator[Any]:
    """Zero to three parts, some of them dropped."""
    rnd = _make_random(item, salt)
    for part in range(rnd.randint(0, 3)):
        yield stagepipe.SKIP if rnd.random() < 0.1 else (item, part)


def slow(item: Any) -> Any:
    time.sleep(random.Random(time.perf_counter_ns()).random() * 0.005)
    return item


async def same_task(item: Any) -> Any:
    return item


async def slow_task(item: Any) -> Any:
    await asyncio.sleep(random.Random(time.perf_counter_ns()).random() * 0.005)
    return item


async def drawn_task(item: Any) -> dict[str, Any]:
    await asyncio.sleep(0)
    return context_drawn(item)


class Keeping:
    """Keeps its last `count` inputs."""

    def __init__(self, count: int) -> None:
        self._items: deque[Any] = deque(maxlen=count)

    def __call__(self, item: Any) -> Any:
        self._items.append(item)
        return item


def listed(items: list[Any], salt: int) -> list[Any]:
    """For a stage with `batch`."""
    return [dropped(item, salt) for item in items]


def chosen(item: Any, salt: int) -> bool:
    """For a `when`: about half of the items."""
    return _make_random(item, salt).random() < 0.5


class DrawnChoice:
    """For a `when`: a choice by draws from all kinds of generators."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng()

    def __call__(self, item: Any) -> bool:
        own = self._rng.random() + stagepipe.context().rng.random()
        return own + random.random() + float(np.random.random()) < 2  # noqa: NPY002 - the global generator is meant


def in_place(item: Any) -> Any:
    """Changes its input, for a stage with `mutable`, which gets a private copy. Inline it makes the copy itself."""
    has_private_input = FOLDER in os.environ

    def change(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "iu":
            leaf = leaf if has_private_input else leaf.copy()
            leaf += 1
        return leaf

    return _map_leaves(item, change)


def flaky_draws(item: Any, salt: int) -> Any:
    """Draws before it raises: the retry must draw the same."""
    draws = drawn(item)
    flaky(item, salt)
    return draws


def flaky(item: Any, salt: int) -> Any:
    """Raises the first time that any worker sees some items, so that a retry succeeds."""
    return _do_once(item, salt, 0.15, _raise)


def _raise() -> None:
    raise ValueError("the first attempt fails")


def _do_once(item: Any, salt: int, share: float, act: Callable[[], Any]) -> Any:
    """Return the item. `act` is called the first time that any worker sees some items, a `share` of all."""
    folder = os.environ.get(FOLDER)
    if folder is not None and _make_random(item, salt).random() < share:
        context = stagepipe.context()
        record = Path(folder) / f"{context.stage}.{context.epoch}.{'.'.join(map(str, context.item))}"
        if not record.exists():
            record.touch()
            act()
    return item


def hanging(item: Any, salt: int) -> Any:
    """Hangs the first time that any worker sees some items, for a stage with a `timeout`."""
    return _do_once(item, salt, 0.01, lambda: time.sleep(1000))


def failing(item: Any, salt: int) -> Any:
    """Always raises for some items, which `on_error: skip` drops. Inline it drops the same items."""
    if _make_random(item, salt).random() >= 0.15:
        return item
    if FOLDER in os.environ:
        raise ValueError("every attempt fails")
    return stagepipe.SKIP
