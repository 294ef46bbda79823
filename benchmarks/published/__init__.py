"""The measurements of five write-ups, repeated. `__main__` runs them, make_page writes docs/benchmarks.md.

This module has the code that every process uses: contestants, payloads, experiments, the results of a turn, missing
programs; a contestant's other process, and the connection that carries commands to it; and stagepipe's side, a pipeline
whose source answers each request with one item. The contestants of an experiment are in its module, e1 to e5; E3 is
benchmarks/crossover. A turn runs in `turn`; experiments and results run in the process of the benchmark.

The connection carries commands before and after the timing, never timed data. When it closes, because the turn ended or
its process died, the other process exits.

A user who wants items on request would write the same pipeline: the source is a generator that reads the requests from
a named pipe and yields an item for each; the caller iterates over the pipeline. It uses only the public API.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import psutil

import stagepipe
from benchmarks.common.turn import end_process
from stagepipe.core import install_command
from stagepipe.report.model import HopReport

TOTAL = "total"
"""The part that replaces the time of `transfer`, for a contestant that has to fetch its parts afterwards."""


@dataclass(frozen=True)
class Payload:
    """The data to send: both sides get `values`; `nbytes` is its size as plain memory."""

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
    """The handling of the data, if contestants differ in it: `no pickle, one copy, data not read`."""

    @property
    def is_stagepipe(self) -> bool:
        """Return whether this row belongs to stagepipe."""
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
    """Maximum number of transfers of a payload in a turn. At least one is made, whatever its time."""
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
    """The reason why it could not run."""
    told: dict[str, Any] = field(default_factory=dict)
    """Figures from stagepipe's own report, and details that a contestant found about itself."""
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


CONTEXT = multiprocessing.get_context("spawn")
_DEADLINE_S = 600.0
"""Longer than any published transfer."""


class Child:
    """Runs `target(connection, *arguments)` in a process. `hello` is the first message from it."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self.connection, other = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_run, args=(other, target, arguments), daemon=True)
        self._process.start()
        other.close()
        self.hello = self.answer()

    def ask(self, *command: Any) -> Any:
        self.connection.send(command)
        return self.answer()

    def answer(self) -> Any:
        """Return the next message. Raise RuntimeError with the child's traceback if it failed."""
        if not self.connection.poll(_DEADLINE_S):
            message = f"no reply from the contestant's other process within {_DEADLINE_S:.0f} s"
            raise TimeoutError(message)
        reply = self.connection.recv()
        if not isinstance(reply, _Failure):
            return reply
        raise RuntimeError(reply.trace)

    def close(self) -> None:
        """Close the connection, which ends the process; kill it if it does not exit in time."""
        self.connection.close()
        end_process(self._process)


class _Failure:
    """The traceback of the other process."""

    def __init__(self, trace: str) -> None:
        self.trace = trace


def _run(connection: Connection, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    try:
        target(connection, *arguments)
    except EOFError:  # the turn is over
        pass
    except Exception:  # noqa: BLE001 - the turn reports any error
        connection.send(_Failure(traceback.format_exc()))


def serve_commands(connection: Connection, commands: Mapping[str, Callable[..., Any]]) -> None:
    """Run the commands one after another. Raise EOFError when the connection closes."""
    while True:
        name, *arguments = connection.recv()
        connection.send(commands[name](*arguments))


def serve_commands_in_thread(connection: Connection, commands: Mapping[str, Callable[..., Any]]) -> None:
    """Run the commands in a thread that ends the process when the connection closes, for servers with a loop."""

    def run() -> None:
        try:
            serve_commands(connection, commands)
        except EOFError:
            pass
        except Exception:  # noqa: BLE001 - the turn reports any error
            connection.send(_Failure(traceback.format_exc()))
        finally:
            os._exit(0)

    threading.Thread(target=run, daemon=True).start()


# ---------------------------------------------------------------------------------------------- stagepipe


_REQUEST_BYTES = 8


class Answering:
    """A source that yields an answer to each request, until the other end of the named pipe closes. In its worker."""

    def __init__(self, requests_from: str) -> None:
        self._requests = Path(requests_from)

    def __iter__(self) -> Iterator[Any]:
        with self._requests.open("rb", buffering=0) as fifo:
            while request := fifo.read(_REQUEST_BYTES):
                yield self.answer(int.from_bytes(request, "little"))

    @abstractmethod
    def answer(self, number: int) -> Any:
        """Return the item of a request."""


class RequestPeer:
    """The contestant of an experiment: a pipeline for each payload, whose report it keeps in `report_figures`.

    `source` is the dotted path of its source. It gets the values of the payload, `arguments`, and as `requests_from`
    the path of the named pipe.
    """

    def __init__(self, source: str, stages: list[dict[str, Any]] | None = None, **arguments: Any) -> None:
        self._source, self._stages, self._arguments = source, stages or [], arguments
        self._pipeline: stagepipe.Pipeline | None = None
        self._payload = ""
        self.report_figures: dict[str, Any] = {}

    def prepare(self, payload: Payload) -> None:
        self.close()
        fifo = Path(tempfile.mkdtemp()) / "requests"
        os.mkfifo(fifo)
        values = {**payload.values, **self._arguments, "requests_from": str(fifo)}
        source = {"uses": self._source, "with": values}
        self._pipeline = stagepipe.Pipeline({"name": "asked", "source": source, "stages": self._stages})
        self._pipeline.start()
        self._payload, self._items = payload.name, iter(self._pipeline)
        self._fifo = os.open(fifo, os.O_RDWR)  # does not wait for the source to open its end; see fifo(7)

    def transfer(self, number: int) -> Received:
        os.write(self._fifo, number.to_bytes(_REQUEST_BYTES, "little"))
        return Received(next(self._items))

    def close(self) -> None:
        """End the source's input, then the workers."""
        if self._pipeline is not None:
            os.close(self._fifo)
            self._pipeline.close()
            self._record(self._payload, list(map(HopParts, self._pipeline.report().hops)))
            self._pipeline = None

    def _record(self, payload: str, hops: list[HopParts]) -> None:
        """Keep the figures of the hops for the page."""


class HopParts:
    """Medians of the phases of a hop, from the report. The copy into shared memory is part of sending."""

    def __init__(self, hop: HopReport) -> None:
        """Round them to nanoseconds."""
        self.encode_ns = round(hop.phases.encode_ns.p50)
        self.send_ns = round(hop.phases.copy_ns.p50 + hop.phases.send_ns.p50)
        self.receive_ns = round(hop.phases.receive_ns.p50)
        self.decode_ns = round(hop.phases.decode_ns.p50)
