"""Measure the CPU time of a worker for each small item, by part: what a call of a stage costs.

    python -m benchmarks.small_items [--rounds 7] [--json FILE]

The item is a small dict, and the stages return it. CPU time, not wall time, so a busy machine matters little. Each
figure is the median of the rounds, with the lowest and the highest; each is taken in a fresh process, that makes the
generators lazy as a worker does, and the rounds of all rows are interleaved.

    call                the stage is called and timed, with `reseed: false`: context, errors, run time, counters, board
    call, seeded        the same, seeded; nothing is drawn
    call, torch         the same with torch imported and used: its generator is seeded for each item
    call, torch unused  the same in a worker that was forked from a server with torch and has not used it
    call, draws         seeded, and the stage draws from `random`
    call, draws NumPy   seeded, and the stage draws from `numpy.random`
    call, eager         seeded before each item, as inline and before lazy seeding
    three fused stages  three of `call, seeded` in one process
    hop's durations     what the recorders of both sides of a hop take to keep the item's phases
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time_ns
from typing import Any, Final

import numpy as np

from benchmarks.common.machine import machine, machine_line
from stagepipe.core import Key, watch_torch_use
from stagepipe.plan import StagePlan
from stagepipe.runtime import StageChain, StageRunner, install_lazy_seeding
from stagepipe.spec import Target
from stagepipe.timing import RECEIVE_PHASES, SEND_PHASES, Board, BoardLayout, DurationRecorder, make_board_fd

SMALL_DICT: Final = {"id": 123, "label": 7, "path": "images/000123.jpg"}
_ITEMS = 50_000


class _Discard:
    """An output that drops what it gets."""

    def send_item(self, _key: Key, box: list[Any], _samples: int, _meta: bytes) -> None:
        box.clear()


def _keep(item: Any) -> Any:
    return item


def _draw(item: Any) -> Any:
    random.random()
    return item


def _draw_numpy(item: Any) -> Any:
    np.random.random()  # noqa: NPY002 - what is measured
    return item


def _call(function: Callable[[Any], Any], *, stage_count: int = 1, reseed: bool = True, lazy: bool = True) -> float:
    """Return the CPU time of an item in ns."""
    if lazy and not install_lazy_seeding():
        raise RuntimeError("the generators cannot be lazy: a function of theirs was imported before")
    layout = BoardLayout(1, (stage_count,))
    region = Board(make_board_fd(layout), layout).region(0)
    plans = [
        StagePlan(name=f"stage{index}", index=index + 1, target=Target(function, {}), reseed=reseed)
        for index in range(stage_count)
    ]
    stages = [StageRunner(plan, 0, 0, None, region.stage_region(plan.index - 1)) for plan in plans]
    chain = StageChain(stages, _Discard(), region)  # type: ignore[arg-type]  # sends nothing but items

    def push_all() -> None:
        for number in range(_ITEMS):
            key = (number,)
            region.set_current_item(key)
            chain.push(key, [SMALL_DICT], 1, b"")
            region.clear_current_item(key)
        for stage in stages:
            stage.flush()

    return _time_ns(push_all)


def _call_with_torch(*, used: bool) -> float:
    import torch  # noqa: F401 - it is imported by the fork server, or the stage

    if not used:
        watch_torch_use()
    return _call(_keep)


def _record_hop() -> float:
    layout = BoardLayout(1, (1,))
    region = Board(make_board_fd(layout), layout).region(0)
    send_count, receive_count = len(SEND_PHASES), len(RECEIVE_PHASES)
    send = DurationRecorder(region.send_histogram_words, send_count, region.send_ledger)
    receive = DurationRecorder(region.receive_histogram_words, receive_count, region.receive_ledger)

    def record_all() -> None:
        for number in range(_ITEMS):
            send.add((number,) * send_count, (0, 100, number))
            receive.add((number,) * receive_count, (0, 100, number))

    return _time_ns(record_all)


def _time_ns(run: Callable[[], None]) -> float:
    run()  # caches and lazy imports
    started_ns = process_time_ns()
    run()
    return (process_time_ns() - started_ns) / _ITEMS


ROWS: Final[dict[str, Callable[[], float]]] = {
    "call": lambda: _call(_keep, reseed=False),
    "call, seeded": lambda: _call(_keep),
    "call, torch": lambda: _call_with_torch(used=True),
    "call, torch unused": lambda: _call_with_torch(used=False),
    "call, draws": lambda: _call(_draw),
    "call, draws NumPy": lambda: _call(_draw_numpy),
    "call, eager": lambda: _call(_keep, lazy=False),
    "three fused stages": lambda: _call(_keep, stage_count=3),
    "hop's durations": _record_hop,
}


def _measure_in_new_process(row: str) -> float:
    command = [sys.executable, "-m", "benchmarks.small_items", "--row", row]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--row", choices=ROWS, help="measure one row in this process and print its ns")
    options = parser.parse_args(arguments)
    if options.row is not None:
        sys.stdout.write(f"{ROWS[options.row]()}\n")
        return
    machine_found = machine()
    times: dict[str, list[float]] = {row: [] for row in ROWS}
    for _ in range(options.rounds):
        for row, found in times.items():
            found.append(_measure_in_new_process(row))
    sys.stdout.write(machine_line(machine_found) + "\n")
    for row, found in times.items():
        median_us, min_us, max_us = (value / 1000 for value in (statistics.median(found), min(found), max(found)))
        sys.stdout.write(f"{row:20} {median_us:7.2f} us  ({min_us:.2f} to {max_us:.2f})\n")
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine_found, "ns": times}, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
