"""Measure one hop, from a producer process to its consumer: stagepipe against the alternatives, in one run.

    python -m benchmarks.hop [--quick] [--sizes 0B,1.2MB] [--only Pipe,memcpy] [--rounds 9] [--json FILE]

An item is a dict {id, label, image}. All contestants of a size run side by side; each round gives each of them one
burst, in a different order every time, after the items that piled up since the last one. The receiver has a processor
to itself. "us" is the time from one item to the next at the receiver, "CPU us" the processor time of both sides.
"Touched" means that the receiver reads every byte of the image. Items are checked byte by byte before and after.

stagepipe runs through its public API:

    copied       the producer yields the same prepared array every time, as the other producers do
    filled       the producer creates each image with `stagepipe.empty` and copies the prepared array into it
    passed on    filled by the source, and a stage in between returns its input: two hops, compared with one of others
    header only  only the first byte is written: the cost of a hop without its contents, which no user's item has

memcpy is not a transport: `np.copyto` into 16 warm buffers in turn, as many as a pipeline has in flight. The targets
refer to it, because a transport cannot overwrite what its reader may still hold. "memcpy to one" has a single buffer,
which stays in the cache. Queue, faster-fifo, SharedMemory and iceoryx2 are limited to what 16 MiB hold, 4 to 256 items.
"SharedMemory" makes a segment for each message; "reused" has one segment whose 16 slots take turns. It carries one size
and one type from one process to one other, and an image is valid only until the next one.

The size `loop` is what a user sees of small items: a loop takes 30,000 dicts, and 30,000 more, from a pipeline that has
just started, or from `Connection.recv`. Each turn is a new process, alone, with the kernel's placement. The array of
0 bytes is in half of the loops: its pickling costs every contestant ten microseconds, which hide the hop.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common.command import finish, machine, machine_line, parse_names, repeat_command, write_json
from benchmarks.common.turn import Placement, adopt_orphans
from benchmarks.hop import loop
from benchmarks.hop.payload import SIZES
from benchmarks.hop.schedule import CONTESTANTS, MISSING, Row, Settings, measure
from benchmarks.hop.tables import DESCRIPTION, hop_table, loop_table, size_table, targets

_FULL, _QUICK = Settings(rounds=9, budget_s=0.08), Settings(rounds=6, budget_s=0.03)
_LOOP = "loop"
_SIZES, _QUICK_SIZES = (_LOOP, *SIZES), (_LOOP, "0B", "1KB", "1.2MB")
_NAMES = tuple(dict.fromkeys((*CONTESTANTS, *loop.CONTESTANTS)))
_PACKAGES = ("faster-fifo", "iceoryx2")


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the JSON if requested."""
    options = _options(arguments)
    default = _QUICK if options.quick else _FULL
    budget_s = options.budget_ms / 1000 if options.budget_ms else default.budget_s
    settings = Settings(options.rounds or default.rounds, budget_s, options.corrupt)
    wanted, sizes = options.only, options.sizes or (_QUICK_SIZES if options.quick else _SIZES)
    missing, names = sorted(MISSING & set(wanted)), [name for name in wanted if name not in MISSING]
    machine_found, begin = machine(_PACKAGES), time.monotonic()
    command = repeat_command("hop")
    print(machine_line(machine_found), DESCRIPTION, f"Repeat: {command}", sep="\n")
    if missing:
        print(f"Not installed: {', '.join(missing)}")
    loops: loop.LoopFigures = {}
    if _LOOP in sizes:  # before this process is pinned
        adopt_orphans()
        in_loops = [name for name in names if name in loop.CONTESTANTS]
        loops = loop.measure_loops(in_loops, settings.rounds, options.loop_items)
        print(*loop_table(loops, options.loop_items), sep="\n", flush=True)
    names = [name for name in names if name in CONTESTANTS]
    _preload_fork_server(names)
    placement = Placement(pinned=True)
    print(placement.description)
    rows: list[Row] = []
    reports: dict[str, dict[str, Any]] = {}
    for size in sizes:
        if size != _LOOP:
            measured, reports[size] = measure(size, SIZES[size], names, settings, placement)
            rows += measured
            print(*size_table(measured), *hop_table(reports[size]), sep="\n", flush=True)
        verdicts = list(targets(rows, reports, loops))
        document = {
            "command": command,
            "machine": machine_found,
            "placement": placement.description,
            "missing": missing,
            "loops": loops,
            "rows": [asdict(row) for row in rows],
            "reports": reports,
            "targets": [asdict(target) for target in verdicts],
        }
        write_json(options.json, document)  # a run that is cut short keeps the sizes that it has measured
    print("\nTargets, for untouched items:", *(target.line() for target in verdicts), sep="\n")
    finish(begin, options.json, document)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="three sizes and short bursts: under a minute")
    parser.add_argument("--sizes", type=parse_names(_SIZES, "size"), help=f"sizes: {', '.join(_SIZES)}")
    parser.add_argument(
        "--only", type=parse_names(_NAMES, "contestant"), default=_NAMES, help=f"contestants: {', '.join(_NAMES)}"
    )
    parser.add_argument("--rounds", type=int, help="number of rounds; each contestant has a turn in each")
    parser.add_argument("--budget-ms", type=float, help="length of a burst in milliseconds")
    parser.add_argument("--loop-items", type=int, default=loop.ITEMS, help="half of the items of a loop")
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    parser.add_argument(
        "--corrupt", help="corrupt one byte of what this contestant delivers; the check must stop the run"
    )
    return parser.parse_args(arguments)


def _preload_fork_server(names: list[str]) -> None:
    """Let the fork server, which has no threads, import what the peers' processes need."""
    modules = ["benchmarks.hop.peers"]
    if any(name.startswith("DataLoader") for name in names):
        modules.append("benchmarks.common.torch_parts")
    multiprocessing.set_forkserver_preload(modules)


if __name__ == "__main__":
    main(sys.argv[1:])
