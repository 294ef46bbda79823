"""The local engine: a plan's processes on this machine. A Plan in, items and a RunRecord out."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Self

import zmq

from stagepipe.core import Cursor, RunError
from stagepipe.engine.recording import Sampler, record_of
from stagepipe.plan import Plan, this_machine
from stagepipe.plan.limits import refuse_what_cannot_start, warnings_of
from stagepipe.plan.outlook.glimpse import Glimpse
from stagepipe.report import Progress, RunRecord
from stagepipe.runtime.consumer import Consumer, Lent
from stagepipe.runtime.letters import Letters
from stagepipe.runtime.lines import Show, show_lines
from stagepipe.runtime.probing import cpu_delay_ns, cpu_time_ns
from stagepipe.runtime.supervisor import Supervisor
from stagepipe.transport import Lease

_log = logging.getLogger("stagepipe")
_MENDS = {
    errno.EMFILE: "allow more file descriptors (`ulimit -n 4096`) or set fewer `workers`",
    errno.ENFILE: "the machine has no file descriptors left (fs.file-max), or no pages for pipes "
    "(fs.pipe-user-pages-hard): end other processes, or set fewer `workers`",
    errno.ENOMEM: "set a smaller `memory` or fewer `workers`, or lift the limit (`ulimit -v`, the container's)",
    errno.EAGAIN: "no more processes are allowed: raise the limit (`ulimit -u`, `pids.max` of the cgroup or the "
    "container), or set fewer `workers`",
    errno.EFBIG: "set a smaller `memory`, or lift the limit of a file's size (`ulimit -f`)",
}


@contextmanager
def _limits_told(plan: Plan) -> Iterator[None]:
    """A limit that is too low for the plan, as UsageError; one that the start runs into all the same, as RunError."""
    refuse_what_cannot_start(plan)
    if not plan.probe:
        for warning in warnings_of(plan, this_machine().memory_bytes):
            _log.warning("%s", warning)
    try:
        yield
    except (OSError, zmq.ZMQError) as error:
        number = error.errno or 0
        mend = _MENDS.get(number)
        if mend is None:
            raise
        workers = sum(process.workers for process in plan.processes)
        raise RunError(f"cannot start {workers} workers: {os.strerror(number)}; {mend}") from error


class EpochCutError(RunError):
    """The epoch was ended from another thread, on purpose."""


class LocalRun:
    """A run. A context manager; iterate `epoch` as often as wanted."""

    def __init__(self, plan: Plan, show: Show = show_lines) -> None:
        """Start the workers; what they print and log goes to `show`."""
        self.plan = plan
        self._begun_ns = perf_counter_ns()
        with _limits_told(plan):
            self._supervisor = Supervisor(plan, show)
            try:
                self._consumer = Consumer(self._supervisor)
            except BaseException:
                self._supervisor.close()
                raise
        self._sampler = Sampler(self._supervisor)
        self._status = "finished"
        self._error: str | None = None
        self._record: RunRecord | None = None

    def epoch(self, epoch: int, cursor: Cursor | None = None) -> Iterator[Any]:
        """The items of an epoch from `cursor` on, in order; work on them begins now. RunError when the run fails."""
        return self._guarded(self._consumer.epoch(epoch, cursor))

    def _guarded(self, items: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from items
            self._supervisor.letters.judge()
        except EpochCutError:
            raise
        except RunError as error:
            self._status, self._error = "failed", str(error)
            raise
        except KeyboardInterrupt:
            self._status = "interrupted"
            raise

    def interrupted(self) -> None:
        """The caller was interrupted while it worked on an item."""
        self._status = "interrupted"

    def length(self) -> int | None:
        """How many items an epoch gives; None where that is not known. Waits until all stages are built."""
        return self._supervisor.length()

    @property
    def committed(self) -> Cursor:
        """The cursor of the last delivered item."""
        return self._consumer.committed

    def block_of(self, address: int, nbytes: int) -> Lease | None:
        """See `Pipeline.block_of`."""
        return self._consumer.block_of(address, nbytes)

    @property
    def letters(self) -> Letters:
        """The items that failed and were skipped."""
        return self._supervisor.letters

    def progress(self) -> Progress:
        """Where the run stands."""
        return self._sampler.progress(self._consumer, finished=self._record is not None)

    def cut_off(self, error: RunError) -> None:
        """End the epoch under way, from another thread: its iteration raises `error`."""
        self._supervisor.cut_off(error)

    def cut(self) -> None:
        """End the epoch under way, from another thread, because nothing more is wanted: the run has not failed."""
        self._supervisor.cut_off(EpochCutError("nothing more is wanted of this run"))

    def lend(self) -> Lent:
        """For a caller that sends items on to other processes; before the first epoch. See `Consumer.lend`."""
        return self._consumer.lend()

    def seen(self) -> dict[str, Glimpse]:
        """What the processes of a probe run have told, by their names."""
        told, workers = self._supervisor.told, self._supervisor.workers
        return {
            worker.place.plan.name: Glimpse(
                items=tuple(each.item for each in events),
                cpu_ns=tuple(each.cpu_ns for each in events),
                delay_ns=tuple(each.delay_ns for each in events),
                last_cpu_ns=cpu_time_ns(worker.pid),
                last_delay_ns=cpu_delay_ns(worker.pid),
            )
            for number, worker in workers.items()
            if (events := list(told.get(number, ())))
        }

    def record(self) -> RunRecord:
        """What was counted so far, or in the whole run once it is closed."""
        if self._record is not None:
            return self._record
        self._consumer.flush()
        return record_of(self._supervisor, self._consumer, self._sampler, self._status, self._error)

    def close(self) -> None:
        """End the workers and give everything back; the record stays."""
        if self._record is not None:
            return
        try:
            self._sampler.sample_memory()
            self._consumer.close()
            self._supervisor.stop()
            self._record = self.record()
        finally:
            self._supervisor.close()
            self._consumer.forget()

    def __enter__(self) -> Self:
        """The run itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close it; an exception of the caller's block is noted in the record."""
        if kind is not None and self._status == "finished":
            self._status = "interrupted" if issubclass(kind, KeyboardInterrupt | GeneratorExit) else "failed"
            self._error = f"{kind.__name__}: {error}" if self._status == "failed" else None
        self.close()
