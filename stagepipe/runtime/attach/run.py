"""A run to which other processes attach, at both ends.

The run's end is one socket. The supervisor's thread, in the caller's process, serves it: it sends the description of
the run (RunDescription, without arguments of stages) and descriptors. The other end, in the process of `stagepipe top`,
finds the runs of this user and attaches to them.

Only the socket of a run has a name. The run sends without waiting, and reads nothing, so an attaching process cannot
block it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import msgspec

from stagepipe.core import UsageError, fork_lock, register_owner
from stagepipe.plan import Plan, ProcessPlan, ProcessRole
from stagepipe.runtime.attach.sockets import (
    SocketFolderError,
    get_socket_folder,
    list_socket_folders,
    make_address,
    make_client_socket,
    open_private_folder,
    read_peer_credentials,
    receive_with_fds,
    remove_dead_sockets,
    remove_if_dead,
    send_with_fds,
)
from stagepipe.timing import LAYOUT_VERSION, Board, BoardLayout, read_layout_version


class ProcessDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A process: the names of its stages, the user's rows to which they belong, and its workers when the run begins.

    The number of workers adapts between `min_workers` and `max_workers`; 0 means that it is fixed. The process makes
    one output from `items_per_output` inputs; 0 means as many as fit into a part of a sink.
    """

    stages: tuple[str, ...]
    rows: tuple[str, ...]
    workers: int
    kind: Literal["source", "stage", "sink"] = "stage"
    items_per_output: int = 1
    min_workers: int = 0
    max_workers: int = 0

    @property
    def slot_count(self) -> int:
        """The most workers at a time. The board has a region for each."""
        return max(self.workers, self.max_workers)


class RunDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A run: the processes in the order of the chain, the consumer of its items, and the layout of the board.

    If you change its fields, raise `stagepipe.timing.LAYOUT_VERSION`.
    """

    name: str
    processes: tuple[ProcessDescription, ...]
    memory_bytes: int
    layout: BoardLayout
    consumer: str = "consumer"
    is_consumer_sink: bool = False

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The rows of each process, the consumer's last. A process belongs to the first of its rows."""
        return [*(process.rows for process in self.processes), (self.consumer,)]

    @property
    def hop_ends(self) -> list[tuple[str, str]]:
        """The rows at both ends of each hop. They are equal for a hop inside a source or a sink."""
        return [(before[-1], after[0]) for before, after in pairwise(self.rows)]


def describe_run(plan: Plan, layout: BoardLayout) -> RunDescription:
    """Return the description of a run of `plan`."""
    next_processes = [*plan.processes[1:], plan.processes[-1]]
    processes = tuple(map(_describe_process, plan.processes, next_processes))
    is_commit = bool(plan.sinks) and all(sink.writes_parts for sink in plan.sinks) and processes[-1].kind == "sink"
    return RunDescription(
        name=plan.name,
        processes=processes,
        consumer=processes[-1].rows[-1] if is_commit else plan.consumer_name,
        is_consumer_sink=is_commit or plan.is_consumer_sink,
        memory_bytes=plan.memory_bytes,
        layout=layout,
    )


def _describe_process(process: ProcessPlan, following: ProcessPlan) -> ProcessDescription:
    is_sink = bool(process.first_stage.sink_path)
    rows = tuple(stage.part_of or stage.name for stage in process.stages)
    if process.makes_parts:  # it serves several sinks and counts as part of the first
        rows = (following.first_stage.part_of or following.name,) * len(rows)
    bounds = process.worker_bounds
    return ProcessDescription(
        stages=tuple(stage.name for stage in process.stages),
        rows=rows,
        kind="source" if process.role is ProcessRole.SOURCE else "sink" if is_sink else "stage",
        workers=process.workers,
        min_workers=0 if bounds is None else bounds.minimum,
        max_workers=0 if bounds is None else bounds.maximum,
        items_per_output=process.items_per_output,
    )


_MAX_ATTEMPTS: Final = 5
"""Another run removes the empty folder at its end, perhaps between our `mkdir` and our `bind`."""
_MAX_ACCEPTS_PER_CALL: Final = 16
"""A flood of connections must not starve the supervisor's other work."""
_run_numbers: Final = itertools.count(1)
_log = logging.getLogger("stagepipe")


def open_listener(description: RunDescription, board_fd: int) -> AttachListener | None:
    """Listen. Returns None and logs a line if that is not possible: the run continues without attaching."""
    try:
        return AttachListener(get_socket_folder(), description, board_fd)
    except SocketFolderError as error:
        _log.warning("`stagepipe top` cannot attach to this run: %s; `attach: false` turns it off", error)
    except OSError as error:
        _log.info("`stagepipe top` cannot attach to this run: %s", error)
    return None


