"""Contestants, payloads, experiments, the results of a turn, and what a machine lacks. Used in every process."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from stagepipe.core import install_command

TOTAL = "total"
"""The part that replaces the time of `transfer`, for a contestant that has to fetch its parts afterwards."""


@dataclass(frozen=True)
class Payload:
    """What is sent: both sides get `values`; `nbytes` is its size as plain memory."""

    name: str
    nbytes: int
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Received:
    """The data of a transfer, and its parts as the contestant's own clocks measured them."""

    data: Any
    parts_ns: dict[str, int] = field(default_factory=dict)


class Peer(Protocol):
    """A contestant after its set-up: its side in this process, and the other side in its own process."""

    def prepare(self, payload: Payload) -> None:
        """Tell the other side what to send. Not timed."""

    def transfer(self, number: int) -> Received:
        """Request transfer `number` and wait until it has arrived. Timed."""

    def close(self) -> None:
        """End the other side and every server."""


@dataclass(frozen=True)
class Contestant:
    """A mechanism: `target` ("module:Class", with `options`) creates its Peer in the process of its turn.

    It needs `packages` to be importable and `programs` to be in PATH. Payloads above `max_bytes` are skipped for the
    reason `limit`, and so are payloads that need more memory than this machine has: `memory_factor` times their size.
    `launch` ("module:function") makes the command of a turn that needs a launcher, such as mpiexec.
    """

    name: str
    target: str
    options: dict[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    max_bytes: int | None = None
    limit: str = ""
    memory_factor: float = 6.0
    launch: str = ""
    is_addition: bool = False
    """Added here; not part of the write-up."""
    work: str = ""
    """What happens to the data, where contestants differ in it: `no pickle, one copy, data not read`."""

    @property
    def is_stagepipe(self) -> bool:
        """Return whether this is one of stagepipe's rows."""
        return self.name.startswith("stagepipe")


@dataclass(frozen=True)
class Experiment:
    """The measurement of a write-up. `payloads` are by size (small, default, full), the smallest first.

    `check(data, payload, number)` raises AssertionError unless every byte is right; `spoil(data)` corrupts one.
    """

    name: str
    contestants: tuple[Contestant, ...]
    payloads: dict[str, tuple[Payload, ...]]
    check: Callable[[Any, Payload, int], None]
    spoil: Callable[[Any], Any]
    pinned: bool = True
    """The receiver has its own processor; the other side uses the rest."""
    repetitions: int = 30
    """The most transfers of a payload in a turn."""
    min_repetitions: int = 1
    """The fewest, whatever their time."""
    source: Callable[[], str] = str
    """Describes the contents of the payload, if they depend on the machine."""


@dataclass(frozen=True)
class Job:
    """The settings of one turn."""

    experiment: str
    contestant: str
    size: str
    budget_s: float
    pinned: bool = True
    corrupt: bool = False


@dataclass(frozen=True)
class Cell:
    """The results of a payload in a turn: a value for each repetition, or the reason why there is none."""

    payload: str
    ns: list[int] = field(default_factory=list)
    parts_ns: dict[str, int] = field(default_factory=dict)
    """Medians of the parts."""
    cpu_ns: int = 0
    """The mean over the transfers, for all processes of both sides together."""
    peak_bytes: int = 0
    """The sum of the peak resident memory of both sides; shared memory counts in both."""
    reason: str = ""


@dataclass(frozen=True)
class Turn:
    """A turn of a contestant. `number` counts the rounds."""

    experiment: str
    contestant: str
    number: int
    cells: list[Cell] = field(default_factory=list)
    setup_ns: int = 0
    reason: str = ""
    """Why it could not run."""
    told: dict[str, Any] = field(default_factory=dict)
    """Figures from stagepipe's own report, and what a contestant found itself running with."""
    load_average: float = 0.0
    took_s: float = 0.0
    """The lifetime of its process."""


_DEBIAN = {"rabbitmq-server": "rabbitmq-server", "mpiexec": "openmpi-bin", "redis-server": "redis-server"}
_NOT_IN_PATH = {"rabbitmq-server": "/usr/lib/rabbitmq/bin"}
"""The program in /usr/sbin is a wrapper that switches to another user."""
_PACKAGES = {"grpc": "grpcio", "dora": "dora-rs", "dora_cli": "dora-rs-cli", "pyarrow.flight": "pyarrow"}
_MEMORY_SHARE = 0.9
"""The share of the available memory that a payload may take."""


def unmet_need(contestant: Contestant) -> str:
    """Return why the contestant cannot run here, or ""."""
    for package in contestant.packages:
        if not _importable(package):
            name = _PACKAGES.get(package, package)
            return f"needs the package {name}; run: {install_command('bench', name)}"
    for name in contestant.programs:
        if program(name) is None:
            return f"needs {name}; run: python scripts/install_servers.py, or: apt install {_DEBIAN.get(name, name)}"
    return ""


def too_large(contestant: Contestant, payload: Payload) -> str:
    """Return why the contestant cannot carry this payload here, or ""."""
    if contestant.max_bytes is not None and payload.nbytes > contestant.max_bytes:
        return contestant.limit
    needed, available = payload.nbytes * contestant.memory_factor, psutil.virtual_memory().available * _MEMORY_SHARE
    if needed > available:
        return f"takes about {needed / 1e9:.0f} GB of memory; {available / 1e9:.0f} GB are available"
    return ""


def program(name: str) -> str | None:
    """Return the path of a program, from this Python's environment or from the system."""
    folders = (_NOT_IN_PATH.get(name), str(Path(sys.executable).parent))
    return next(
        (path for folder in folders if folder and (path := shutil.which(name, path=folder))), shutil.which(name)
    )


def _importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def turn_prefix() -> str:
    """Return the prefix of the names: the name of the turn's temporary folder. Call it in the process of the turn."""
    return Path(tempfile.gettempdir()).name
