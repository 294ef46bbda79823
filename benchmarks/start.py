"""Measure the start of stagepipe: the time to the first item, and to replace a worker.

    python -m benchmarks.start [--rounds 7] [--only "3 stages,restarts"] [--json FILE]

3, 14 stages    pipelines of stages that do nothing. "warm": the fork server of the process is already running. "first":
                in a new process, from before `from stagepipe import Pipeline`, with the import and without.
3 torch stages  the same with torch, compared with `import torch` in another new process.
restarts        a worker is killed twice. The time from its death, as seen by the supervisor, until its successor has
                built its stages.

Each turn is a new process and runs by itself, in a changing order. Bytecode is written and read, whatever
PYTHONDONTWRITEBYTECODE says. Before the rounds, an uncounted turn of each warms the caches. benchmarks.loader measures
the memory of three models.

A turn also runs this module, with `started_ns`: the time (`perf_counter_ns`) at which its parent started the process.
The functions contain the imports, because these are measured.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.common.figures import Figures, Target

BEGAN_NS = perf_counter_ns()
"""Python has started, and nothing of stagepipe is imported yet."""
_REPEATS = 5
_DEATHS = 2
_RESTART_TIMEOUT_S = 20.0
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


def import_torch(started_ns: int) -> dict[str, float]:
    """Import torch, as each worker would without a server."""
    import torch  # noqa: F401 - the measured import

    return {"s": _since(started_ns)}


def first_items(started_ns: int, count: int, uses: str = "benchmarks.common.stages.pass_on") -> dict[str, float]:
    """Time the first items of this process's first pipeline of `count` stages, and of later ones."""
    import_ns = perf_counter_ns()
    from stagepipe import Pipeline

    config = {
        "source": {"uses": "stagepipe.sources.numbers", "with": {"count": 100}},
        "stages": [{"name": f"s{number}", "uses": uses} for number in range(count)],
    }
    imported_ns = perf_counter_ns()
    seconds, caller_cpu_s = [], 0.0
    for _ in range(_REPEATS):
        begin_ns = perf_counter_ns()
        with Pipeline(config) as pipeline:
            next(iter(pipeline))
            seconds.append(_since(begin_ns))
            caller_cpu_s = caller_cpu_s or time.process_time()
            time.sleep(0.1)  # until the last worker waits for items: its end should not disturb the next start
    return {
        "python_s": (BEGAN_NS - started_ns) / 1e9,
        "import_s": (imported_ns - import_ns) / 1e9,
        "first_s": seconds[0],
        "first_with_import_s": seconds[0] + (imported_ns - import_ns) / 1e9,
        "first_with_python_s": seconds[0] + (imported_ns - started_ns) / 1e9,
        "second_s": seconds[1],
        "warm_s": sorted(seconds[1:])[(_REPEATS - 1) // 2],
        "caller_cpu_s": caller_cpu_s,
    }


def restarts(_: int) -> dict[str, float]:
    """Kill a worker twice; time from each death, as its supervisor saw it, until the successor has built its stages."""
    from stagepipe import Pipeline
    from stagepipe.timing import ProcessCounter

    config = {
        "source": {"uses": "stagepipe.sources.numbers", "with": {"count": 100_000_000}},
        "stages": [{"name": "stage", "uses": "benchmarks.common.stages.tell_pid"}],
    }
    downtimes = [0.0]
    with Pipeline(config) as pipeline:
        items = iter(pipeline)
        run: Any = pipeline._start_local_run()  # noqa: SLF001 - the report exists only after the run
        killed: list[int] = []
        while len(killed) < _DEATHS:
            killed.append(next(pid for _item, pid in items if pid not in killed))
            os.kill(killed[-1], signal.SIGKILL)
            deadline_s = time.monotonic() + _RESTART_TIMEOUT_S
            total = downtimes[-1]
            while total == downtimes[-1] and time.monotonic() < deadline_s:
                next(items)
                total = run.regions[1][0][ProcessCounter.DOWNTIME_NS] / 1e9
            downtimes.append(total)
    return {"first_death_s": downtimes[1], "second_death_s": downtimes[2] - downtimes[1]}


def _since(started_ns: int) -> float:
    return (perf_counter_ns() - started_ns) / 1e9


TURNS: dict[str, Callable[[int], dict[str, float]]] = {
    "import torch": import_torch,
    "3 stages": partial(first_items, count=3),
    "14 stages": partial(first_items, count=14),
    "3 torch stages": partial(first_items, count=3, uses="benchmarks.common.torch_parts.add_zero"),
    "restarts": restarts,
}


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the JSON if requested; or as a turn, take it and write its figures."""
    if len(arguments) == 2 and Path(arguments[0]).name == "job.json":
        job = json.loads(Path(arguments[0]).read_text())
        Path(arguments[1]).write_text(json.dumps(TURNS[job["name"]](job["started_ns"])))
        os._exit(0)  # the figures are written: the rest is not measured
    from dataclasses import asdict

    from benchmarks.common.command import add_names, finish, make_parser, open_run
    from benchmarks.common.figures import estimate
    from benchmarks.common.turn import adopt_orphans, take_rounds

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
    from benchmarks.common.turn import run_turn

    return run_turn("benchmarks.start", {"name": name, "started_ns": perf_counter_ns()}, _LIMIT_S)


def _judge(found: Figures) -> Iterator[Target]:
    from benchmarks.common.figures import estimate, judge, ratio

    for text, name, figure, limit in _LIMITS:
        values = found.get(name, {}).get(figure)
        yield judge(f"{text} <= {limit}", estimate(values) if values else None, "{}", at_most=limit)
    own, torch = (found.get(name, {}) for name in ("3 torch stages", "import torch"))
    times = ratio(own["first_with_python_s"], torch["s"]) if own and torch else None
    yield judge(f"3 torch stages / import torch <= {_MAX_TORCH_RATIO}", times, "{}", at_most=_MAX_TORCH_RATIO)


if __name__ == "__main__":
    main(sys.argv[1:])
