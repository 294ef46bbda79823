"""Stages that tell how their process was started and what it has from the caller."""

import gc
import os
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

IMPORTED_BY = os.getpid()
BUILT = np.random.rand()  # noqa: NPY002 - drawn where the module is imported


class Draws:
    """Draws where it is built, and again for its first item: without a seed, of `reseed: false`."""

    def __init__(self) -> None:
        self.built = (random.random(), np.random.rand())  # noqa: NPY002

    def __call__(self, item: int) -> Any:
        del item
        time.sleep(0.02)  # so that every worker gets some
        return (os.getpid(), *self.built, random.random(), np.random.rand())  # noqa: NPY002


class TorchDraws:
    """The same of torch."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.built = float(torch.rand(()))

    def __call__(self, item: int) -> Any:
        del item
        time.sleep(0.02)
        return os.getpid(), self.built, float(self.torch.rand(()))


def count_torch_threads(item: int) -> tuple[int, float]:
    """The threads of torch, and an element of a product with them."""
    import torch

    ones = torch.ones(64, 64)
    return torch.get_num_threads(), float((ones @ ones)[0, 0]) + item


def has_imported(item: int, name: str) -> bool:
    """Whether the module is in memory where nothing of this process has asked for it."""
    del item
    return name in sys.modules


def describe_process(item: int) -> dict[str, Any]:
    """Everything that a worker has from its caller."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return {
        "item": item,
        "environment": {name: value for name, value in os.environ.items() if name != "LC_CTYPE"},
        "folder": str(Path.cwd()),
        "umask": status["Umask"],
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT_" in name},
        "cpus": sorted(os.sched_getaffinity(0)),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "blocked": status["SigBlk"],
        "ignored": status["SigIgn"],
        "caught": status["SigCgt"],
        "own_group": os.getpgid(0) == os.getpid(),
        "session": os.getsid(0),
        "cgroup": Path("/proc/self/cgroup").read_text(),
        "stdin": str(Path("/proc/self/fd/0").readlink()),
        "interrupt": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "thread_names": sorted(thread.name for thread in threading.enumerate()),
    }


def tell_importer(item: int) -> bool:
    """Whether this process has imported this module itself."""
    return os.getpid() == IMPORTED_BY and not item


def tell_attributes(item: int) -> tuple[int, str, str, int]:
    """What a process without privileges cannot set for itself, and the parent."""
    return (
        os.getpriority(os.PRIO_PROCESS, 0) + item,
        Path("/proc/self/oom_score_adj").read_text().strip(),
        Path("/proc/self/cgroup").read_text().strip(),
        os.getppid(),
    )


def tell_parent(item: int) -> tuple[int, int, int]:
    """The item, this process and its parent."""
    return item, os.getpid(), os.getppid()


def tell_collector(item: int) -> bool:
    """Whether the garbage collector works in this process."""
    return gc.isenabled()


def count_blas_threads(item: int) -> tuple[int, list[int]]:
    """The threads of the BLAS library that NumPy has loaded, after a product with them."""
    from threadpoolctl import threadpool_info

    ones = np.ones((200, 200))
    return int((ones @ ones)[0, 0]) + item, [pool["num_threads"] for pool in threadpool_info()]
