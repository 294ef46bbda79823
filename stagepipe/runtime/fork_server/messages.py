"""The messages between the client and the fork server, and the caller's attributes that a worker must have.

Typed and small; both sides run the same version of the package. A spawned worker inherits the caller's limits, CPUs,
umask and environment. For a forked worker they are read in the caller, sent, and set in the worker. A variable that is
read only when a process starts needs a spawned worker.

A forked worker gets the whole environment of a spawned one, but its interpreter and libraries have read parts of the
server's environment earlier.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from stagepipe.core import PACKAGE_DIR

_LIMIT_NAMES: Final = tuple(name for name in dir(resource) if name.startswith("RLIMIT_"))


class CallerAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes of the calling process and thread that a worker can set for itself."""

    umask: int
    cpus: list[int]
    blocked_signals: list[int]
    limits: dict[str, tuple[int, int]]


class FixedAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes that an unprivileged process cannot set for itself. A server with different ones cannot be used."""

    executable: str
    user_ids: tuple[int, ...]
    niceness: int
    scheduler: int
    cgroup: str
    oom_score_adjustment: str


def read_caller_attributes() -> CallerAttributes:
    """Return the current attributes of this process and thread."""
    return CallerAttributes(
        umask=_read_umask(),
        cpus=sorted(os.sched_getaffinity(0)),
        blocked_signals=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        limits={name: resource.getrlimit(getattr(resource, name)) for name in _LIMIT_NAMES},
    )


def apply_caller_attributes(attributes: CallerAttributes) -> None:
    """Give this process and thread the attributes. Raises OSError or ValueError if the system refuses."""
    os.umask(attributes.umask)
    os.sched_setaffinity(0, attributes.cpus)
    signal.pthread_sigmask(signal.SIG_SETMASK, attributes.blocked_signals)
    for name, limit in attributes.limits.items():
        if resource.getrlimit(getattr(resource, name)) != tuple(limit):
            resource.setrlimit(getattr(resource, name), limit)


def read_fixed_attributes(executable: str) -> FixedAttributes:
    """Return the attributes that a server permanently gets from this process at its start."""
    return FixedAttributes(
        executable=executable,
        user_ids=(*os.getresuid(), *os.getresgid(), *os.getgroups()),
        niceness=os.getpriority(os.PRIO_PROCESS, 0),
        scheduler=os.sched_getscheduler(0),
        cgroup=_read_text("/proc/self/cgroup"),
        oom_score_adjustment=_read_text("/proc/self/oom_score_adj"),
    )


def _read_umask() -> int:
    """Read the umask without changing it: `os.umask` would change it for other threads."""
    for line in _read_text("/proc/self/status").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022  # Linux before 4.7


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


_PREFIXES: Final = (
    "LD_",  # the dynamic loader, ld.so(8)
    "GLIBC_TUNABLES",
    "MALLOC_",  # mallopt(3)
    "PYTHON",
    "LC_",
    "LANG",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "NPY_",
    "NUMPY_",
    "NUMEXPR_",
)
_TORCH_PREFIXES: Final = ("TORCH", "PYTORCH_", "ATEN_", "CUDA_MODULE_LOADING", "LOCAL_RANK", "NCCL_")
_USER_MODULE_PREFIXES: Final = ("HF_", "TRANSFORMERS_", "TOKENIZERS_", "XDG_", "HOME")
THREAD_COUNT_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_MALLOC_VARIABLES: Final = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
"""mallopt(3): by default glibc returns the pages of a freed array to the kernel, and the next array of that size faults
them in again. Stages make arrays of the same sizes repeatedly: decoding JPEG files then took 87 page faults per item,
and a tenth more time."""
_SERVER_VARIABLES: Final = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""With it, `torch.cuda.is_available()` does not start CUDA."""
_SETTABLE: Final = frozenset({*THREAD_COUNT_VARIABLES, *_SERVER_VARIABLES, "PYTHONPATH"})
"""Thread counts and the import path are set after the fork."""


def make_worker_environment(thread_count: int, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker: the caller's, with its thread count, its import path and `variables`."""
    package_parent = str(PACKAGE_DIR.parent)
    inherited_path = os.environ.get("PYTHONPATH")
    return {
        **_MALLOC_VARIABLES,
        **os.environ,
        **dict.fromkeys(THREAD_COUNT_VARIABLES, str(thread_count)),
        "PYTHONPATH": package_parent if not inherited_path else f"{inherited_path}{os.pathsep}{package_parent}",
        **variables,
    }


def make_server_environment() -> dict[str, str]:
    """Return the environment of a fork server: a worker's, but no library starts a thread or CUDA."""
    return make_worker_environment(1, _SERVER_VARIABLES)


def find_variable_read_at_load(
    wanted: Mapping[str, str],
    loaded_with: Mapping[str, str],
    preload: tuple[str, ...],
    thread_count: int | None = None,
) -> str | None:
    """Return a variable that was read at load and differs between the two environments; None if there is none.

    A variable that counts threads is named if it differs from the `thread_count` that a worker sets.

    >>> find_variable_read_at_load({"LD_PRELOAD": "x.so"}, {}, ())
    'LD_PRELOAD'
    >>> find_variable_read_at_load({"MY_OPTION": "1"}, {}, ()) is None
    True
    """
    if thread_count is not None:
        for name in THREAD_COUNT_VARIABLES:
            if wanted.get(name) != str(thread_count):
                return name
    prefixes = (
        _PREFIXES
        + (_TORCH_PREFIXES if "torch" in preload else ())
        + (_USER_MODULE_PREFIXES if set(preload) - {"torch"} else ())
    )
    names = (name for name in sorted({*wanted, *loaded_with}) if name.startswith(prefixes) and name not in _SETTABLE)
    return next((name for name in names if wanted.get(name) != loaded_with.get(name)), None)


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
    """Ask how a process has exited. It stays a zombie, so that its number is not reused."""

    pid: int


class ReapRequest(msgspec.Struct, tag="reap", frozen=True):
    """Reap a process. There is no reply."""

    pid: int


class ServerReady(msgspec.Struct, frozen=True):
    """The server has imported everything. `unfit_reason` is the reason why forks are not safe; "" if they are."""

    unfit_reason: str
    files: dict[str, int]  # the user's modules that it has imported, with their modification time in ns


class Forked(msgspec.Struct, frozen=True):
    """The worker's process, or an `errno` if the system refused to create it."""

    pid: int
    errno: int = 0


class ExitReply(msgspec.Struct, frozen=True):
    """An exit code, or minus the signal number if a signal killed the process; None while it runs."""

    exit_code: int | None


Request = ImportRequest | ForkRequest | ExitRequest | ReapRequest
Reply = ServerReady | Forked | ExitReply
MAX_REPLY_BYTES: Final = 1 << 16
encode_message = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
