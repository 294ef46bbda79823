"""The fork servers of this process: which one may fork a worker, or why none can. In the caller's process.

A server belongs to the process that started it and lives as long. A process that was forked from it starts its own.

The first one is started before its pipeline is known, and imports what every server does: the spare server. The
pipeline's start takes it and has it import the rest.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
    modules: tuple[str, ...]
    import_path: tuple[str, ...]


@dataclass(frozen=True)
class _SpareServer:
    """A server whose modules are not known yet, and what it has from the caller at its start."""

    server: ForkServer
    attributes: FixedAttributes
    environment: Mapping[str, str]
    folder: tuple[int, int] | None


_MAX_SERVERS: Final = 2
"""One with torch and one without. Others are ended when they have no process left."""
_servers: dict[_ServerKey, ForkServer] = {}
_spare: _SpareServer | None = None
_lock = threading.Lock()


def start_spare_server() -> None:
    """Start a server early if this process has none yet. Waits for nothing. Raises OSError if none can be started."""
    global _spare  # noqa: PLW0603 - one for the process
    with _lock:
        if not _servers and _spare is None:
            environment = make_server_environment()
            attributes = read_fixed_attributes(sys.executable)
            _spare = _SpareServer(ForkServer(environment), attributes, environment, _identify_working_folder())


def end_spare_server() -> None:
    """End the server that no pipeline has taken: none is going to."""
    global _spare  # noqa: PLW0603
    with _lock:
        if _spare is not None:
            _spare.server.close()
            _spare = None


def _take_spare_server(attributes: FixedAttributes, environment: Mapping[str, str]) -> ForkServer | None:
    """Return the spare server if one that starts now would be the same; else end it."""
    global _spare
    spare, _spare = _spare, None
    if spare is None:
        return None
    was_alike = (spare.attributes, spare.environment, spare.folder)
    if spare.server.is_alive and was_alike == (attributes, environment, _identify_working_folder()):
        return spare.server
    spare.server.close()
    return None


def _identify_working_folder() -> tuple[int, int] | None:
    try:
        folder = Path().stat()
    except OSError:
        return None
    return folder.st_dev, folder.st_ino


def get_fork_server(preload: Preload) -> ForkServer:
    """Return the server for `preload`, ready or unfit; it is started now if there is none. Waits for its imports.

    A server is replaced when it has died, or when the environment or the user's code has changed since its start; one
    that is unfit stays. Raises OSError if none can be started.
    """
    server = find_or_start_server(preload)
    server.wait_until_ready()
    return server


def find_or_start_server(preload: Preload) -> ForkServer:
    """Return the server for `preload`, which may still be importing. Raises OSError if none can be started."""
    environment = make_server_environment()
    with _lock:
        key = _ServerKey(read_fixed_attributes(sys.executable), preload.modules, preload.import_path)
        server = _servers.get(key)
        if server is not None:
            is_current = server.has_current_code and (
                find_variable_read_at_load(environment, server.environment, preload.modules) is None
            )
            if is_current and (server.is_alive or server.unfit_reason):
                return server
            server.retire()
            del _servers[key]
        for other_key, other in list(_servers.items()):
            if len(_servers) >= _MAX_SERVERS and other.is_idle:
                other.retire()
                del _servers[other_key]
        server = _take_spare_server(key.attributes, environment) or ForkServer(environment)
        server.start_imports(preload.modules, preload.import_path)
        _servers[key] = server
        return server


def fork_process(
    server: ForkServer,
    environment: Mapping[str, str],
    fds: Mapping[str, int],
    inherited_fds: list[int],
    threads: int,
) -> ForkedProcess:
    """Fork a worker. `fds`: its spec, crash log, lifetime and output, by name.

    Raises SpawnNeededError where only a new interpreter can serve, and OSError where the system refuses a process.
    """
    if server.unfit_reason:
        raise SpawnNeededError(server.unfit_reason)
    variable = find_variable_read_at_load(environment, server.environment, server.preload, threads)
    if variable is not None:
        message = f"`env` sets {variable}, which is read only when a process starts or a library is loaded"
        raise SpawnNeededError(message)
    with _open_working_folder() as folder_fd:
        try:
            return server.fork(_make_request(environment, fds, inherited_fds, folder_fd, threads))
        except ForkServerDiedError as error:
            raise SpawnNeededError(str(error)) from error


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


def _close_all() -> None:
    end_spare_server()
    with _lock:
        for server in _servers.values():
            server.close()
        _servers.clear()


def _forget_all_in_child() -> None:
    global _lock, _spare  # noqa: PLW0603
    _lock = threading.Lock()  # another thread of the parent may hold it
    _spare = None
    _servers.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all_in_child)
