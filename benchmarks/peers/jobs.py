"""The jobs: the data, the steps of an item, and its batch. Every framework runs the same functions. Only file I/O.

A step is a function of one item, or a class with callable instances: it is made once in each process that needs it.
The steps draw no random numbers, so that each framework must deliver the same samples.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Item = dict[str, Any]
Step = Callable[[Item], Item]
_IMAGES = Path(__file__).parents[2] / "data" / "images"
_SEED = 17


def stack(items: Iterable[Item]) -> Item:
    """Stack the arrays and tensors of each field to a batch."""
    items = list(items)
    return {key: _stack([item[key] for item in items]) for key in items[0]}


def _stack(values: list[Any]) -> Any:
    if hasattr(values[0], "numpy"):
        import torch

        return torch.stack(values)
    return np.stack(values) if isinstance(values[0], np.ndarray) else np.array(values)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job of `count` samples. `read` makes the item of an index; `steps` follow; `collate` makes a batch of items."""

    name: str
    count: int
    read: Callable[[int], Item]
    steps: tuple[Callable[..., Any], ...] = ()
    batch: int = 0
    """Samples in a batch; 0: the items are delivered one by one."""
    collate: Callable[[Sequence[Item]], Item] = stack
    has_own_collate: bool = False
    """Whether `collate` does more than stack."""
    prepare: Callable[[], Any] = lambda: None
    """Loads the data in memory. A framework that forks calls it first, so that its workers share the pages."""
    reads_files: bool = False
    pool_chunk: int = 1
    """Items or batches that a pool sends to a worker at once: more than one if they are small and cheap."""
    window: int = 1
    """Factor for the measuring time: larger if few items per second arrive in bursts."""
    is_dataset: bool = False
    """Whether all steps are cheap, so that a dataset's `__getitem__` runs them, as in DataLoader."""

    @property
    def ranges(self) -> list[range]:
        """Return the indices of each batch, for a framework whose workers make the batches."""
        begins = range(0, self.count, self.batch)
        return [range(begin, min(begin + self.batch, self.count)) for begin in begins]


def read_file(index: int) -> Item:
    """Read the bytes of a JPEG file."""
    paths = list_images()
    return {"index": index, "data": paths[index % len(paths)].read_bytes()}


@cache
def list_images() -> list[Path]:
    """List the photographs that scripts/make_images.py made."""
    return sorted(_IMAGES.rglob("*.jpg"))


def decode(item: Item) -> Item:
    """Decode the bytes to `image`, uint8 of (height, width, 3)."""
    image = Image.open(io.BytesIO(item["data"])).convert("RGB")
    return {"index": item["index"], "image": np.asarray(image)}


def resize(item: Item) -> Item:
    """Resize the image to 224 by 224."""
    return {**item, "image": _resize(item["image"], 224)}


def _resize(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR))


def to_float32(item: Item) -> Item:
    """Convert uint8 (224, 224, 3) to float32 (3, 224, 224) from 0 to 1."""
    image = _make_empty((3, *item["image"].shape[:2]))
    np.multiply(item["image"].transpose(2, 0, 1), np.float32(1 / 255), out=image)
    return {**item, "image": image}


def shrink(item: Item) -> Item:
    """Resize the image to 96 by 96."""
    return {**item, "image": _resize(item["image"], 96)}


class Save:
    """Writes each image to its own file, in a temporary folder that the turn removes."""

    def __init__(self) -> None:
        """Find the folder."""
        self._folder = Path(tempfile.gettempdir()) / "thumbnails"
        self._folder.mkdir(exist_ok=True)

    def __call__(self, item: Item) -> Item:
        """Write the file, and return only the number."""
        np.savez(self._folder / f"{item['index']}.npz", image=item["image"])
        return {"index": item["index"], "pixels": item["image"][::32, ::32].copy()}


_TINY_COUNT = 50_000


