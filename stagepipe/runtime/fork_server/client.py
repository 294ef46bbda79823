"""The fork servers of this process: their start, the choice of a server for a worker, and the forked processes.

This is in the caller's process. A ForkedProcess replaces `subprocess.Popen`. A server starts before the config is read,
and imports at the same time as the caller. So this module must not import NumPy.

A server belongs to the process that started it and lives as long. A process that was forked from it starts its own.

The first server, the spare server, starts before its pipeline is known, and imports the modules that every server
needs. The start of the pipeline takes it and lets it import the rest.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from stagepipe.core import RunError, bind_lifetime, fork_lock, import_paths, register_owner
from stagepipe.runtime.attach import send_with_fds
from stagepipe.runtime.fork_server.messages import (
    MAX_REPLY_BYTES,
    ExitReply,
    ExitRequest,
    FixedAttributes,
    Forked,
    ForkRequest,
    ImportRequest,
    ReapRequest,
    ServerReady,
    encode_message,
    find_variable_read_at_load,
    make_server_environment,
    read_caller_attributes,
    read_fixed_attributes,
)

if TYPE_CHECKING:
    from stagepipe.plan import Plan
    from stagepipe.spec import PipelineSpec

R = TypeVar("R", ServerReady, Forked, ExitReply)

UNKNOWN_EXIT_CODE: Final = 1 << 16
"""Replaces the exit code of a worker whose fork server has died: no other process can learn it."""
_IMPORT_TIMEOUT_S: Final = 120.0
"""The time for the server's imports, even on a slow disk."""
_REPLY_TIMEOUT_S: Final = 10.0
_EXIT_TIMEOUT_S: Final = 2.0


class ForkServerDiedError(RunError):
    """The fork server does not answer."""


