"""A turn, in its own process: `python -m benchmarks.published.turn JOB RESULT`.

It sets up the contestant. Then it takes the payloads, the smallest first: a few transfers to warm up, then transfers
until there are enough or the time is up. All arriving data is verified byte by byte, outside the timing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from time import perf_counter_ns
from typing import Any

import psutil

from benchmarks.common.command import write_json
from benchmarks.common.turn import CpuClocks, Placement, measure_ended_children_s
from benchmarks.published import TOTAL, Cell, Contestant, Experiment, Job, Payload, Peer, Received, too_large
from benchmarks.published.results import EXPERIMENTS, contestant, resolve

_WARM_UPS = 5
_RESET_PEAK = "5"
"""Written to /proc/pid/clear_refs, it resets the peak of the resident memory (proc(5))."""
_INTERRUPTED = "its process exited or was killed during its turn"


class WrongTransferError(Exception):
    """A transfer arrived with wrong contents."""


def main(job_file: str, result_file: str) -> None:
    """Take the turn and write its results."""
    job = Job(**json.loads(Path(job_file).read_text()))
    chosen, experiment = contestant(job.experiment, job.contestant), EXPERIMENTS[job.experiment]
    placement, begin = Placement(pinned=job.pinned and experiment.pinned), perf_counter_ns()
    with placement.on_other_cpus():
        peer: Peer = resolve(chosen.target)(**chosen.options)
    setup_ns = perf_counter_ns() - begin
    result: dict[str, Any] = {"setup_ns": setup_ns, "cells": []}
    try:
        for cell in _Measurement(peer, chosen, experiment, job, placement).cells():
            result["cells"].append(asdict(cell))
            # so that a payload that kills the process does not lose the other results
            write_json(Path(result_file), {**result, "reason": _INTERRUPTED})
    except WrongTransferError as error:
        result = {"wrong": str(error)}
    finally:
        peer.close()
    write_json(Path(result_file), {**result, "told": getattr(peer, "report_figures", {})})


@dataclass(frozen=True)
class _Transfer:
    ns: int
    parts_ns: dict[str, int]
    cpu_ns: int


@dataclass(frozen=True)
class _Measurement:
    peer: Peer
    contestant: Contestant
    experiment: Experiment
    job: Job
    placement: Placement

    def cells(self) -> Iterator[Cell]:
        """Yield the results payload by payload. After a payload that failed, the rest are skipped."""
        failed = ""
        for payload in self.experiment.payloads[self.job.size]:
            reason = failed or too_large(self.contestant, payload)
            try:
                yield Cell(payload.name, reason=reason) if reason else self._cell(payload)
            except WrongTransferError:
                raise
            except Exception as error:  # noqa: BLE001 - any error of a contestant's package is the reason
                failed = f"{type(error).__name__}: {error}".strip().splitlines()[-1][:200]
                yield Cell(payload.name, reason=failed)

    def _cell(self, payload: Payload) -> Cell:
        with self.placement.on_other_cpus():
            self.peer.prepare(payload)
        self._warm_up(payload)
        processes = _contestant_processes(launched=bool(self.contestant.launch))
        processes.reset_peak()
        transfers: list[_Transfer] = []
        begin = perf_counter_ns()
        for number in range(1, self.experiment.repetitions + 1):
            if number > 1 and perf_counter_ns() - begin > self.job.budget_s * 1e9:
                break
            transfers.append(self._transfer(payload, number, processes))
        return Cell(
            payload.name,
            ns=[transfer.ns for transfer in transfers],
            parts_ns={
                name: round(median(transfer.parts_ns[name] for transfer in transfers)) for name in transfers[0].parts_ns
            },
            cpu_ns=round(fmean(transfer.cpu_ns for transfer in transfers)),
            peak_bytes=processes.peak_bytes(),
        )

    def _warm_up(self, payload: Payload) -> None:
        """Transfer once, or a few times if a transfer is short: pools fill, pages are touched, code is loaded."""
        begin = perf_counter_ns()
        for number in range(_WARM_UPS):
            self._transfer(payload, number)
            if perf_counter_ns() - begin > self.job.budget_s * 1e9 / 4:
                break

    def _transfer(self, payload: Payload, number: int, processes: ContestantProcesses | None = None) -> _Transfer:
        """Take one transfer and verify it. Its data is released before the next one."""
        cpu_before_ns = processes.cpu_ns() if processes else 0
        begin = perf_counter_ns()
        received: Received = self.peer.transfer(number)
        ns = perf_counter_ns() - begin
        cpu_ns = processes.cpu_ns() - cpu_before_ns if processes else 0
        self._verify(received.data, payload, number)
        parts_ns = dict(received.parts_ns)
        return _Transfer(parts_ns.pop(TOTAL, ns), parts_ns, cpu_ns)

    def _verify(self, data: Any, payload: Payload, number: int) -> None:
        try:
            self.experiment.check(self.experiment.spoil(data) if self.job.corrupt else data, payload, number)
        except AssertionError as error:
            message = f"{self.contestant.name}, {self.experiment.name}, payload {payload.name}: {error}"
            raise WrongTransferError(message) from error


class ContestantProcesses:
    """The processes of a contestant after its warm-up: this one and `others`."""

    def __init__(self, others: Iterable[int]) -> None:
        """`others` are the ids of the other processes."""
        self._others = list(others)
        self._clocks = CpuClocks(self._others)

    def cpu_ns(self) -> int:
        """Return the time of all threads of all processes, and of the children that this process has waited for."""
        return self._clocks.read_ns() + round(measure_ended_children_s() * 1e9)

    def reset_peak(self) -> None:
        """Start a new measurement of the peak memory."""
        for pid in (os.getpid(), *self._others):
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)

    def peak_bytes(self) -> int:
        """Return the sum of the processes' peaks since `reset_peak`, or 0 if the system does not report them."""
        return sum(map(_peak_bytes, (os.getpid(), *self._others)))


def _peak_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _contestant_processes(*, launched: bool) -> ContestantProcesses:
    """Return the processes of both sides. With a launcher, the other side is a child of the same launcher."""
    root = psutil.Process(os.getppid()) if launched else psutil.Process()
    return ContestantProcesses({child.pid for child in root.children(recursive=True)} - {os.getpid()})


if __name__ == "__main__":
    main(*sys.argv[1:])