@cache
def _make_tiny() -> Any:
    import torch

    some = np.random.default_rng(_SEED).random((500, 3, 32, 32), np.float32)
    return torch.from_numpy(some).repeat(_TINY_COUNT // 500, 1, 1, 1)


def read_tiny(index: int) -> Item:
    """Return a tensor of 3 x 32 x 32 float32, from memory."""
    return {"index": index, "image": _make_tiny()[index % _TINY_COUNT]}


_MAX_TOKENS = 512


@cache
def _make_text() -> NDArray[np.int64]:
    return np.random.default_rng(_SEED).integers(1, 50_000, 1 << 20)


def read_tokens(index: int) -> Item:
    """Return 16 to 512 tokens, int64."""
    begin = index * 7919 % (len(_make_text()) - _MAX_TOKENS)
    return {"index": index, "tokens": _make_text()[begin : begin + 16 + index * 31 % (_MAX_TOKENS - 16)]}


def mask(item: Item) -> Item:
    """Replace each seventh token by 0."""
    tokens = item["tokens"].copy()
    tokens[::7] = 0
    return {**item, "tokens": tokens}


_CLIP = (16, 3, 224, 224)


@cache
def _make_clips() -> NDArray[np.uint8]:
    return np.random.default_rng(_SEED).integers(0, 256, (8, *_CLIP), np.uint8)


def read_clip(index: int) -> Item:
    """Return a clip of 16 frames, uint8 of (16, 3, 224, 224), with its number in the first pixel."""
    clip = _make_clips()[index % 8].copy()
    clip[0, 0, 0, 0] = index & 0xFF
    return {"index": index, "clip": clip}


def clip_to_float32(item: Item) -> Item:
    """Convert to float32: 9.6 MB."""
    return {**item, "clip": _fill(item["clip"], lambda out: np.copyto(out, item["clip"]))}


def normalise(item: Item) -> Item:
    """Scale to -1 to 1."""
    clip = _fill(item["clip"], lambda out: np.multiply(item["clip"], np.float32(2 / 255), out=out))
    clip -= 1
    return {**item, "clip": clip}


def flip(item: Item) -> Item:
    """Flip each frame."""
    return {**item, "clip": _fill(item["clip"], lambda out: np.copyto(out, item["clip"][..., ::-1]))}


def brighten(item: Item) -> Item:
    """Multiply all values."""
    return {**item, "clip": _fill(item["clip"], lambda out: np.multiply(item["clip"], np.float32(1.1), out=out))}


def _fill(like: NDArray[Any], fill: Callable[[NDArray[np.float32]], Any]) -> NDArray[np.float32]:
    out = _make_empty(like.shape)
    fill(out)
    return out


NUMPY_EMPTY = "STAGEPIPE_PEERS_NUMPY_EMPTY"
"""An environment variable that lets stagepipe run the functions without `stagepipe.empty`."""


def _make_empty(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Use `stagepipe.empty` if stagepipe is imported, unless NUMPY_EMPTY is set; otherwise `numpy.empty`."""
    stagepipe = None if os.environ.get(NUMPY_EMPTY) else sys.modules.get("stagepipe")
    array: NDArray[np.float32] = (stagepipe.empty if stagepipe else np.empty)(shape, np.float32)
    return array


_WIDTH = 10_000


class Model:
    """A layer of 10,000 x 10,000 float32: 400 MB. Each of its pages is written."""

    def __init__(self) -> None:
        """Fill the weights."""
        self._weights = np.full((_WIDTH, _WIDTH), 1 / _WIDTH, np.float32)

    def __call__(self, item: Item) -> Item:
        """Multiply the vector, and add 1."""
        return {"index": item["index"], "vector": self._weights @ item["vector"] + np.float32(1)}


class Detect(Model):
    """The first model."""


class Embed(Model):
    """The second model."""


class Rank(Model):
    """The third model."""


def read_vector(index: int) -> Item:
    """Return a vector of 10,000 float32, filled with the number."""
    return {"index": index, "vector": np.full(_WIDTH, index % 1000, np.float32)}


def pad(items: Sequence[Item]) -> Item:
    """Pad the tokens with 0 to the longest of the batch."""
    items = list(items)
    tokens = np.zeros((len(items), max(len(item["tokens"]) for item in items)), np.int64)
    for row, item in zip(tokens, items, strict=True):
        row[: len(item["tokens"])] = item["tokens"]
    return {"index": np.array([item["index"] for item in items]), "tokens": tokens}


JOBS = {
    job.name: job
    for job in (
        Job(
            name="images",
            count=12_000,
            read=read_file,
            reads_files=True,
            steps=(decode, resize, to_float32),
            batch=64,
        ),
        Job(
            name="thumbnails",
            count=12_000,
            read=read_file,
            reads_files=True,
            steps=(decode, shrink, Save),
            pool_chunk=16,
        ),
        Job(name="tensors", count=1_500_000, read=read_tiny, prepare=_make_tiny, batch=256, is_dataset=True),
        Job(
            name="tokens",
            count=1_000_000,
            read=read_tokens,
            prepare=_make_text,
            steps=(mask,),
            batch=64,
            collate=pad,
            has_own_collate=True,
            pool_chunk=8,
            is_dataset=True,
        ),
        Job(
            name="clips",
            count=2_000,
            read=read_clip,
            prepare=_make_clips,
            steps=(clip_to_float32, normalise, flip, brighten),
        ),
        Job(name="models", count=2_000, read=read_vector, steps=(Detect, Embed, Rank), window=8),
    )
}


_steps_lock = threading.Lock()


def make_steps(name: str) -> tuple[Step, ...]:
    """Return a job's steps, made once per process, for any number of threads."""
    with _steps_lock:
        return _make_steps_once(name)


@cache
def _make_steps_once(name: str) -> tuple[Step, ...]:
    return tuple(step() if isinstance(step, type) else step for step in JOBS[name].steps)


class Process:
    """All of a job's work on one sample, for a framework whose workers do everything. Small when pickled."""

    def __init__(self, name: str) -> None:
        """Create no step yet: the first call, in the worker, creates steps that are classes."""
        self._name = name
        self._steps: tuple[Step, ...] | None = None

    def __call__(self, index: int) -> Item:
        """Read the item of an index, and run all steps."""
        item = JOBS[self._name].read(index)
        if self._steps is None:
            self._steps = make_steps(self._name)
        for step in self._steps:
            item = step(item)
        return item


class MakeBatch:
    """All work on a batch of indices, for a framework whose workers make the batches. Small when pickled."""

    def __init__(self, name: str) -> None:
        """`name` is the name of the job."""
        self._process = Process(name)
        self._name = name

    def __call__(self, indices: Sequence[int]) -> Item:
        """Return the batch."""
        return JOBS[self._name].collate([self._process(index) for index in indices])


class Samples:
    """All of a job's samples by index: a map-style dataset."""

    def __init__(self, job: Job) -> None:
        """Read nothing yet."""
        self._process, self._count = Process(job.name), job.count

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._count

    def __getitem__(self, index: int) -> Item:
        """Read a sample and run all steps."""
        return self._process(index)
