"""What the system allows a run, and what a plan needs of it: a limit that is too low is told before anything starts.

The needs are counted, not guessed: what each worker takes in the caller's process and in its own (measured with
/proc/PID/fd and /proc/PID/status, and held by tests/runtime/test_limits.py).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from stagepipe.config import PipelineSpec
from stagepipe.core import UsageError
from stagepipe.core.cgroup import tasks_limit
from stagepipe.core.units import format_bytes
from stagepipe.plan.curves import Curves
from stagepipe.plan.machine import this_machine
from stagepipe.plan.make import make_plan
from stagepipe.plan.model import Plan
from stagepipe.transport import span_of

_WORKER_FDS = 10
"""In the caller's process: arena, its mapping, both ends of the return pipe, ear, life, last words, pidfd, output and
its connection. A worker takes three for each worker before it, so the caller's process is the first to run short."""
_HOP_FDS = 2
_FDS = 40
"""The board, bells, zmq's own, what a start takes for a moment, and some for the source's and the sink's files."""
_WORKER_TASKS = 4
"""Main thread, control thread and two of zmq's. Threads that a stage starts come on top."""
_TASKS = 6
_WORKER_ADDRESSES_BYTES = 400 << 20
"""Of a Python with NumPy and its threads' stacks and heaps. torch takes gigabytes on top."""
_LEAST_MEMORY_BYTES = 16 << 20
_CROWD = 4096
"""A limit so far above what is needed is not compared with what the user runs: that reads a file for each process."""
_ADMIN, _RESOURCE = 1 << 21, 1 << 24  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE: RLIMIT_NPROC does not bind them, setrlimit(2)


@dataclass(frozen=True)
class Allowed:
    """What the system lets this process have; None: as much as it likes. `*_left`: beyond what is in use already.

    `tasks_left`, of processes and threads, carries the name of its limit.
    """

    memory_bytes: int
    fds: int | None = None
    fds_left: int | None = None
    address_bytes: int | None = None
    address_left_bytes: int | None = None
    file_bytes: int | None = None
    tasks_left: tuple[tuple[str, int], ...] = ()


def allowed(needed_tasks: int = 0) -> Allowed:
    """What this process may have now."""
    fds, address = _rlimit(resource.RLIMIT_NOFILE), _rlimit(resource.RLIMIT_AS)
    return Allowed(
        this_machine().memory_bytes,
        fds,
        None if fds is None else fds - sum(1 for _ in Path("/proc/self/fd").iterdir()),
        address,
        None if address is None else address - int(Path("/proc/self/statm").read_text().split()[0]) * _page_bytes(),
        _rlimit(resource.RLIMIT_FSIZE),
        tuple(_tasks_left(needed_tasks)),
    )


def refuse_what_cannot_start(plan: Plan) -> None:
    """UsageError, with every limit that is too low for the plan: what it is, what is needed, and the mend."""
    short = list(shortages(plan, allowed(tasks_of(plan))))
    if short:
        raise UsageError("\n".join(f"the run cannot start: {each}" for each in short))


def refuse_what_cannot_run(spec: PipelineSpec) -> tuple[str, ...]:
    """The same for a spec alone, before anything is measured or probed; else what is good to know."""
    plan = _rough_plan(spec)
    refuse_what_cannot_start(plan)
    return tuple(warnings_of(plan, this_machine().memory_bytes))


def warnings_of(plan: Plan, memory_bytes: int) -> Iterator[str]:
    """What may go well and may not, on a machine with so much memory."""
    if plan.memory_bytes > memory_bytes:
        yield (
            f"`memory` is {format_bytes(plan.memory_bytes)}, but the machine or the cgroup allows "
            f"{format_bytes(memory_bytes)}: the kernel may kill workers before that is in use"
        )


def tasks_of(plan: Plan) -> int:
    """How many processes and threads it starts, without those of the stages."""
    return _WORKER_TASKS * _workers(plan) + _TASKS


