"""E1: the MNIST table goes from a sender to a responder and back.

The sender pickles the table (and encodes the pickle in base64) and sends it. The responder receives and restores it,
pickles it (and encodes it) and sends it back. The sender receives and decodes it. Each part is timed separately.

table        the payload, and its check
channels     the mechanisms that carry bytes
protocol     the two sides of the round trip
masters      contestants whose responder is a separate program
others       the queue and MPI
mappings     mappings that are written again, and MPI's buffers
pipelines    stagepipe
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.published.e1.table import check, origin, payload, spoil
from benchmarks.published.model import Contestant, Experiment

_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - this contestant measures the RAM disk
_SENDER, _PIPELINE = "benchmarks.published.e1.masters:Sender", "benchmarks.published.e1.pipelines:Stagepipe"
_MAPPING = "benchmarks.published.e1.mappings:Mapping"
_MPI_LAUNCH = "benchmarks.published.e1.others:launch"
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


_OTHERS = (
    Contestant(
        "MPI",
        "benchmarks.published.e1.others:Mpi",
        {"coding": "pickle"},
        packages=("mpi4py",),
        programs=("mpiexec",),
        launch=_MPI_LAUNCH,
        work="pickle",
    ),
    Contestant(
        "MPI, buffers",
        "benchmarks.published.e1.mappings:MpiBuffers",
        packages=("mpi4py",),
        programs=("mpiexec",),
        launch=_MPI_LAUNCH,
        is_addition=True,
        work="no pickle, copied by MPI each way",
    ),
    Contestant("queue", "benchmarks.published.e1.others:Queue", work="pickle"),
)
_STAGEPIPE = (
    Contestant("stagepipe", _PIPELINE, {"responder": "give_back"}, work=_ONE_COPY),
    Contestant(
        "stagepipe, responder copies",
        _PIPELINE,
        {"responder": "copy_back"},
        is_addition=True,
        work="no pickle, three copies",
    ),
    Contestant(
        "stagepipe, responder copies in place",
        _PIPELINE,
        {"responder": "copy_in_place"},
        is_addition=True,
        work="no pickle, two copies",
    ),
)

EXPERIMENT = Experiment(
    name="E1",
    contestants=(*_STAGEPIPE, *_mappings(), *_channels(), *_OTHERS),
    payloads={"small": (payload(100),), "default": (payload(70_000),), "full": (payload(70_000),)},
    check=check,
    spoil=spoil,
    repetitions=5,
    source=origin,
)
