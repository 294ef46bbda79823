"""Finds the runs of this user and attaches to them. In the process of `stagepipe top`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from stagepipe.core import UsageError
from stagepipe.runtime.attach.credentials import read_peer_credentials
from stagepipe.runtime.attach.description import RunDescription
from stagepipe.runtime.attach.descriptors import receive_with_fds
from stagepipe.runtime.attach.folder import (
    list_socket_folders,
    make_address,
    make_client_socket,
    open_private_folder,
    remove_if_dead,
)
from stagepipe.timing import LAYOUT_VERSION, Board, read_layout_version

_ANSWER_TIMEOUT_S: Final = 2.0
"""A run answers within milliseconds, on a loaded machine within some hundred; one that is stopped never does."""


class AttachError(UsageError):
    """A run listens, but cannot be attached to."""


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
    """The runs that were attached to, and why others could not be."""

    runs: list[AttachedRun] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def find_runs() -> FoundRuns:
    """Attach to all runs of this user on this machine. Removes the sockets of runs that were killed.

    >>> [(run.run_id, run.description.name) for run in find_runs().runs]  # doctest: +SKIP
    [('4711-1', 'thumbnails')]
    """
    found = FoundRuns()
    for folder in list_socket_folders():
        try:
            with open_private_folder(folder) as folder_fd:
                _attach_to_all(folder_fd, found)
            with contextlib.suppress(OSError):  # unless it is empty: all that was in it belonged to killed runs
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
            f"process {pid} runs a stagepipe whose board has layout version {version}, and this one reads version "
            f"{LAYOUT_VERSION}; use the `stagepipe` that is installed beside that run"
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
