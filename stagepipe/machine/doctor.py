"""`stagepipe doctor`: checks whether this machine can run pipelines. It tries things out and leaves nothing behind.

Runs in the process of the command. `diagnose` makes all checks, in order.
"""

from __future__ import annotations

import contextlib
import importlib.util
import mmap
import os
import platform
import re
import select
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Final

from stagepipe.core import DISTRIBUTION, VERSION, format_bytes, get_cache_dir, install_command
from stagepipe.machine.cgroup import cpu_quota, memory_limit_bytes, oom_kill_count, read_throttling
from stagepipe.machine.limits import CpuLoadMeter, compute_free_cpus, read_free_memory_bytes, read_system_limits
from stagepipe.machine.machine import detect_machine
from stagepipe.transport import make_packet_pipe

# ------------------------------------------------------------------ the result of a check


class CheckStatus(Enum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"
    """A run works, but more slowly or not in every case."""
    FAIL = "fail"
    """No run can start."""


@dataclass(frozen=True, kw_only=True)
class DoctorCheck:
    """A check: its name, the observed value, and the fix; `fix` is "" if there is nothing to do."""

    name: str
    status: CheckStatus
    value: str
    fix: str = ""


def passed(name: str, value: str) -> DoctorCheck:
    """Return a check without a problem."""
    return DoctorCheck(name=name, status=CheckStatus.OK, value=value)


def warned(name: str, value: str, fix: str) -> DoctorCheck:
    """Return a check that found something to improve."""
    return DoctorCheck(name=name, status=CheckStatus.WARN, value=value, fix=fix)


def failed(name: str, value: str, fix: str) -> DoctorCheck:
    """Return a check that found an obstacle to starting a run."""
    return DoctorCheck(name=name, status=CheckStatus.FAIL, value=value, fix=fix)


# ------------------------------------------------------------------ features of the kernel

_MIN_KERNEL: Final = (5, 3)
"""The first version with pidfd_open(2)."""
_DEV_SHM: Final = Path("/dev", "shm")
_PIPE_SETTINGS: Final = Path("/proc/sys/fs")
_FULL_PIPE_PACKETS: Final = 256
"""The capacity of the hop of a small item."""
_MEMFD_BYTES: Final = 1 << 30
"""An arena is a sparse file, larger than its used part."""
_SECCOMP_HINT: Final = "a container's seccomp profile may forbid it: allow it there"


def check_kernel() -> DoctorCheck:
    """Check the system and the version of its kernel."""
    name, system, release = "kernel", platform.system(), platform.release()
    if system != "Linux":
        return failed(name, f"{system} {release}", "use Linux; `stagepipe run --inline` works in one process elsewhere")
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is not None and (int(match[1]), int(match[2])) < _MIN_KERNEL:
        return failed(name, f"Linux {release}", f"use Linux {'.'.join(map(str, _MIN_KERNEL))} or newer")
    return passed(name, f"Linux {release}")


def check_memfd() -> DoctorCheck:
    """Make a shared-memory file in the same way as an arena, and map it."""
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


def check_pidfd() -> DoctorCheck:
    """Open a pidfd: through it, the supervisor notices the death of a worker."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return failed("pidfd", f"pidfd_open: {error.strerror}", _SECCOMP_HINT)
    return passed("pidfd", "available")


def check_packet_pipe() -> DoctorCheck:
    """Send two packets through the pipe of a hop and check that they stay separate."""
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
        fix = "no action is needed; a kernel with pipe2(O_DIRECT), not gVisor, is faster"
        return warned(name, "no packet mode; sockets are used instead", fix)
    return passed(name, f"pipe2(O_DIRECT), {ends.capacity_packets} packets in a pipe")


def check_pipe_pages() -> DoctorCheck:
    """Check whether this user's pipe pages are used up: pipes then hold only two packets."""
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


def check_dev_shm() -> DoctorCheck:
    """Report that the size of /dev/shm does not matter, because users look for it."""
    with contextlib.suppress(OSError):
        return passed(str(_DEV_SHM), f"not needed (it has {format_bytes(shutil.disk_usage(_DEV_SHM).total)})")
    return passed(str(_DEV_SHM), "not needed (there is none)")


def _read_setting(name: str) -> str:
    try:
        return (_PIPE_SETTINGS / name).read_text().strip()
    except OSError:
        return ""


# ------------------------------------------------------------------ CPUs, memory, limits

_LOAD_SPAN_S: Final = 0.5
_MIN_FREE_CPUS: Final = 1.0
_MIN_FREE_BYTES: Final = 1 << 30
"""Enough for some workers with NumPy; torch takes more."""
_USABLE_FREE_BYTES: Final = 64 << 20
_MIN_FDS, _COMFORTABLE_FDS = 100, 500
"""The need of runs with 4 and with 40 workers: 10 per worker, 2 per hop, and 40."""
_MIN_TASKS, _COMFORTABLE_TASKS = 30, 200
"""The need of 4 and 40 workers, including their own threads."""
_MAX_THROTTLED: Final = 0.05
"""The share of periods in which the quota was used up. A larger share is a visible loss."""


def check_cpus() -> DoctorCheck:
    """Measure for half a second how many CPUs other processes leave."""
    meter = CpuLoadMeter()
    time.sleep(_LOAD_SPAN_S)
    usable = len(os.sched_getaffinity(0))
    free = compute_free_cpus(meter.measure_other_cpus())
    text = f"{free:.1f} of {usable} CPUs free"
    if free < min(_MIN_FREE_CPUS, usable / 2):
        return warned("CPUs", text, "end other processes, or expect slower stages and misleading reports")
    return passed("CPUs", text)


def check_memory() -> DoctorCheck:
    """Read the memory that is available now."""
    free, total = read_free_memory_bytes(), detect_machine().memory_bytes
    text = f"{format_bytes(free)} of {format_bytes(total)} free"
    if free < _USABLE_FREE_BYTES:
        return failed("memory", text, "end other processes, or raise the limit of the container")
    if free < _MIN_FREE_BYTES:
        return warned("memory", text, "set `memory: 256MB` and few `workers` in the config, or free memory")
    return passed("memory", text)


def check_cgroup() -> DoctorCheck:
    """Read the limits of the control group, and whether they were hit."""
    limit, quota, kills = memory_limit_bytes(), cpu_quota(), oom_kill_count()
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    periods, throttled = read_throttling()
    parts = [
        "no memory limit" if limit is None or limit >= machine_bytes else f"memory limit {format_bytes(limit)}",
        "no CPU quota" if quota is None else f"quota of {quota:g} CPUs",
    ]
    if periods and throttled / periods > _MAX_THROTTLED:
        text = ", ".join([*parts, f"used up in {throttled / periods:.0%} of its periods"])
        return warned("cgroup", text, "raise the CPU quota of the container, or set fewer `workers`")
    if quota is not None and quota < 1:
        return warned("cgroup", ", ".join(parts), "raise the CPU quota of the container: all workers share it")
    return passed("cgroup", ", ".join([*parts, *([f"{kills} processes killed for memory"] if kills else [])]))


def check_descriptors() -> DoctorCheck:
    """Read how many file descriptors are left, and the limits on addresses and files."""
    name, limits = "descriptors", read_system_limits()
    if limits.max_fds is None or limits.free_fds is None:
        return passed(name, "unlimited")
    text = f"{limits.free_fds:,} of {limits.max_fds:,} free"
    fix = f"ulimit -n {max(4096, limits.max_fds * 4)}"
    if limits.free_fds < _MIN_FDS:
        return failed(name, text, fix)
    return warned(name, text, fix) if limits.free_fds < _COMFORTABLE_FDS else passed(name, text)


def check_tasks() -> DoctorCheck:
    """Read how many processes and threads may still be started."""
    found = read_system_limits(_COMFORTABLE_TASKS).free_tasks_by_limit
    if not found:
        return passed("processes", "no limit near")
    limit, free = min(found, key=lambda pair: pair[1])
    text = f"{max(free, 0):,} more processes and threads ({limit})"
    fix = "raise the limit, or set fewer `workers` and fuse stages"
    if free < _MIN_TASKS:
        return failed("processes", text, fix)
    return warned("processes", text, fix) if free < _COMFORTABLE_TASKS else passed("processes", text)


# ------------------------------------------------------------------ packages and folders

_MIN_PYTHON: Final = (3, 11)
_MIN_TORCH: Final = (2, 6)
"""As in the extra `torch` of pyproject.toml."""
_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:>=([\d.]+))?")


