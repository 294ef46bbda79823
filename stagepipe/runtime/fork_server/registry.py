"""The fork servers of this process: which one may fork a worker, or why none can. In the caller's process.

A server belongs to the process that started it and lives as long. A process that was forked from it starts its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

import msgspec

from stagepipe.runtime.fork_server.attributes import FixedAttributes, read_caller_attributes, read_fixed_attributes
from stagepipe.runtime.fork_server.client import ForkedProcess, ForkServer, ForkServerDiedError
from stagepipe.runtime.fork_server.environment import find_variable_read_at_load, make_server_environment
from stagepipe.runtime.fork_server.messages import ForkRequest


class SpawnNeededError(Exception):
    """No fork server can start this worker; the message says why."""


@dataclass(frozen=True)
class Preload:
    """What a server imports beyond what every worker needs. `import_path` is where it finds the user's own modules."""

    modules: tuple[str, ...] = ()
    import_path: tuple[str, ...] = ()


class _ServerKey(msgspec.Struct, frozen=True):
    """What a server must have in common with the caller, to serve it."""

    attributes: FixedAttributes
    import_path: tuple[str, ...]
    modules: tuple[tuple[str, str, int], ...]  # name, file, mtime_ns


_servers: dict[_ServerKey, ForkServer] = {}
_lock = threading.Lock()


def start_fork_server(preload: Preload) -> ForkServer:
    """Return the server that has imported `preload`, started now if there is none. Does not wait for its imports.

    A server that was started before a change of the environment is replaced. Raises OSError if none can be started.
    """
    environment = make_server_environment()
    with _lock:
        modules = tuple(_describe_module(module, preload.import_path) for module in preload.modules)
        key = _ServerKey(read_fixed_attributes(sys.executable), preload.import_path, modules)
        server = _servers.get(key)
        if server is not None:
            if server.is_alive and find_variable_read_at_load(environment, server.environment, preload.modules) is None:
                return server
            server.retire()
        server = _servers[key] = ForkServer(preload.modules, preload.import_path, environment)
        return server


def fork_process(
    preload: Preload,
    environment: Mapping[str, str],
    fds: Mapping[str, int],
    inherited_fds: list[int],
    threads: int,
) -> ForkedProcess:
    """Fork a worker. `fds`: its spec, crash log, lifetime and output, by name.

    Raises SpawnNeededError where only a new interpreter can serve, and OSError where the system refuses a process.
    """
    try:
        return _fork_process(preload, environment, fds, inherited_fds, threads)
    except ForkServerDiedError:  # another one may live longer
        try:
            return _fork_process(preload, environment, fds, inherited_fds, threads)
        except ForkServerDiedError as error:
            raise SpawnNeededError(str(error)) from error


def _fork_process(
    preload: Preload,
    environment: Mapping[str, str],
    fds: Mapping[str, int],
    inherited_fds: list[int],
    threads: int,
) -> ForkedProcess:
    server = start_fork_server(preload)
    variable = find_variable_read_at_load(environment, server.environment, preload.modules)
    if variable is not None:
        message = f"`env` sets {variable}, which is read only when a process starts or a library is loaded"
        raise SpawnNeededError(message)
    unfit_reason = server.wait_until_ready()
    if unfit_reason:
        raise SpawnNeededError(unfit_reason)
    with _open_working_folder() as folder_fd:
        return server.fork(_make_request(environment, fds, inherited_fds, folder_fd, threads))


def _make_request(
    environment: Mapping[str, str], fds: Mapping[str, int], inherited_fds: list[int], folder_fd: int, threads: int
) -> ForkRequest:
    return ForkRequest(
        fds=list(dict.fromkeys([*fds.values(), folder_fd, *inherited_fds])),
        spec_fd=fds["spec"],
        crash_log_fd=fds["crash_log"],
        lifetime_fd=fds["lifetime"],
        output_fd=fds["output"],
        folder_fd=folder_fd,
        environment=[os.fsencode(f"{name}={value}") for name, value in environment.items()],
        thread_count=threads,
        attributes=read_caller_attributes(),
    )


@contextlib.contextmanager
def _open_working_folder() -> Iterator[int]:
    fd = os.open(".", os.O_PATH | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _describe_module(name: str, import_path: tuple[str, ...]) -> tuple[str, str, int]:
    """Return a module's name, file and time of change: a server with older code must not serve. Imports nothing."""
    search_path: Sequence[str] | None = import_path or None
    origin = None
    for depth in range(1, name.count(".") + 2):
        spec = PathFinder.find_spec(".".join(name.split(".")[:depth]), search_path)
        if spec is None:
            break
        search_path, origin = spec.submodule_search_locations, spec.origin
    with contextlib.suppress(OSError):
        return name, origin or "", Path(origin or "").stat().st_mtime_ns
    return name, origin or "", 0


def _close_all() -> None:
    with _lock:
        for server in _servers.values():
            server.close()
        _servers.clear()


def _forget_all_in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may hold it
    _lock = threading.Lock()
    _servers.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all_in_child)