def shortages(plan: Plan, system: Allowed) -> Iterator[str]:
    """A sentence for each limit that is too low. Pure."""
    workers = _workers(plan)
    fds = _WORKER_FDS * workers + _HOP_FDS * len(plan.hops) + len(plan.stretches) + _FDS
    if system.fds is not None and system.fds_left is not None and system.fds_left < fds:
        yield (
            f"{workers} workers need {fds} file descriptors, and {max(system.fds_left, 0)} are left of "
            f"{system.fds} (`ulimit -n`); set it to {_rounded(system.fds - system.fds_left + fds)}, "
            "or set fewer `workers`, or fuse stages"
        )
    tasks = tasks_of(plan)
    for name, left in system.tasks_left:
        if left < tasks:
            yield (
                f"{workers} workers need {tasks} processes and threads, and {max(left, 0)} are left ({name}); "
                "raise it, or set fewer `workers`, or fuse stages"
            )
    yield from _addresses(plan, system)
    bytes_needed = span_of(plan.memory_bytes) * (plan.max_restarts + 1)
    if system.file_bytes is not None and system.file_bytes < bytes_needed:
        fits = int(system.file_bytes / (plan.max_restarts + 1) / span_of(1 << 20) * (1 << 20))
        yield (
            f"shared memory needs files in memory of {format_bytes(bytes_needed)}, mostly holes, and files may have "
            f"{format_bytes(system.file_bytes)} (`ulimit -f`); lift it (`ulimit -f unlimited`){_smaller(fits)}"
        )


def _addresses(plan: Plan, system: Allowed) -> Iterator[str]:
    """Of the process that reads from most others; the caller's is one of them."""
    if system.address_bytes is None or system.address_left_bytes is None:
        return
    readers = [(left.workers + 1, _WORKER_ADDRESSES_BYTES) for left in plan.processes[:-1]]
    readers.append((plan.processes[-1].workers, system.address_bytes - system.address_left_bytes))
    arenas, own = max(readers, key=lambda reader: reader[0] * span_of(plan.memory_bytes) + reader[1])
    needed = arenas * span_of(plan.memory_bytes) + own
    if system.address_bytes < needed:
        fits = int((system.address_bytes - own) / arenas / span_of(1 << 20) * (1 << 20))
        yield (
            f"a process needs {format_bytes(needed)} of addresses to map the shared memory of {arenas} workers, most "
            f"of it never used, and may have {format_bytes(system.address_bytes)} (`ulimit -v`); lift it "
            f"(`ulimit -v unlimited`){_smaller(fits)}"
        )


def _smaller(memory_bytes: int) -> str:
    return f", or set `memory: {memory_bytes >> 20}MiB`" if memory_bytes >= _LEAST_MEMORY_BYTES else ""


def _rounded(count: int) -> int:
    """To the next multiple of 1,024."""
    return -(-count // 1024) * 1024


def _workers(plan: Plan) -> int:
    return sum(process.workers for process in plan.processes)


def _rough_plan(spec: PipelineSpec) -> Plan:
    """What costs are measured and which GPUs are found here does not matter to the limits."""
    anywhere = replace(spec, stages=tuple(replace(stage, device=None) for stage in spec.stages))
    return make_plan(anywhere, this_machine(), Curves.simple((1, 2), (1, 1), (1, 1)))


def _rlimit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE")


def _tasks_left(needed: int) -> Iterator[tuple[str, int]]:
    group = tasks_limit()
    if group is not None:
        yield f"`pids.max` of the cgroup is {group[0]}", group[0] - group[1]
    own = _rlimit(resource.RLIMIT_NPROC)
    if own is not None and own < needed + _CROWD and not _unbound():
        yield f"`ulimit -u` is {own}", own - _tasks_of_this_user()


def _unbound() -> bool:
    status = Path("/proc/self/status").read_text()
    capabilities = int(status.partition("CapEff:")[2].split()[0], 16)
    return os.getuid() == 0 or bool(capabilities & (_ADMIN | _RESOURCE))


def _tasks_of_this_user() -> int:
    count = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if folder.stat().st_uid == os.getuid():
                    count += len(list((folder / "task").iterdir()))
            except OSError:  # it has ended
                continue
    return count
