"""One hop, from a producer process to its consumer: stagepipe beside what one would use instead, in one run.

    python benchmarks/hop.py [--quick] [--sizes 0B,1.2MB] [--only Pipe,memcpy] [--rounds 9] [--json FILE]

An item is a dict {id, label, image}. All contestants of a size are alive side by side; each round gives each of them a
burst in turn, in another order every time. Before a burst is timed, what had piled up since the last one is taken away.
"us" is the time from one item to the next at the receiver, in the steady state; "CPU us" is the processor time of both
sides together, the operating system's work for them included. Touched: the receiver reads every byte of the image.

stagepipe, through its public API, with nothing in the config but its source (and, for one contestant, a stage):

    copied       the producer yields the same prepared array over and over, as it does for all the others; it is copied
    loaned       the producer makes each image by `stagepipe.empty` and writes its first byte only: the price of a hop
                 without the price of the contents. Nobody holds the array when it is yielded
    filled       the same, and the producer copies a prepared array into it: what copied does, by the producer's hand
    passed on    loaned by the source, and a stage in between returns what it got: three processes and two hops, held
                 against one hop of the others

memcpy is no transport: `np.copyto` into 16 warm buffers in turn, as many as a pipeline has under way; the targets are
held against this one, since a transport cannot write over what its reader may still hold. To one buffer, which stays
in the cache, is printed too. Small items are under way by the hundred in Pipe (64 KiB of buffer) and in stagepipe;
Queue and SharedMemory are bounded to what 16 MiB hold, 4 to 256. DataLoader takes its arrays as they are (NumPy)
or makes tensors of them (torch, its default). Items are checked, byte by byte, before and after the timing, and their
numbers all along.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hop_.payload import SIZES
from hop_.schedule import CONTESTANTS, Effort, Row, measure
from hop_.tables import describe, hop_table, size_table
from hop_.targets import targets
from side_by_side.machine import machine, machine_line

_FULL, _QUICK = Effort(rounds=9, budget_s=0.08), Effort(rounds=6, budget_s=0.03)
_QUICK_SIZES = ("0B", "1KB", "1.2MB")


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the JSON if asked to."""
    options = _options(arguments)
    effort = _QUICK if options.quick else _FULL
    effort = Effort(options.rounds or effort.rounds, options.budget_ms / 1000 if options.budget_ms else effort.budget_s)
    names = _chosen(options.only, list(CONTESTANTS), "contestant")
    sizes = _chosen(options.sizes, list(_QUICK_SIZES if options.quick else SIZES), "size", list(SIZES))
    _serve_forks(names)
    found, begin = machine(), time.monotonic()
    command = shlex.join([Path(sys.executable).name, *sys.argv])
    print(machine_line(found), describe(effort.rounds), f"Again: {command}", sep="\n")
    rows: list[Row] = []
    reports: dict[str, dict[str, Any]] = {}
    for size in sizes:
        measured, reports[size] = measure(size, SIZES[size], names, effort, options.corrupt)
        rows += measured
        print(*size_table(measured), *hop_table(reports[size]), sep="\n", flush=True)
    verdicts = list(targets(rows, reports))
    print("\nTargets, of what the receiver does not touch:", *(target.line() for target in verdicts), sep="\n")
    print(f"{time.monotonic() - begin:.0f} s; load average {machine()['load_average']:.1f} at the end")
    if options.json:
        plain = {
            "command": command,
            "machine": found,
            "rounds": effort.rounds,
            "rows": [asdict(row) for row in rows],
            "reports": reports,
            "targets": [asdict(target) for target in verdicts],
        }
        options.json.write_text(json.dumps(plain, indent=1) + "\n")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="three sizes and short bursts: under a minute")
    parser.add_argument("--sizes", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--only", help=f"of {', '.join(CONTESTANTS)}")
    parser.add_argument("--rounds", type=int, help="how often each contestant has its turn")
    parser.add_argument("--budget-ms", type=float, help="how long a burst is")
    parser.add_argument("--json", type=Path, help="where every round's figures go")
    parser.add_argument("--corrupt", help="spoil a byte of what this contestant delivers: the check must stop the run")
    return parser.parse_args(arguments)


def _chosen(text: str | None, default: list[str], what: str, known: list[str] | None = None) -> list[str]:
    if text is None:
        return default
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in (known or default):
            message = f"no {what} {name!r}; there are {', '.join(known or default)}"
            raise SystemExit(message)
    return chosen


def _serve_forks(names: list[str]) -> None:
    """Peers' processes are forked from a server that has loaded what they need, and has no thread."""
    modules = ["hop_.peers"]
    if any(name.startswith("DataLoader") for name in names):
        modules.append("hop_.stream")
    multiprocessing.set_forkserver_preload(modules)


if __name__ == "__main__":
    main(sys.argv[1:])
