"""What random pipelines are made of: stages and sources for items of any shape. Imported by worker processes."""

from __future__ import annotations

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
"""Set in workers: where they note which errors have been raised. Where it is not set, nothing is ever raised."""


# ---------------------------------------------------------------------------------------------- what an item is


def word(value: Any) -> str:
    """What an item is, in one short word: equal items have equal ones."""
    return f"{zlib.crc32(_spelled(value).encode()):08x}"


def _spelled(value: Any) -> str:
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value)
        return f"{data.dtype}{data.shape}{zlib.crc32(data.reshape(-1).view(np.uint8)) if data.size else 0}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_spelled(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}(" + ",".join(map(_spelled, value)) + ")"
    return repr(value.item() if isinstance(value, np.generic) else value)


def _draw(item: Any, salt: int) -> random.Random:
    return random.Random(f"{salt} {word(item)}")


def _mapped(item: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(item, Mapping):
        return {key: _mapped(inner, change) for key, inner in item.items()}
    if isinstance(item, list | tuple):
        return type(item)(_mapped(inner, change) for inner in item)
    return change(item)


# ---------------------------------------------------------------------------------------------- sources


class Items:
    """An indexed source whose order depends on the epoch."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def begin(self, epoch: int, seed: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> int:
        return 1000 * self.epoch + at


def stream(count: int) -> Iterator[int]:
    yield from range(count)


# ---------------------------------------------------------------------------------------------- payloads


def number(item: int, salt: int) -> int:
    return item * 3 + salt


def text(item: int, salt: int) -> dict[str, Any]:
    return {"id": item, "text": f"{salt} {item} " * (_draw(item, salt).choice([0, 1, 9, 900]))}


def arrays(item: int, salt: int, most: int = 2_000_000) -> dict[str, Any]:
    """Sizes of all kinds, which differ from item to item."""
    draw = _draw(item, salt)
    sizes = [int(most ** draw.random()) - 1 for _ in range(draw.randint(1, 4))]
    return {"id": item, "arrays": [np.full(size, (item + n) % 251, np.uint8) for n, size in enumerate(sizes)]}


def image(item: int, salt: int) -> dict[str, Any]:
    """The same size for all items of a pipeline: these can be batched."""
    side = _draw(0, salt).choice([1, 8, 60, 200])
    return {"id": item, "x": np.full((side, side, 3), (item + salt) % 251, np.uint8)}


def loaned(item: int, salt: int) -> dict[str, Any]:
    """Made in the outgoing shared memory."""
    out = stagepipe.empty((_draw(0, salt).choice([10, 5000, 100_000]),), np.int32)
    out[:] = item + salt
    return {"id": item, "x": out}


# ---------------------------------------------------------------------------------------------- stages


def same(item: Any) -> Any:
    return item


def changed(item: Any, salt: int) -> Any:
    """New arrays."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return leaf ^ salt if leaf.dtype.kind in "iu" else leaf + salt
        return leaf if isinstance(leaf, str | None) else leaf + salt

    return _mapped(item, change)


def borrowed(item: Any, salt: int) -> Any:
    """Arrays into loaned memory, of which views are returned."""

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray) or leaf.dtype.hasobject:
            return leaf
        out = stagepipe.empty(leaf.shape, leaf.dtype)
        out[...] = leaf
        return out[::2] if salt % 2 and out.ndim and out.shape[0] > 1 else out

    return _mapped(item, change)


def nested(item: Any) -> Any:
    """Views of views of what came in, beside it."""
    leaves: list[np.ndarray] = []
    _mapped(item, lambda leaf: leaves.append(leaf) if isinstance(leaf, np.ndarray) else None)
    views = [leaf.reshape(-1)[1:][: max(leaf.size // 2, 1)] for leaf in leaves]
    return {"of": item, "views": views}


def drawn(item: Any) -> dict[str, Any]:
    """Randomness of all kinds: it must be the same whoever does it, and whenever."""
    own = int(stagepipe.context().rng.integers(0, 1 << 30))
    return {"of": item, "draws": [own, random.randrange(1 << 30), int(np.random.randint(1 << 30))]}  # noqa: NPY002


def dropped(item: Any, salt: int) -> Any:
    return stagepipe.SKIP if _draw(item, salt).random() < 0.3 else item


def parts(item: Any, salt: int) -> Iterator[Any]:
    """None to three parts, some of them dropped."""
    draw = _draw(item, salt)
    for part in range(draw.randint(0, 3)):
        yield stagepipe.SKIP if draw.random() < 0.1 else (item, part)


def slow(item: Any) -> Any:
    time.sleep(random.Random(time.perf_counter_ns()).random() * 0.005)
    return item


class Keeping:
    """Holds on to the last of its inputs."""

    def __init__(self, count: int) -> None:
        self._kept: deque[Any] = deque(maxlen=count)

    def __call__(self, item: Any) -> Any:
        self._kept.append(item)
        return item


def listed(items: list[Any], salt: int) -> list[Any]:
    """For a stage with `batch`."""
    return [dropped(item, salt) for item in items]


def in_place(item: Any) -> Any:
    """For a stage with `mutable`, which makes the input its own; inline it is not."""
    own = FOLDER in os.environ

    def change(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "iu":
            leaf = leaf if own else leaf.copy()
            leaf += 1
        return leaf

    return _mapped(item, change)


def flaky(item: Any, salt: int) -> Any:
    """Raises the first time that it sees some items, whoever sees them: with `retries` nothing comes of it."""
    folder = os.environ.get(FOLDER)
    if folder is not None and _draw(item, salt).random() < 0.15:
        context = stagepipe.context()
        mark = Path(folder) / f"{context.stage}.{context.epoch}.{'.'.join(map(str, context.item))}"
        if not mark.exists():
            mark.touch()
            raise ValueError("not at the first time")
    return item


def failing(item: Any, salt: int) -> Any:
    """Raises for some items, always; with `on_error: skip` they are as if dropped, as they are where nothing raises."""
    if _draw(item, salt).random() >= 0.15:
        return item
    if FOLDER in os.environ:
        raise ValueError("never")
    return stagepipe.SKIP
