"""Measure how soon stagepipe starts: the first item, and a replaced worker.

    python -m benchmarks.start [--rounds 7] [--only "3 stages,restarts"] [--json FILE]

3, 14 stages    pipelines of stages that do nothing. "warm": the fork server of the process runs already. "first": in a
                new process, from before `from stagepipe import Pipeline`, with the import and without.
3 torch stages  the same with torch, against `import torch` in another new process beside it.
restarts        a worker is killed twice. From its death, as the supervisor saw it, until its successor has built its
                stages.

Each turn is a new process, alone, in an order that changes. Bytecode is written and read, whatever
PYTHONDONTWRITEBYTECODE says. A turn of each before the rounds warms the caches and does not count. The memory of three
models is a part of benchmarks.loader.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from benchmarks.common.command import add_names, finish, make_parser, open_run
from benchmarks.common.figures import Figures, Target, estimate, judge, ratio
from benchmarks.common.turn import adopt_orphans, run_turn, take_rounds
from benchmarks.start_turn import TURNS

_LIMIT_S = 300.0
_LIMITS = (
    ("3 stages, warm, s", "3 stages", "warm_s", 0.25),
    ("14 stages, warm, s", "14 stages", "warm_s", 0.4),
    ("first pipeline of a process, with the import, s", "3 stages", "first_with_import_s", 0.6),
    ("second pipeline of 3 torch stages, s", "3 torch stages", "second_s", 0.3),
    ("worker back after its first death, s", "restarts", "first_death_s", 0.1),
    ("worker back after its second death, s", "restarts", "second_death_s", 0.1),
)
_MAX_TORCH_RATIO = 1.3


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the JSON if requested."""
    parser = make_parser(__doc__, rounds=7)
    add_names(parser, "--only", tuple(TURNS), "turn")
    options = parser.parse_args(arguments)
    adopt_orphans()
    document = open_run("start")
    for name in options.only:
        _take_turn(name)
    found = take_rounds(options.only, options.rounds, _take_turn)
    for name, figures in found.items():
        for figure, values in figures.items():
            print(f"{name:15} {figure:22} {estimate(values).text(3)}")
    targets = list(_judge(found))
    print("", *(target.line() for target in targets), sep="\n")
    finish(options.json, {**document, "figures": found, "targets": [asdict(target) for target in targets]})


def _take_turn(name: str) -> dict[str, float]:
    return run_turn("benchmarks.start_turn", {"name": name, "started_ns": time.perf_counter_ns()}, _LIMIT_S)


def _judge(found: Figures) -> Iterator[Target]:
    for text, name, figure, limit in _LIMITS:
        values = found.get(name, {}).get(figure)
        yield judge(f"{text} <= {limit}", estimate(values) if values else None, "{}", at_most=limit)
    own, torch = (found.get(name, {}) for name in ("3 torch stages", "import torch"))
    times = ratio(own["first_with_python_s"], torch["s"]) if own and torch else None
    yield judge(f"3 torch stages / import torch <= {_MAX_TORCH_RATIO}", times, "{}", at_most=_MAX_TORCH_RATIO)


if __name__ == "__main__":
    main(sys.argv[1:])
