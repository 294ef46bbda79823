"""Was the negotiator right? Every hop of every config in `configs/`, as chosen and with both modes forced.

    python benchmarks/choices.py [--rounds 3] [--limit 600] [configs/quickstart.yaml ...]

Each round runs each config three times, in another order: `auto`, all hops forced through the pipe, all in shared
memory. A hop's cost is the median of its messages' p50. The choice is right where the mode that most messages took is
the cheaper one, or dearer by less than a tenth. `predicted` is what the calibration foretold for the messages as they
went, `error` how many times that was paid.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from side_by_side.machine import machine, machine_line
from stagepipe import Pipeline
from stagepipe.core.units import format_ns
from stagepipe.report.model import Hop

_MODES = ("auto", "pipe", "shared_memory")
_NEAR = 1.1
_ERROR = 1.5

Key = tuple[str, str]


def hops(config: Path, mode: str, limit: int) -> dict[Key, Hop]:
    """The hops of one run, but for those inside a process."""
    with Pipeline(config, [f"transport.mode={mode}"], limit=limit) as pipeline:
        for _ in pipeline:
            pass
    return {(hop.source, hop.target): hop for hop in pipeline.report().hops if not hop.messages.local}


def compare(config: Path, rounds: int, limit: int) -> list[tuple[bool, bool, str]]:
    """For each hop: whether the choice was right, whether the prediction was near, and the line that says it."""
    found: dict[str, list[dict[Key, Hop]]] = {mode: [] for mode in _MODES}
    order, rng = list(_MODES), random.Random(0)
    for _ in range(rounds):
        rng.shuffle(order)
        for mode in order:
            found[mode].append(hops(config, mode, limit))
    return [_line(config.stem, key, found) for key in found["auto"][0]]


def _line(name: str, key: Key, found: dict[str, list[dict[Key, Hop]]]) -> tuple[bool, bool, str]:
    cost = {mode: statistics.median(run[key].cost_ns.p50 for run in runs) for mode, runs in found.items()}
    auto = [run[key] for run in found["auto"]]
    messages = auto[-1].messages
    taken = "pipe" if messages.pipe > messages.shared_memory + messages.mixed else "shared_memory"
    other = "pipe" if taken == "shared_memory" else "shared_memory"
    error = statistics.median(hop.predicted.error for hop in auto)
    predicted = statistics.median(hop.predicted.taken_ns for hop in auto)
    right, near = cost[taken] <= _NEAR * cost[other], 1 / _ERROR <= error <= _ERROR
    line = (
        f"{name:15}{' -> '.join(key):24}{taken.replace('_', ' '):14}"
        f"{format_ns(int(cost['auto'])):>9}{format_ns(int(cost['pipe'])):>9}{format_ns(int(cost['shared_memory'])):>9}"
        f"  {'right' if right else 'WRONG'}{format_ns(int(predicted)):>10}{error:>7.2f}{'' if near else '  FAR'}"
    )
    return right, near, line


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=600)
    options = parser.parse_args(arguments)
    configs = options.configs or sorted(Path("configs").glob("*.yaml"))
    print(machine_line(machine()))
    print(
        f"{'config':15}{'hop':24}{'took':14}{'auto':>9}{'pipe':>9}{'shared':>9}{'choice':>8}{'predicted':>10}{'error':>7}"
    )
    results = []
    for config in configs:
        for result in compare(config, options.rounds, options.limit):
            print(result[2], flush=True)
            results.append(result)
    right, near = sum(result[0] for result in results), sum(result[1] for result in results)
    print(f"{right} of {len(results)} choices right; {near} of {len(results)} predictions within {_ERROR} times")


if __name__ == "__main__":
    main(sys.argv[1:])
