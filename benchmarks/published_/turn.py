"""What runs in the process of a turn: `python -m published_.turn JOB RESULT`.

Set-up; then payload by payload, from the smallest up: a transfer to warm up, and transfers until there are enough of
them or the time is up. All that came is verified, byte by byte, outside of the timing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import psutil

from published_.clocks import Sides
from published_.model import Cell, Contestant, Experiment, Job, Payload, Peer, Received
from published_.needs import too_large
from published_.registry import EXPERIMENTS, contestant, target
from side_by_side.placing import Places

WRONG = 3
"""The exit status that says: something arrived wrong."""


def main(job_file: str, result_file: str) -> None:
    """Run it, and write what it tells. An AssertionError of a check ends with WRONG."""
    job = Job(**json.loads(Path(job_file).read_text()))
    who, experiment = contestant(job.experiment, job.contestant), EXPERIMENTS[job.experiment]
    places, begin = Places(pinned=job.pinned and experiment.pinned), perf_counter_ns()
    with places.elsewhere():
        peer: Peer = target(who.target)(**who.options)
    setup_ns = perf_counter_ns() - begin
    try:
        cells = list(_cells(peer, who, experiment, job, places))
    except AssertionError as error:
        print(error, file=sys.stderr)
        raise SystemExit(WRONG) from error
    finally:
        peer.close()
    result = {"cells": [asdict(cell) for cell in cells], "setup_ns": setup_ns, "told": getattr(peer, "told", {})}
    Path(result_file).write_text(json.dumps(result))


def _cells(peer: Peer, who: Contestant, experiment: Experiment, job: Job, places: Places) -> Iterator[Cell]:
    failed = ""
    for payload in experiment.payloads[job.size]:
        reason = too_large(who, payload) or failed
        if reason:
            yield Cell(payload.name, reason=reason)
            continue
        try:
            with places.elsewhere():
                peer.prepare(payload)
            yield _cell(peer, payload, experiment, job, bool(who.launch))
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a contestant's package raises is the reason
            failed = f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200] if str(error) else ''}"
            yield Cell(payload.name, reason=failed)


def _cell(peer: Peer, payload: Payload, experiment: Experiment, job: Job, launched: bool) -> Cell:  # noqa: FBT001
    cell = Cell(payload.name)
    _once(peer, payload, experiment, -1, job.corrupt)
    sides = _sides(launched=launched)
    sides.reset_peak()
    begin = perf_counter_ns()
    for number in range(experiment.repetitions):
        if number >= experiment.least and perf_counter_ns() - begin > job.budget_s * 1e9:
            break
        before = sides.cpu_ns()
        ns, parts, after = _once(peer, payload, experiment, number, job.corrupt, sides)
        cell.ns.append(ns)
        cell.parts_ns.append(parts)
        cell.cpu_ns.append(after - before)
    return Cell(**{**asdict(cell), "peak_bytes": sides.peak_bytes()})


def _once(
    peer: Peer, payload: Payload, experiment: Experiment, number: int, corrupt: bool, sides: Sides | None = None  # noqa: FBT001
) -> tuple[int, dict[str, int], int]:
    """The duration, its parts, and the processor time behind it. What was received is let go before the next."""
    begin = perf_counter_ns()
    received: Received = peer.transfer(number + 1)
    ns = perf_counter_ns() - begin
    cpu_ns = sides.cpu_ns() if sides else 0
    data: Any = experiment.spoil(received.data) if corrupt else received.data
    try:
        experiment.check(data, payload, number + 1)
    except AssertionError as error:
        message = f"{experiment.name}, {job_name(payload)}: {error}"
        raise AssertionError(message) from error
    return ns, received.parts_ns, cpu_ns


def job_name(payload: Payload) -> str:
    """How a payload is called in a message."""
    return f"payload {payload.name}"


def _sides(*, launched: bool) -> Sides:
    """Both sides' processes. Of one that was launched, the other side is a child of the same launcher."""
    top = psutil.Process(os.getppid()) if launched else psutil.Process()
    return Sides(os.getpid(), {child.pid for child in top.children(recursive=True)} - {os.getpid()})


if __name__ == "__main__":
    main(*sys.argv[1:])
