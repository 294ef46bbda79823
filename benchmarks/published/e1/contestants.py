"""The contestants of E1. Each channel has a row with base64, as in the write-up, and one without."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.published.e1.table import check, origin, payload, spoil
from benchmarks.published.model import Contestant, Experiment

_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - this contestant measures the RAM disk
_SENDER, _PIPELINE = "benchmarks.published.e1.masters:Sender", "benchmarks.published.e1.pipelines:Stagepipe"
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
        yield Contestant(f"{name}, base64", _SENDER, {**options, "coding": "base64"}, memory_factor=12.0)
        yield Contestant(name, _SENDER, {**options, "coding": "pickle"}, memory_factor=10.0, is_addition=True)


_OTHERS = (
    Contestant(
        "MPI",
        "benchmarks.published.e1.others:Mpi",
        {"coding": "pickle"},
        packages=("mpi4py",),
        programs=("mpiexec",),
        launch="benchmarks.published.e1.others:launch",
    ),
    Contestant("queue", "benchmarks.published.e1.others:Queue"),
)
_STAGEPIPE = (
    Contestant("stagepipe", _PIPELINE, {"responder": "give_back"}),
    Contestant("stagepipe, responder copies", _PIPELINE, {"responder": "copy_back"}, is_addition=True),
)

EXPERIMENT = Experiment(
    name="E1",
    contestants=(*_STAGEPIPE, *_channels(), *_OTHERS),
    payloads={"small": (payload(100),), "default": (payload(70_000),), "full": (payload(70_000),)},
    check=check,
    spoil=spoil,
    repetitions=5,
    source=origin,
)
