"""The trace of a run: what each process has written into its ring, and the deaths of workers, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from stagepipe.plan import SINK_NAME
from stagepipe.runtime.supervisor import Supervisor, WorkerRestart
from stagepipe.timing import TraceRing, read_trace


@dataclass(frozen=True)
class ProcessTrace:
    """The ring of a worker slot, or of the consumer. `group`: its place in the chain, and so the hop that it feeds."""

    name: str
    group: int
    ring: TraceRing


@dataclass(frozen=True)
class RunTrace:
    """The rings of all processes in the order of the chain, the consumer's last, and the deaths that led to restarts.

    The processes of `restarts` are indices of `processes`.
    """

    processes: tuple[ProcessTrace, ...]
    restarts: tuple[WorkerRestart, ...]


def take_run_trace(supervisor: Supervisor) -> RunTrace:
    """Return the trace of a run that was started with one. Its workers have ended, or the last records may be torn."""
    resources = supervisor.resources
    names = [(slot.name, slot.worker_group) for slot in resources.slots]
    names.append((SINK_NAME, len(supervisor.plan.processes)))
    return RunTrace(
        tuple(
            ProcessTrace(name, group, read_trace(resources.trace_fds[index]))
            for index, (name, group) in enumerate(names)
        ),
        tuple(supervisor.recovery.restarts.history),
    )