class AttachListener:
    """A listening socket in a folder of this user. It sends the board to each connecting process of this user."""

    def __init__(self, folder: Path, description: RunDescription, board_fd: int) -> None:
        """Listen, and remove the sockets that killed runs have left. Raises OSError or SocketFolderError."""
        self._folder = folder
        self._message = msgspec.msgpack.encode(description)
        self._board_fd = board_fd
        self._name = f"{os.getpid()}-{next(_run_numbers)}"
        self._listen()

    def _listen(self) -> None:
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            try:
                with contextlib.suppress(FileExistsError):
                    self._folder.mkdir(mode=0o700)
                with open_private_folder(self._folder) as folder_fd:
                    remove_dead_sockets(folder_fd)
                    self._bind(folder_fd)
            except FileNotFoundError:
                if attempt == _MAX_ATTEMPTS:
                    raise
            else:
                return

    def _bind(self, folder_fd: int) -> None:
        """Bind under another name, and rename the socket once it listens: one that refuses belongs to a dead run."""
        hidden_name = f".{self._name}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(hidden_name, dir_fd=folder_fd)
        with fork_lock:
            self._socket = socket.socket(
                socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            )
            register_owner(self)
        try:
            self._socket.bind(make_address(folder_fd, hidden_name))
            self._socket.listen()
            os.rename(hidden_name, self._name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        except BaseException:
            self._socket.close()
            raise

    @property
    def fd(self) -> int:
        """The descriptor that is readable when a process connects; -1 once closed."""
        return self._socket.fileno()

    def serve(self) -> bool:
        """Answer all connections. Returns False if that is not possible; the listener is then closed."""
        for _ in range(_MAX_ACCEPTS_PER_CALL):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                break
            except OSError as error:  # no descriptors are left; the connection would stay, and wake the thread again
                _log.info("`stagepipe top` cannot attach to this run any more: %s", error)
                self.close()
                return False
            with connection:
                self._answer(connection)
        return True

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(0)
        if not read_peer_credentials(connection).is_same_user:
            return
        with contextlib.suppress(OSError):
            # Opened again, so that the other process can map it only for reading.
            board_fd = os.open(f"/proc/self/fd/{self._board_fd}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                send_with_fds(connection, self._message, [board_fd])
            finally:
                os.close(board_fd)

    def close(self) -> None:
        """Stop listening, and remove the socket, and the folder if it is then empty."""
        if self.fd < 0:
            return
        self._socket.close()
        with contextlib.suppress(OSError):
            (self._folder / self._name).unlink()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def abandon_in_child(self) -> None:
        """Close the descriptor: a forked child that kept it would seem to listen after the run's end."""
        self._socket.close()


_ANSWER_TIMEOUT_S: Final = 2.0
"""A run answers within milliseconds, or some hundred on a loaded machine; a stopped run never answers."""


class AttachError(UsageError):
    """A run listens, but attaching to it fails."""


@dataclass(frozen=True, kw_only=True)
class AttachedRun:
    """A run of another process. `board` is mapped for reading and stays readable after the run's end."""

    run_id: str
    """The process and the number of the run in it, as in `4711-1`."""
    pid: int
    description: RunDescription
    board: Board


@dataclass(frozen=True)
class FoundRuns:
    """The attached runs, and the reasons why others could not be attached."""

    runs: list[AttachedRun] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def find_runs() -> FoundRuns:
    """Attach to all runs of this user on this machine. Removes the sockets of killed runs.

    >>> [(run.run_id, run.description.name) for run in find_runs().runs]  # doctest: +SKIP
    [('4711-1', 'thumbnails')]
    """
    found = FoundRuns()
    for folder in list_socket_folders():
        try:
            with open_private_folder(folder) as folder_fd:
                _attach_to_all(folder_fd, found)
            with contextlib.suppress(OSError):  # only an empty folder: all its sockets belonged to killed runs
                folder.rmdir()
        except FileNotFoundError:
            continue
        except (OSError, UsageError) as error:
            found.problems.append(str(error))
    found.runs.sort(key=lambda run: (run.description.name, run.pid, run.run_id))
    return found


def _attach_to_all(folder_fd: int, found: FoundRuns) -> None:
    for name in os.listdir(folder_fd):
        if name.startswith("."):  # it is not listening yet
            continue
        try:
            found.runs.append(_attach(folder_fd, name))
        except ConnectionRefusedError:
            remove_if_dead(folder_fd, name)
        except FileNotFoundError:
            continue
        except (OSError, AttachError) as error:
            found.problems.append(f"run {name}: {error}")


def _attach(folder_fd: int, name: str) -> AttachedRun:
    with make_client_socket() as client:
        client.settimeout(_ANSWER_TIMEOUT_S)
        client.connect(make_address(folder_fd, name))
        peer = read_peer_credentials(client)
        if not peer.is_same_user:
            message = f"process {peer.pid} listens there as user {peer.uid}, not as you (user {os.geteuid()})"
            raise AttachError(message)
        try:
            answer = receive_with_fds(client)
        except TimeoutError:
            message = f"process {peer.pid} does not answer within {_ANSWER_TIMEOUT_S:.0f} s; it may be stopped"
            raise AttachError(message) from None
    if answer is None:
        raise FileNotFoundError(name)  # it has just ended
    data, fds = answer
    try:
        return _open_run(name, peer.pid, data, fds)
    finally:
        for fd in fds:
            os.close(fd)


def _open_run(name: str, pid: int, data: bytes, fds: Sequence[int]) -> AttachedRun:
    version = read_layout_version(fds[0]) if fds else 0
    if version != LAYOUT_VERSION:
        message = (
            f"process {pid} runs another stagepipe, whose board has layout version {version}, and this one reads "
            f"version {LAYOUT_VERSION}; use the `stagepipe` from the environment of that run"
        )
        raise AttachError(message)
    try:
        description = msgspec.msgpack.decode(data, type=RunDescription)
    except msgspec.MsgspecError:
        description = None
    if description is None or os.fstat(fds[0]).st_size < description.layout.word_count * 8:
        message = f"process {pid} sent no description of a run that this stagepipe can read"
        raise AttachError(message)
    return AttachedRun(
        run_id=name, pid=pid, description=description, board=Board(fds[0], description.layout, is_writable=False)
    )
