"""What runs in the process of a turn: `python -m published_.turn JOB RESULT`.

Set-up; then payload by payload, from the smallest up: transfers to warm up, and transfers until there are enough or the
time is up. All that came is verified, byte by byte, outside of the timing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from time import perf_counter_ns
from typing import Any

import psutil

from published_.clocks import Sides
from published_.model import Cell, Contestant, Experiment, Job, Payload, Peer, Received
from published_.needs import too_large
from published_.registry import EXPERIMENTS, contestant, target
from side_by_side.placing import Places

TOTAL = "total"
"""The part that counts instead of the whole of `transfer`, where a contestant has to fetch its parts afterwards."""

_WARM_UPS = 5
_CUT = "its process ended, or was ended, in the middle of its turn"


class WrongError(Exception):
    """Something arrived that was not sent so."""


def main(job_file: str, result_file: str) -> None:
    """Take the turn, and write what it tells."""
    job = Job(**json.loads(Path(job_file).read_text()))
    who, experiment = contestant(job.experiment, job.contestant), EXPERIMENTS[job.experiment]
    places, begin = Places(pinned=job.pinned and experiment.pinned), perf_counter_ns()
    with places.elsewhere():
        peer: Peer = target(who.target)(**who.options)
    setup_ns = perf_counter_ns() - begin
    result: dict[str, Any] = {"setup_ns": setup_ns, "cells": []}
    try:
        for cell in _Measuring(peer, who, experiment, job, places).cells():
            result["cells"].append(asdict(cell))
            _keep(Path(result_file), {**result, "reason": _CUT})
    except WrongError as error:
        result = {"wrong": str(error)}
    finally:
        peer.close()
    _keep(Path(result_file), {**result, "told": getattr(peer, "told", {})})


def _keep(path: Path, result: dict[str, Any]) -> None:
    """What there is so far, so that a payload which ends the process does not take the others along."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(result))
    fresh.replace(path)


@dataclass(frozen=True)
class _Taken:
    ns: int
    parts_ns: dict[str, int]
    cpu_ns: int


@dataclass(frozen=True)
class _Measuring:
    peer: Peer
    who: Contestant
    experiment: Experiment
    job: Job
    places: Places

    def cells(self) -> Iterator[Cell]:
        """Payload by payload. Behind one that failed the contestant is not asked for another."""
        failed = ""
        for payload in self.experiment.payloads[self.job.size]:
            reason = failed or too_large(self.who, payload)
            try:
                yield Cell(payload.name, reason=reason) if reason else self._cell(payload)
            except WrongError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a contestant's package raises is the reason
                failed = f"{type(error).__name__}: {error}".strip().splitlines()[-1][:200]
                yield Cell(payload.name, reason=failed)

    def _cell(self, payload: Payload) -> Cell:
        with self.places.elsewhere():
            self.peer.prepare(payload)
        self._warm_up(payload)
        sides = _sides(launched=bool(self.who.launch))
        sides.reset_peak()
        taken: list[_Taken] = []
        begin = perf_counter_ns()
        for number in range(1, self.experiment.repetitions + 1):
            if number > self.experiment.least and perf_counter_ns() - begin > self.job.budget_s * 1e9:
                break
            taken.append(self._transfer(payload, number, sides))
        return Cell(
            payload.name,
            ns=[each.ns for each in taken],
            parts_ns={name: round(median(each.parts_ns[name] for each in taken)) for name in taken[0].parts_ns},
            cpu_ns=round(fmean(each.cpu_ns for each in taken)),
            peak_bytes=sides.peak_bytes(),
        )

    def _warm_up(self, payload: Payload) -> None:
        """Once at least; where a transfer is short, a few times: pools fill, pages are touched, code is loaded."""
        begin = perf_counter_ns()
        for number in range(_WARM_UPS):
            self._transfer(payload, number)
            if perf_counter_ns() - begin > self.job.budget_s * 1e9 / 4:
                break

    def _transfer(self, payload: Payload, number: int, sides: Sides | None = None) -> _Taken:
        """One transfer, verified. What came is let go before the next."""
        cpu_before_ns = sides.cpu_ns() if sides else 0
        begin = perf_counter_ns()
        received: Received = self.peer.transfer(number)
        ns = perf_counter_ns() - begin
        cpu_ns = sides.cpu_ns() - cpu_before_ns if sides else 0
        self._verify(received.data, payload, number)
        parts_ns = dict(received.parts_ns)
        return _Taken(parts_ns.pop(TOTAL, ns), parts_ns, cpu_ns)

    def _verify(self, data: Any, payload: Payload, number: int) -> None:
        try:
            self.experiment.check(self.experiment.spoil(data) if self.job.corrupt else data, payload, number)
        except AssertionError as error:
            message = f"{self.who.name}, {self.experiment.name}, payload {payload.name}: {error}"
            raise WrongError(message) from error


def _sides(*, launched: bool) -> Sides:
    """Both sides' processes. Of one that was launched, the other side is a child of the same launcher."""
    top = psutil.Process(os.getppid()) if launched else psutil.Process()
    return Sides(os.getpid(), {child.pid for child in top.children(recursive=True)} - {os.getpid()})


if __name__ == "__main__":
    main(*sys.argv[1:])