def check_python() -> DoctorCheck:
    """Check the version of the interpreter."""
    text = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < _MIN_PYTHON:  # a package of another Python may be on the path
        return failed("Python", text, f"use Python {'.'.join(map(str, _MIN_PYTHON))} or newer")
    return passed("Python", text)


def check_packages() -> DoctorCheck:
    """Check that each required package is installed, in a version that is new enough."""
    shown, wrong = [f"stagepipe {VERSION}"], []
    for package, minimum in _iter_requirements():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            wrong.append((f"{package} is missing", f"{package}>={minimum}"))
            continue
        if _split_version(version) < _split_version(minimum):
            wrong.append((f"{package} {version} is older than {minimum}", f"{package}>={minimum}"))
        shown.append(f"{package} {version}")
    if wrong:
        fix = f"pip install {' '.join(repr(requirement) for _, requirement in wrong)}"
        return failed("packages", "; ".join(text for text, _ in wrong), fix)
    return passed("packages", ", ".join(shown))


def check_torch() -> DoctorCheck:
    """Import torch, if it is installed, so that a broken installation fails here and not in a worker."""
    if importlib.util.find_spec("torch") is None:
        return passed("torch", f"not installed; pipelines with tensors and models need it: {install_command('torch')}")
    try:
        import torch
    except (ImportError, OSError, RuntimeError) as error:
        return failed("torch", f"{type(error).__name__}: {error}", "pip install --force-reinstall 'torch>=2.6'")
    if _split_version(torch.__version__) < _MIN_TORCH:
        return warned("torch", f"{torch.__version__} is older than the oldest tested version", install_command("torch"))
    build = "for the CPU" if torch.version.cuda is None else f"for CUDA {torch.version.cuda}"
    return passed("torch", f"{torch.__version__}, a build {build}")


