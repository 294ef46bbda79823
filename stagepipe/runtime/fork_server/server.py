"""The fork server's loop, and the setup of a forked process as a worker.

The server has one thread, and draws no random numbers after its imports. It forks, reports exits, and reaps. The new
process gets the state of a spawned worker: descriptors, environment, generators, threads.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import itertools
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy.random

from stagepipe.core import bind_lifetime, exit_if_orphaned, is_installed, leave_signals_to_caller, watch_torch_use
from stagepipe.runtime.attach import receive_with_fds
from stagepipe.runtime.fork_server.messages import (
    ExitReply,
    ExitRequest,
    Forked,
    ForkRequest,
    ImportRequest,
    Reply,
    ServerReady,
    apply_caller_attributes,
    decode_request,
    encode_message,
)


def serve_forks(connection: socket.socket, caller_pidfd: int) -> ForkedLaunch | None:
    """Import the modules that the client requests, then fork a worker for each request.

    Returns a launch in each forked worker. Returns None in the server when the client has closed the connection, or
    when the client's process (`caller_pidfd`) has exited: a fork of that process may hold the connection open.
    """
    leave_signals_to_caller()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a caller that ignores it would leave no exit status to read
    poll = select.poll()  # unlike `select`, it takes descriptors beyond 1,023
    for fd in (connection.fileno(), caller_pidfd):
        poll.register(fd, select.POLLIN)
    while True:
        if caller_pidfd in dict(poll.poll()):
            return None
        try:
            received = receive_with_fds(connection)
        except OSError as error:
            _reply(connection, Forked(-1, error.errno or errno.EIO))
            continue
        if received is None:
            return None
        message, fds = received
        request = decode_request(message)
        if isinstance(request, ImportRequest):
            _reply(connection, _prepare(request))
        elif isinstance(request, ForkRequest):
            launch = _fork(connection, request, fds)
            if launch is not None:
                return launch
        elif isinstance(request, ExitRequest):
            _reply(connection, ExitReply(_read_exit_code(request.pid)))
        else:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(request.pid, 0)


def _prepare(request: ImportRequest) -> ServerReady:
    sys.path[:] = request.import_path or sys.path
    torch = tuple(itertools.takewhile(lambda module: module == "torch", request.modules))
    import_error = _import_all(torch)
    gc.freeze()  # these imports leave a megabyte, and a collection with torch in memory takes 0.15 s
    gc.enable()
    import_error = import_error or _import_all(request.modules[len(torch) :])
    ready = ServerReady(import_error or find_unfit_reason(Path("/proc/self")), _list_user_files())
    if request.modules == ("torch",):  # the user's modules may keep functions of torch
        watch_torch_use()
    gc.collect()
    gc.freeze()  # collections in a worker then write to no shared page
    return ready


def _fork(connection: socket.socket, request: ForkRequest, fds: list[int]) -> ForkedLaunch | None:
    pid = -1
    try:
        try:
            pid = os.fork()
        except OSError as error:
            _reply(connection, Forked(-1, error.errno or errno.EIO))
            return None
        if pid == 0:
            connection.close()
            return become_worker(request, dict(zip(request.fds, fds, strict=True)))
        with contextlib.suppress(OSError):  # the child does it too, perhaps first
            os.setpgid(pid, pid)
        _reply(connection, Forked(pid))
        return None
    finally:
        if pid != 0:
            for fd in fds:
                os.close(fd)


def _reply(connection: socket.socket, reply: Reply) -> None:
    with contextlib.suppress(OSError):  # the client has gone: the next receive reports it
        connection.send(encode_message(reply))


def _read_exit_code(pid: int) -> int | None:
    """Return how a child has exited, without reaping it: until then no other process can get its number."""
    try:
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return None
    if status is None:
        return None
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def _import_all(modules: Iterable[str]) -> str:
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as error:  # noqa: BLE001 - any exception of user code; a spawned worker reports it better
            return f"importing `{module}` failed: {type(error).__name__}: {error}"
    return ""


def _list_user_files() -> dict[str, int]:
    """Return the files of imported modules that may change meanwhile, with their modification time in ns."""
    files = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not is_installed(name):
            with contextlib.suppress(OSError):
                files[file] = Path(file).stat().st_mtime_ns
    return files


def find_unfit_reason(process: Path) -> str:
    """Return why a fork of a process would not be safe, from its folder in /proc; "" if it is safe."""
    if len(list((process / "task").iterdir())) > 1:
        return "a module that it imports starts threads, which a fork would not have"
    has_driver = "/libcuda.so" in (process / "maps").read_text(encoding="utf-8", errors="replace")
    if has_driver or any(file.startswith("/dev/nvidia") for file in _list_open_files(process)):
        return "a module that it imports starts CUDA, which does not work after a fork"
    return ""


def _list_open_files(process: Path) -> list[str]:
    files = []
    for link in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this listing
            files.append(str(link.readlink()))
    return files


@dataclass(frozen=True)
class ForkedLaunch:
    """The start data of a forked worker. `fds` maps each of the caller's descriptors to its own."""

    spec_fd: int
    crash_log_fd: int
    fds: Mapping[int, int]


def become_worker(request: ForkRequest, fds: Mapping[int, int]) -> ForkedLaunch:
    """Set up this process. `fds` maps each number in the request to its own descriptor."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    lifetime_fd = fds[request.lifetime_fd]
    bind_lifetime(lifetime_fd, os.getpid())
    exit_if_orphaned(lifetime_fd)  # after the binding, so that there is no gap between them
    _set_output(fds[request.output_fd])
    os.fchdir(fds[request.folder_fd])
    for fd in fds.values():
        os.set_inheritable(fd, True)  # as in a spawned worker
    for used in (request.output_fd, request.folder_fd):
        os.close(fds[used])
    apply_caller_attributes(request.attributes)
    _set_environment(request.environment)
    importlib.invalidate_caches()
    _seed_generators()
    if request.thread_count > 1:
        _set_thread_count(request.thread_count)
    return ForkedLaunch(fds[request.spec_fd], fds[request.crash_log_fd], fds)


def leave_caller() -> None:
    """Detach a fork of the caller from the caller's output, signal handlers and log handlers."""
    os.setpgid(0, 0)
    null_fd = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null_fd, fd)
    os.close(null_fd)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.getLogger().handlers.clear()  # in the caller, they get the workers' records
    _set_thread_count(1)  # the threads of its libraries do not exist in the fork
    gc.freeze()  # collections in a worker then write to no page that it shares with the caller


def _set_output(fd: int) -> None:
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    # The server's streams are opened for /dev/null, which is seekable.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - open to the end
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _set_environment(entries: list[bytes]) -> None:
    wanted = dict(entry.split(b"=", 1) for entry in entries)
    for name in set(os.environb) - set(wanted):
        del os.environb[name]
    for name, value in wanted.items():
        if os.environb.get(name) != value:
            os.environb[name] = value
    time.tzset()


def _seed_generators() -> None:
    """Seed from the system, as an import does: all forks have the server's state. Python reseeds its own at a fork."""
    numpy.random.seed()  # noqa: NPY002 - the generator from which stages draw
    torch = sys.modules.get("torch")
    if torch is not None:
        # Not `torch.default_generator`: that would count as the stage's first use of torch.
        ModuleType.__getattribute__(torch, "default_generator").seed()


def _set_thread_count(count: int) -> None:
    """Set the threads of libraries that are already loaded. Others read the environment when they are loaded."""
    from threadpoolctl import threadpool_limits  # only here, because most workers have one thread

    threadpool_limits(count)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
