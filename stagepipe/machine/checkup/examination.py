"""`examine_machine`: all checks of `stagepipe doctor`, in order. In the process of the command."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from stagepipe.machine.checkup.health_check import HealthCheck
from stagepipe.machine.checkup.kernel_checks import (
    check_dev_shm,
    check_kernel,
    check_memfd,
    check_packet_pipe,
    check_pidfd,
    check_pipe_pages,
)
from stagepipe.machine.checkup.resource_checks import (
    check_cgroup,
    check_cpus,
    check_descriptors,
    check_memory,
    check_tasks,
)
from stagepipe.machine.checkup.software_checks import (
    check_cache_folder,
    check_cuda,
    check_packages,
    check_python,
    check_temporary_folder,
    check_torch,
)

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


def examine_machine() -> Iterator[HealthCheck]:
    """Yield what each check finds. Takes half a second to measure the load, and as long as `import torch`.

    >>> next(examine_machine()).name
    'kernel'
    """
    yield check_kernel()
    for check in _LINUX_CHECKS if platform.system() == "Linux" else _PORTABLE_CHECKS:
        yield check()