def check_cuda() -> DoctorCheck:
    """Compare the GPUs that the driver shows with those that torch can use."""
    name, devices = "CUDA", detect_machine().cuda_devices
    if not devices and importlib.util.find_spec("torch") is None:
        return passed(name, "no GPU; stages run on the CPU")
    try:
        import torch

        usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
        names = [torch.cuda.get_device_name(index) for index in range(usable)]
    except (ImportError, OSError, RuntimeError) as error:
        return warned(name, f"{type(error).__name__}: {error}", "see the check of torch")
    if usable:
        return passed(name, ", ".join(names))
    if not devices:
        return passed(name, "no GPU; stages run on the CPU")
    if torch.version.cuda is None:
        fix = "install a build of torch for CUDA: https://pytorch.org/get-started/locally/"
        return warned(name, f"{len(devices)} GPUs, but torch is a build for the CPU", fix)
    fix = "check `nvidia-smi`: the driver may be older than torch's CUDA, or the container may lack the GPU"
    return warned(name, f"{len(devices)} GPUs, but torch can use none", fix)


def check_temporary_folder() -> DoctorCheck:
    """Make a folder in the place where the control channel briefly binds its socket."""
    name = "temporary folder"
    try:
        with tempfile.TemporaryDirectory(prefix="stagepipe-doctor-") as folder:
            return passed(name, f"{folder.rpartition('/')[0]} is writable")
    except OSError as error:
        return warned(name, f"not writable: {error}", "set TMPDIR to a folder that is")


def check_cache_folder() -> DoctorCheck:
    """Write a file in the folder of measured cost curves and indexes."""
    name, folder = "cache folder", get_cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return passed(name, f"{folder} is writable")
    except OSError as error:
        fix = "set XDG_CACHE_HOME to a folder that is; else each start measures the machine, which takes a second"
        return warned(name, f"{folder} is not writable: {error.strerror}", fix)


def _iter_requirements() -> Iterator[tuple[str, str]]:
    """Yield the name and the lowest version of each required package."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # run from its folder, without an installation
        return
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is not None and "extra ==" not in requirement:
            yield match[1], match[2] or "0"


def _split_version(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without the marks of a build or a pre-release."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


# ------------------------------------------------------------------ all checks

_PORTABLE_CHECKS = (check_python, check_packages, check_torch)
_LINUX_CHECKS = (
    check_memfd,
    check_pidfd,
    check_packet_pipe,
    check_pipe_pages,
    check_dev_shm,
    check_cpus,
    check_memory,
    check_cgroup,
    check_descriptors,
    check_tasks,
    check_temporary_folder,
    check_cache_folder,
    *_PORTABLE_CHECKS,
    check_cuda,
)


def diagnose() -> Iterator[DoctorCheck]:
    """Yield the result of each check. Takes half a second to measure the load, and as long as `import torch`.

    >>> next(diagnose()).name
    'kernel'
    """
    yield check_kernel()
    for check in _LINUX_CHECKS if platform.system() == "Linux" else _PORTABLE_CHECKS:
        yield check()