class ForkServer:
    """A running server. It ends when the client closes the connection, however this process ends."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start the server, which imports the modules that every worker needs. Does not wait for the imports."""
        self.environment = environment
        self.preload: tuple[str, ...] = ()
        self.unfit_reason: str | None = None
        """The reason why it cannot serve; "" if it can; None before it has answered."""
        self._files: dict[str, int] = {}
        self._process_count = 0
        self._is_retired = False
        self._lock = threading.Lock()
        with contextlib.ExitStack() as server_ends, fork_lock:  # a child that inherits a lifetime pipe must know it
            register_owner(self)
            self._connection, connection = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            server_ends.enter_context(connection)
            lifetime_fd, self._lifetime_write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            server_ends.callback(os.close, lifetime_fd)
            caller_pidfd = os.pidfd_open(os.getpid())
            server_ends.callback(os.close, caller_pidfd)
            fds = (connection.fileno(), lifetime_fd, caller_pidfd)
            try:
                self._popen = self._spawn(fds)
            except BaseException:
                self.abandon_in_child()
                raise
            bind_lifetime(lifetime_fd, self._popen.pid)

    def _spawn(self, fds: tuple[int, ...]) -> subprocess.Popen[bytes] | _ForkedServer:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "stagepipe.worker_server", *map(str, fds)],
            pass_fds=fds,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    def start_imports(self, preload: tuple[str, ...], import_path: tuple[str, ...]) -> None:
        """Let it import `preload`, once, before the first fork. Does not wait for the imports."""
        self.preload = preload
        with contextlib.suppress(OSError):  # it has died already; `wait_until_ready` will notice
            send_with_fds(self._connection, encode_message(ImportRequest(preload, import_path)), ())

    @property
    def is_alive(self) -> bool:
        """Whether it accepts requests."""
        return self._connection.fileno() >= 0 and self._popen.poll() is None

    def wait_until_ready(self) -> None:
        """Wait until it has imported all modules. If it dies or does not finish, it is unfit permanently."""
        with self._lock:
            if self.unfit_reason is not None:
                return
            try:
                ready = self._receive(ServerReady, _IMPORT_TIMEOUT_S)
            except ForkServerDiedError:
                modules = ", ".join(self.preload)
                self.unfit_reason = f"the fork server died while it imported {modules}, or took too long"
            except KeyboardInterrupt:
                self._end()
                raise
            else:
                self.unfit_reason = ready.unfit_reason
                self._files = ready.files

    @property
    def has_current_code(self) -> bool:
        """Whether the files of the user's modules that it has imported are unchanged."""
        return all(_read_mtime_ns(file) == mtime_ns for file, mtime_ns in self._files.items())

    @property
    def is_idle(self) -> bool:
        """Whether none of its forked processes is left."""
        return not self._process_count

    def fork(self, request: ForkRequest) -> ForkedProcess:
        """Fork a process. Raises OSError if the system refuses, and ForkServerDiedError."""
        with self._lock:
            reply = self._ask(Forked, request, request.fds)
            if reply.errno:
                raise OSError(reply.errno, os.strerror(reply.errno))
            self._process_count += 1
        try:
            return ForkedProcess(self, reply.pid)
        except BaseException:
            os.kill(reply.pid, signal.SIGKILL)
            self.reap(reply.pid)
            raise

    def read_exit_code(self, pid: int) -> int | None:
        """Return how a process of this server has exited; None while it runs."""
        with self._lock:
            try:
                return self._ask(ExitReply, ExitRequest(pid)).exit_code
            except ForkServerDiedError:
                return UNKNOWN_EXIT_CODE

    def reap(self, pid: int) -> None:
        """Let the kernel forget an exited process."""
        with self._lock:
            with contextlib.suppress(OSError):
                send_with_fds(self._connection, encode_message(ReapRequest(pid)), ())
            self._process_count -= 1
            is_over = self._is_retired and not self._process_count
        if is_over:
            self.close()

    def retire(self) -> None:
        """End the server when its last forked process has ended, because only the server knows how they exit."""
        with self._lock:
            self._is_retired = True
            is_over = not self._process_count
        if is_over:
            self.close()

    def _ask(self, reply_type: type[R], request: ForkRequest | ExitRequest, fds: Sequence[int] = ()) -> R:
        try:
            send_with_fds(self._connection, encode_message(request), fds)
            return self._receive(reply_type, _REPLY_TIMEOUT_S)
        except OSError as error:
            raise ForkServerDiedError(f"the fork server has died: {error}") from error
        except KeyboardInterrupt:  # the next request would get the reply to this one
            self._end()
            raise

    def _receive(self, reply_type: type[R], timeout_s: float) -> R:
        cause: OSError | None = None
        data = b""
        try:
            self._connection.settimeout(timeout_s)
            data = self._connection.recv(MAX_REPLY_BYTES)
        except OSError as error:
            cause = error
        if not data:
            self._end()
            raise ForkServerDiedError("the fork server has died or does not answer") from cause
        return msgspec.msgpack.decode(data, type=reply_type)

    def _end(self) -> None:
        self._connection.close()
        self._popen.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_EXIT_TIMEOUT_S)

    def close(self) -> None:
        """End the server. Its forked processes continue."""
        self._popen.kill()  # a thread that waits for an answer gets none and releases the lock
        with self._lock:
            if self._lifetime_write_fd >= 0:
                self._end()
                os.close(self._lifetime_write_fd)
                self._lifetime_write_fd = -1

    def abandon_in_child(self) -> None:
        """Close this process's copies of the descriptors."""
        self._connection.close()
        if self._lifetime_write_fd >= 0:
            os.close(self._lifetime_write_fd)
            self._lifetime_write_fd = -1


class CallerFork(ForkServer):
    """A server that is itself a fork of this process, so its workers have this process's objects.

    As with torch's DataLoader, a fork has one thread, locks of other threads stay locked in it, and it cannot use CUDA
    if this process has started CUDA. The fork happens once: a restarted worker finds the objects in their state at that
    time.
    """

    def __init__(self) -> None:
        """Fork this process."""
        super().__init__(make_server_environment())
        self.unfit_reason = ""

    def _spawn(self, fds: tuple[int, ...]) -> _ForkedServer:
        server = import_module("stagepipe.worker_server")
        server.import_for_forks()
        for stream in (sys.stdout, sys.stderr):  # else the fork would write their buffers a second time
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads; see the docstring
            pid = os.fork()
        if pid == 0:
            fork_lock.release()  # this thread holds it; other threads in the fork would wait for it
            server.serve_as_fork(*fds)
        return _ForkedServer(pid)


