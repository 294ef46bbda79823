"""Tries what a run asks of the kernel: memfds, pidfds, packet pipes. In the process of `stagepipe doctor`."""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import re
import select
import shutil
import stat
from pathlib import Path
from typing import Final

from stagepipe.core import format_bytes
from stagepipe.machine.checkup.health_check import HealthCheck, failed, passed, warned
from stagepipe.transport import make_packet_pipe

_MIN_KERNEL: Final = (5, 3)
"""The first with pidfd_open(2)."""
_DEV_SHM: Final = Path("/dev", "shm")
_PIPE_SETTINGS: Final = Path("/proc/sys/fs")
_FULL_PIPE_PACKETS: Final = 256
"""What the hop of a small item holds."""
_MEMFD_BYTES: Final = 1 << 30
"""An arena is a sparse file, larger than what is used of it."""
_SECCOMP_HINT: Final = "a container's seccomp profile may forbid it: allow it there"


def check_kernel() -> HealthCheck:
    """Check the system and the version of its kernel."""
    name, system, release = "kernel", platform.system(), platform.release()
    if system != "Linux":
        return failed(name, f"{system} {release}", "use Linux; `stagepipe run --inline` works in one process elsewhere")
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is not None and (int(match[1]), int(match[2])) < _MIN_KERNEL:
        return failed(name, f"Linux {release}", f"use Linux {'.'.join(map(str, _MIN_KERNEL))} or newer")
    return passed(name, f"Linux {release}")


def check_memfd() -> HealthCheck:
    """Make a shared-memory file as an arena is made, and map it."""
    name = "memfd"
    try:
        fd = os.memfd_create("stagepipe-doctor", os.MFD_CLOEXEC)
    except OSError as error:
        return failed(name, f"memfd_create: {error.strerror}", _SECCOMP_HINT)
    try:
        os.ftruncate(fd, _MEMFD_BYTES)
        with mmap.mmap(fd, mmap.PAGESIZE) as mapping:
            mapping[0] = 1
    except (OSError, ValueError) as error:
        fix = "raise `ulimit -f` and `ulimit -v`: shared memory counts as a file and as addresses"
        return failed(name, f"a file of {format_bytes(_MEMFD_BYTES)}: {error}", fix)
    finally:
        os.close(fd)
    return passed(name, f"a sparse file of {format_bytes(_MEMFD_BYTES)} can be mapped")


def check_pidfd() -> HealthCheck:
    """Open a pidfd: the supervisor sees the death of a worker through one."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return failed("pidfd", f"pidfd_open: {error.strerror}", _SECCOMP_HINT)
    return passed("pidfd", "available")


def check_packet_pipe() -> HealthCheck:
    """Send two packets through the pipe of a hop and see that they stay apart."""
    name = "packet pipes"
    try:
        ends = make_packet_pipe(_FULL_PIPE_PACKETS)
    except OSError as error:
        return failed(name, f"pipe2 and socketpair: {error.strerror}", "raise `ulimit -n`, or end other processes")
    try:
        os.write(ends.write_fd, b"a")
        os.write(ends.write_fd, b"bc")
        read = [os.read(ends.read_fd, 4096) for _ in range(2) if select.select([ends.read_fd], [], [], 1)[0]]
        is_socket = stat.S_ISSOCK(os.fstat(ends.read_fd).st_mode)
    finally:
        ends.close()
    if read != [b"a", b"bc"]:
        return failed(
            name, f"two packets arrived as {read}", "use a kernel with pipe2(O_DIRECT), such as a usual Linux"
        )
    if is_socket:
        fix = "nothing must be done; a kernel with pipe2(O_DIRECT), not gVisor, is faster"
        return warned(name, "no packet mode, sockets take their place", fix)
    return passed(name, f"pipe2(O_DIRECT), {ends.capacity_packets} packets in a pipe")


def check_pipe_pages() -> HealthCheck:
    """See whether this user's pipe pages are used up: then pipes hold two packets."""
    name = "pipe limits"
    limits = {key: _read_setting(key) for key in ("pipe-user-pages-soft", "pipe-user-pages-hard", "pipe-max-size")}
    text = ", ".join(f"fs.{key} {value}" for key, value in limits.items() if value)
    with contextlib.suppress(OSError):
        ends = make_packet_pipe(_FULL_PIPE_PACKETS)
        ends.close()
        if ends.capacity_packets < _FULL_PIPE_PACKETS:
            fix = "end processes that hold many pipes, or as root: sysctl fs.pipe-user-pages-soft=65536"
            return warned(name, f"a pipe gets {ends.capacity_packets} of {_FULL_PIPE_PACKETS} pages; {text}", fix)
    return passed(name, text or "unknown")


def check_dev_shm() -> HealthCheck:
    """Say that the size of /dev/shm does not matter, because people look for it."""
    with contextlib.suppress(OSError):
        return passed(str(_DEV_SHM), f"not needed (it has {format_bytes(shutil.disk_usage(_DEV_SHM).total)})")
    return passed(str(_DEV_SHM), "not needed (there is none)")


def _read_setting(name: str) -> str:
    try:
        return (_PIPE_SETTINGS / name).read_text().strip()
    except OSError:
        return ""
