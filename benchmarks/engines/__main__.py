"""Engines side by side on this machine: `python -m benchmarks.engines`.

    python -m benchmarks.engines [--sizes 100000 1200000] [--work-ms 0 1] [--rounds 6] [--json FILE]

local                       the local engine
islands                     `inside: local` on one node: the local engine in an actor of Ray
Ray Data                    written by hand as its documentation says: rows are columns of arrays, in order
Ray Data, any item, seeded  written by hand with what `engine: ray` adds: pickled items of any type, their arrays' bytes
                            beside the pickles, and seeds by item
engine: ray                 the config of the first

Each moves arrays through two stages, one worker each, in every round; a ratio is of one round. Start-up is left out.
The order of the contestants changes from round to round. Both Ray Data have the rows of a batch and of a read task and
the size of blocks that gave them most, of six such cuts in a turn of each before the first round. Ray runs on this
machine, with its CPUs. The CPU time is that of all processes below the measuring one; for islands, that of the island,
without Ray's own processes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.command import finish, open_run
from benchmarks.common.turn import order
from benchmarks.engines.contestants import (
    CONTESTANTS,
    LOCAL,
    LONGER,
    RAY_DATA,
    RAY_DATA_ITEMS,
    Job,
    choose_cut,
)
from benchmarks.engines.make_page import TITLES, list_targets, make_rows
from stagepipe.engine import RayCluster

_SIZES_BYTES = (100_000, 1_200_000, 38_500_000)
_WORKS_MS = (0.0, 1.0)
_BYTES_PER_ROUND = 4_000_000_000
"""Several times what waits between the stages when the first item arrives, which would come as a burst."""
_WORK_S_PER_ROUND = 2.0
_ITEM_LIMITS = (60, 8000)
_WIDTHS = (40, 26, 24, 24)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES_BYTES, help="bytes of an item")
    parser.add_argument("--work-ms", type=float, nargs="+", default=_WORKS_MS, help="CPU time of a stage for an item")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    arguments = parser.parse_args()
    document = open_run("engines", packages=["ray"])
    sections: list[dict[str, Any]] = []
    with closing(RayCluster("local")):  # what joins it later leaves it running
        for work_ms in arguments.work_ms:
            for nbytes in arguments.sizes:
                job = Job(_count_items(nbytes, work_ms), nbytes, work_ms)
                cuts = {name: choose_cut(job, name) for name in (RAY_DATA, RAY_DATA_ITEMS)}
                print(f"rows of a batch and a read task, MiB of a block: {cuts}", file=sys.stderr, flush=True)
                rounds = measure(job, cuts, arguments.rounds)
                place = {"count": job.count, "nbytes": nbytes, "work_ms": work_ms}
                sections.append({**place, "cuts": cuts, "rounds": rounds})
                _print_section(sections[-1])
    print(*(line for section in sections for line in list_targets(section)), sep="\n")
    finish(arguments.json, {**document, "sections": sections})


def _count_items(nbytes: int, work_ms: float) -> int:
    low, high = _ITEM_LIMITS
    high = min(high, int(_WORK_S_PER_ROUND * 1e3 / work_ms)) if work_ms else high
    return min(max(_BYTES_PER_ROUND // nbytes, low), high) // 10 * 10


def measure(job: Job, cuts: Mapping[str, tuple[int, int, int]], rounds: int) -> dict[str, list[list[float]]]:
    """Return, for each contestant, [items/s, CPU s an item] of each round. `cuts`: of those that have one."""
    found: dict[str, list[list[float]]] = {name: [] for name in CONTESTANTS}
    for number in range(rounds):
        for name in order(list(CONTESTANTS), number):
            print(f"{job.nbytes:,} bytes, {job.work_ms:g} ms, round {number + 1}: {name}", file=sys.stderr, flush=True)
            own = replace(job, count=job.count * LONGER.get(name, 1), cut=cuts.get(name, job.cut))
            speed = CONTESTANTS[name](own)
            found[name].append([speed.items_per_s, speed.cpu_s_per_item])
    return found


def _print_section(section: dict[str, Any]) -> None:
    size, work = f"{section['nbytes']:,} bytes", f"{section['work_ms']:g} ms of work a stage"
    print(f"\n{size}, {work}, {section['count']} items; local and islands {LONGER[LOCAL]} times as many")
    for cells in (TITLES, *make_rows(section)):
        print("".join(f"{cell:{width}}" for cell, width in zip(cells[1:], _WIDTHS, strict=True)).rstrip(), flush=True)


if __name__ == "__main__":
    main()