class _ForkedServer:
    """A forked child, with the methods of `subprocess.Popen` that a server needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._is_reaped = False

    def poll(self) -> int | None:
        if not self._is_reaped:
            with contextlib.suppress(ChildProcessError):  # other code has waited for it
                if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                    return None
            self._is_reaped = True
        return UNKNOWN_EXIT_CODE

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        deadline_s = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired("fork server", timeout)
            time.sleep(0.001)
        return UNKNOWN_EXIT_CODE


class ForkedProcess:
    """A process that the server has forked, with the methods of `subprocess.Popen` that a worker needs."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        """Own a pidfd. The server reaps the process at `close`, so its number is not reused before that."""
        self.pid = pid
        self._server = server
        self._pidfd = os.pidfd_open(pid)
        self._exit_code: int | None = None
        self._is_closed = False

    def poll(self) -> int | None:
        """Return its exit code, or minus the signal number if a signal killed it; None while it runs."""
        if self._exit_code is None and not self._is_closed and _is_readable(self._pidfd, 0.0):
            self._exit_code = self._server.read_exit_code(self.pid)
        return self._exit_code

    def wait(self, timeout: float) -> int:
        """Wait for its exit and return its exit code. Raises subprocess.TimeoutExpired."""
        if self._exit_code is None and not _is_readable(self._pidfd, timeout):
            raise subprocess.TimeoutExpired("worker", timeout)
        exit_code = self.poll()
        return UNKNOWN_EXIT_CODE if exit_code is None else exit_code

    def close(self) -> None:
        """Let the server reap it. Call it after the exit."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._pidfd)
            self._server.reap(self.pid)


def _read_mtime_ns(file: str) -> int:
    try:
        return Path(file).stat().st_mtime_ns
    except OSError:
        return -1


def _is_readable(fd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


class SpawnNeededError(Exception):
    """No fork server can start this worker. The message states the reason."""


@dataclass(frozen=True)
class Preload:
    """The modules that a server imports in addition. `import_path` has the locations of the user's own modules."""

    modules: tuple[str, ...] = ()
    import_path: tuple[str, ...] = ()


class _ServerKey(msgspec.Struct, frozen=True):
    """The properties that a server and the caller must share."""

    attributes: FixedAttributes
    modules: tuple[str, ...]
    import_path: tuple[str, ...]


@dataclass(frozen=True)
class _SpareServer:
    """A server whose modules are not known yet, and the caller's properties at its start."""

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
    """Start a server early if this process has none yet. Does not wait. Raises OSError if none can be started."""
    global _spare  # noqa: PLW0603 - one for the process
    with _lock:
        if not _servers and _spare is None:
            environment = make_server_environment()
            attributes = read_fixed_attributes(sys.executable)
            _spare = _SpareServer(ForkServer(environment), attributes, environment, _identify_working_folder())


def end_spare_server() -> None:
    """End the spare server, because no pipeline will take it."""
    global _spare  # noqa: PLW0603
    with _lock:
        if _spare is not None:
            _spare.server.close()
            _spare = None


def _take_spare_server(attributes: FixedAttributes, environment: Mapping[str, str]) -> ForkServer | None:
    """Return the spare server if a new server would be equal; else end it."""
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
    """Return the server for `preload`, ready or unfit; start it if there is none. Waits for its imports.

    A dead server is replaced, and so is one whose environment or user code has changed since its start. An unfit server
    stays. Raises OSError if none can be started.
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
    """Fork a worker. `fds` has its spec, crash log, lifetime and output, by name.

    Raises SpawnNeededError if only a new interpreter can serve, and OSError if the system refuses a process.
    """
    if server.unfit_reason:
        raise SpawnNeededError(server.unfit_reason)
    variable = find_variable_read_at_load(environment, server.environment, server.preload, threads)
    if variable is not None and not isinstance(server, CallerFork):  # a fork inherits the loaded values
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


def launch_spare_server() -> None:
    """Start a fork server while the config is not yet read, if this process has none yet. Does not wait."""
    if sys.platform == "linux" and sys.executable:
        with contextlib.suppress(OSError):  # the start of the workers meets the error again and reports it
            start_spare_server()


def launch_fork_server(spec: PipelineSpec) -> None:
    """Start the server that will fork the workers of `spec`, if it is needed and not yet running. Does not wait."""
    if spec.start == "fork" and not spec.forks_caller:
        with contextlib.suppress(OSError):  # as above
            find_or_start_server(find_preload(spec))
    else:
        end_spare_server()


def find_preload(plan: Plan | PipelineSpec) -> Preload:
    """Return the imports of a plan's fork server: its `preload`, and torch if a stage or the caller uses it.

    The user's modules are found where a worker finds them: on the caller's path and next to the config.
    """
    uses_torch = plan.uses_torch or "torch" in sys.modules
    modules = tuple(dict.fromkeys(["torch", *plan.preload] if uses_torch else plan.preload))
    import_path = tuple(entry or str(Path.cwd()) for entry in import_paths(plan.config_dir)) if plan.preload else ()
    return Preload(modules, import_path)
