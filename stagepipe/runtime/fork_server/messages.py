"""What the client and the fork server tell each other. Typed and small; both run the same version of the package."""

from __future__ import annotations

from typing import Final

import msgspec

from stagepipe.runtime.fork_server.attributes import CallerAttributes


class ImportRequest(msgspec.Struct, tag="import", frozen=True):
    """The first request: import the modules, found on the path. An empty path leaves the server's own."""

    modules: tuple[str, ...]
    import_path: tuple[str, ...]


class ForkRequest(msgspec.Struct, tag="fork", frozen=True, kw_only=True):
    """Fork a worker.

    `fds` are the caller's numbers of the descriptors that come with the request, in their order. The other fields name
    descriptors by these numbers.
    """

    fds: list[int]
    spec_fd: int
    crash_log_fd: int
    lifetime_fd: int
    output_fd: int
    folder_fd: int  # the working folder
    environment: list[bytes]  # NAME=value
    thread_count: int
    attributes: CallerAttributes


class ExitRequest(msgspec.Struct, tag="exit", frozen=True):
    """Tell how a process has exited. It stays a zombie, so that its number is not used again."""

    pid: int


class ReapRequest(msgspec.Struct, tag="reap", frozen=True):
    """Reap a process. There is no reply."""

    pid: int


class ServerReady(msgspec.Struct, frozen=True):
    """The server has imported everything. `unfit_reason`: why its forks would not be safe; else ""."""

    unfit_reason: str
    files: dict[str, int]  # the user's modules that it has imported, with their time of change in ns


class Forked(msgspec.Struct, frozen=True):
    """The worker's process; or with an `errno`, that the system refuses one."""

    pid: int
    errno: int = 0


class ExitReply(msgspec.Struct, frozen=True):
    """An exit code, minus the signal number if a signal killed the process; None while it runs."""

    exit_code: int | None


Request = ImportRequest | ForkRequest | ExitRequest | ReapRequest
Reply = ServerReady | Forked | ExitReply
MAX_REPLY_BYTES: Final = 1 << 16
encode_message = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
