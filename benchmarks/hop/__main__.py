"""Measure one hop, from a producer process to its consumer: stagepipe against the alternatives, in one run.

    python -m benchmarks.hop [--quick] [--sizes 0B,1.2MB] [--only Pipe,memcpy] [--rounds 9] [--json FILE]

An item is a dict {id, label, image}. All contestants of a size run side by side; each round gives each of them one
burst, in a different order every time. Items that piled up since the last burst are taken before the timing starts.
"us" is the steady-state time from one item to the next at the receiver. "CPU us" is the processor time of both sides
together, including the operating system's work for them. "Touched" means that the receiver reads every byte of the
image.

stagepipe runs through its public API; its config has only a source (and, for one contestant, a stage):

    copied       the producer yields the same prepared array every time, as the other producers do; the transport
                 copies it
    loaned       the producer creates each image with `stagepipe.empty` and writes only its first byte: the cost of a
                 hop without the cost of its contents. It keeps no reference to an array that it has yielded
    filled       the same, but the producer copies a prepared array into it: the copy of "copied", made by the producer
    passed on    loaned by the source, and a stage in between returns its input: three processes and two hops, compared
                 with one hop of the others

memcpy is not a transport: it calls `np.copyto` into 16 warm buffers in turn, as many as a pipeline has in flight. The
targets refer to it, because a transport cannot overwrite what its reader may still hold. "memcpy to one" has a single
buffer, which stays in the cache. Pipe (64 KiB of buffer) and stagepipe have hundreds of small items in flight; Queue
and SharedMemory are limited to what 16 MiB hold, 4 to 256 items. DataLoader sends its arrays as they are (NumPy) or
converts them to tensors (torch, its default). Items are checked byte by byte before and after the timing; their numbers
are checked throughout.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common.machine import machine, machine_line, repeat_command
from benchmarks.hop.payload import SIZES
from benchmarks.hop.schedule import CONTESTANTS, Effort, Row, measure
from benchmarks.hop.tables import describe, hop_table, size_table
from benchmarks.hop.targets import targets

_FULL, _QUICK = Effort(rounds=9, budget_s=0.08), Effort(rounds=6, budget_s=0.03)
_QUICK_SIZES = ("0B", "1KB", "1.2MB")


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the JSON if requested."""
    options = _options(arguments)
    effort = _QUICK if options.quick else _FULL
    effort = Effort(options.rounds or effort.rounds, options.budget_ms / 1000 if options.budget_ms else effort.budget_s)
    names = _parse_names(options.only, list(CONTESTANTS), "contestant")
    sizes = _parse_names(options.sizes, list(_QUICK_SIZES if options.quick else SIZES), "size", list(SIZES))
    _preload_fork_server(names)
    machine_found, begin = machine(), time.monotonic()
    command = repeat_command("hop")
    print(machine_line(machine_found), describe(effort.rounds), f"Repeat: {command}", sep="\n")
    rows: list[Row] = []
    reports: dict[str, dict[str, Any]] = {}
    for size in sizes:
        measured, reports[size] = measure(size, SIZES[size], names, effort, options.corrupt)
        rows += measured
        print(*size_table(measured), *hop_table(reports[size]), sep="\n", flush=True)
    verdicts = list(targets(rows, reports))
    print("\nTargets, for untouched items:", *(target.line() for target in verdicts), sep="\n")
    print(f"{time.monotonic() - begin:.0f} s; load average {machine()['load_average']:.1f} at the end")
    if options.json:
        document = {
            "command": command,
            "machine": machine_found,
            "rounds": effort.rounds,
            "rows": [asdict(row) for row in rows],
            "reports": reports,
            "targets": [asdict(target) for target in verdicts],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="three sizes and short bursts: under a minute")
    parser.add_argument("--sizes", help=f"sizes: {', '.join(SIZES)}")
    parser.add_argument("--only", help=f"contestants: {', '.join(CONTESTANTS)}")
    parser.add_argument("--rounds", type=int, help="number of rounds; each contestant has a turn in each")
    parser.add_argument("--budget-ms", type=float, help="length of a burst in milliseconds")
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    parser.add_argument(
        "--corrupt", help="corrupt one byte of what this contestant delivers; the check must stop the run"
    )
    return parser.parse_args(arguments)


def _parse_names(text: str | None, default: list[str], kind: str, known: list[str] | None = None) -> list[str]:
    if text is None:
        return default
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in (known or default):
            message = f"unknown {kind} {name!r}; choose from {', '.join(known or default)}"
            raise SystemExit(message)
    return chosen


def _preload_fork_server(names: list[str]) -> None:
    """Let the fork server, which has no threads, import what the peers' processes need."""
    modules = ["benchmarks.hop.peers"]
    if any(name.startswith("DataLoader") for name in names):
        modules.append("benchmarks.hop.stream")
    multiprocessing.set_forkserver_preload(modules)


if __name__ == "__main__":
    main(sys.argv[1:])
