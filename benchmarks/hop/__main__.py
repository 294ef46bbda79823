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
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.common.command import add_corrupt, add_names, finish, make_parser, open_run, write_json
from benchmarks.common.turn import Placement, adopt_orphans
from benchmarks.hop import loop
from benchmarks.hop.payload import SIZES
from benchmarks.hop.schedule import CONTESTANTS, MISSING, Settings, measure
from benchmarks.hop.tables import hop_lines, make_hop_table, make_loop_table, targets

_FULL, _QUICK = Settings(rounds=9, budget_s=0.08), Settings(rounds=6, budget_s=0.03)
_LOOP = "loop"
_SIZES, _QUICK_SIZES = [_LOOP, *SIZES], [_LOOP, "0B", "1KB", "1.2MB"]
_NAMES = tuple(dict.fromkeys((*CONTESTANTS, *loop.CONTESTANTS)))


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the JSON if requested."""
    options = _options(arguments)
    default = _QUICK if options.quick else _FULL
    budget_s = options.budget_ms / 1000 if options.budget_ms else default.budget_s
    settings = Settings(options.rounds or default.rounds, budget_s, options.corrupt)
    names = [name for name in options.only if name not in MISSING]
    document: dict[str, Any] = {
        **open_run("hop", "header only: nothing is written or read", packages=("faster-fifo", "iceoryx2")),
        "placement": "",
        "missing": sorted(MISSING & set(options.only)),
        "loops": {},
        "rows": [],
        "reports": {},
    }
    if _LOOP in options.sizes:  # before this process is pinned
        adopt_orphans()
        in_loops = [name for name in names if name in loop.CONTESTANTS]
        document["loops"] = loop.measure_loops(in_loops, settings.rounds, options.loop_items)
    names = [name for name in names if name in CONTESTANTS]
    _preload_fork_server(names)
    placement = Placement(pinned=True)
    document["placement"] = placement.description
    for size in options.sizes:
        if size != _LOOP:
            rows, reports = measure(size, SIZES[size], names, settings, placement)
            document["rows"] += [asdict(row) for row in rows]
            document["reports"][size] = reports
            print(f"\n{size}: what stagepipe reports of its hops", *hop_lines(reports), sep="\n", flush=True)
            write_json(options.json, document)  # a run that is cut short keeps the sizes that it has measured
    verdicts = list(targets(document))
    if document["loops"]:
        print("", *make_loop_table(document), sep="\n")
    if document["rows"]:
        print("", *make_hop_table(document), "", *make_hop_table(document, touched=True), "", sep="\n")
    print(placement.description, "\nTargets, for untouched items:", *(t.line() for t in verdicts), sep="\n")
    finish(options.json, {**document, "targets": [asdict(target) for target in verdicts]})


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(__doc__, rounds=None)
    parser.add_argument("--quick", action="store_true", help="three sizes and short bursts: under a minute")
    add_names(parser, "--sizes", _SIZES, "size")
    add_names(parser, "--only", _NAMES, "contestant")
    parser.add_argument("--budget-ms", type=float, help="length of a burst in milliseconds")
    parser.add_argument("--loop-items", type=int, default=loop.ITEMS, help="half of the items of a loop")
    add_corrupt(parser)
    options = parser.parse_args(arguments)
    if options.quick and options.sizes == _SIZES:
        options.sizes = _QUICK_SIZES
    return options


def _preload_fork_server(names: list[str]) -> None:
    """Let the fork server, which has no threads, import what the peers' processes need."""
    modules = ["benchmarks.hop.peers"]
    if any(name.startswith("DataLoader") for name in names):
        modules.append("benchmarks.common.torch_parts")
    multiprocessing.set_forkserver_preload(modules)


if __name__ == "__main__":
    main(sys.argv[1:])
