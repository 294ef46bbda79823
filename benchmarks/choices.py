"""Check the negotiator's choices: every hop of every config, with `auto` and with each mode forced.

    python -m benchmarks.choices [--rounds 3] [--limit 600] [configs/quickstart.yaml ...]

Without a path it takes the configs in `configs/` and `examples/`. Each round runs each config three times, in a
different order: with `auto`, with all hops forced through the pipe, and with all hops forced into shared memory. The
cost of a hop is the median over the rounds of its messages' p50. A choice is right if the mode that most messages used
is the cheaper one, or costs at most a tenth more. `predicted` is the calibration's prediction for the transport that
each message used; `error` is the measured cost divided by it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.command import machine, machine_line
from benchmarks.common.turn import order
from stagepipe import Pipeline
from stagepipe.core import format_ns
from stagepipe.report.model import HopReport

_MODES = ("auto", "pipe", "shared_memory")
_MAX_COST_RATIO = 1.1
"""How much more than the cheaper mode the right choice may cost."""
_MAX_ERROR = 1.5
"""By which factor a near prediction may be off."""

Key = tuple[str, str]


def hops(config: Path, mode: str, limit: int) -> dict[Key, HopReport]:
    """Run the config once and return its hops, except those inside a process."""
    with Pipeline(config, [f"transport.mode={mode}"], limit=limit) as pipeline:
        for _ in pipeline:
            pass
    return {(hop.source, hop.target): hop for hop in pipeline.report().hops if not hop.messages.local}


def compare(config: Path, rounds: int, limit: int) -> list[tuple[bool, bool, str]]:
    """Return for each hop: whether the choice was right, whether the prediction was near, and the line to print."""
    reports: dict[str, list[dict[Key, HopReport]]] = {mode: [] for mode in _MODES}
    for number in range(rounds):
        for mode in order(_MODES, number):
            reports[mode].append(hops(config, mode, limit))
    return [_line(config.stem, key, reports) for key in reports["auto"][0]]


def _line(name: str, key: Key, reports: dict[str, list[dict[Key, HopReport]]]) -> tuple[bool, bool, str]:
    cost = {mode: statistics.median(run[key].cost_ns.p50 for run in runs) for mode, runs in reports.items()}
    auto = [run[key] for run in reports["auto"]]
    messages = auto[-1].messages
    chosen = "pipe" if messages.pipe > messages.shared_memory + messages.mixed else "shared_memory"
    other = "pipe" if chosen == "shared_memory" else "shared_memory"
    error = statistics.median(hop.predicted.measured_ratio for hop in auto)
    predicted = statistics.median(hop.predicted.median_ns for hop in auto)
    right, near = cost[chosen] <= _MAX_COST_RATIO * cost[other], 1 / _MAX_ERROR <= error <= _MAX_ERROR
    line = (
        f"{name:15}{' -> '.join(key):24}{chosen.replace('_', ' '):14}"
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
    configs = options.configs or sorted([*Path("configs").glob("*.yaml"), *Path("examples").rglob("*.yaml")])
    print(machine_line(machine()))
    print(
        f"{'config':15}{'hop':24}{'used':14}{'auto':>9}{'pipe':>9}{'shared':>9}{'choice':>8}{'predicted':>10}{'error':>7}"
    )
    results = []
    for config in configs:
        for result in compare(config, options.rounds, options.limit):
            print(result[2], flush=True)
            results.append(result)
    right, near = sum(result[0] for result in results), sum(result[1] for result in results)
    print(
        f"{right} of {len(results)} choices right; {near} of {len(results)} predictions within a factor of {_MAX_ERROR}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
