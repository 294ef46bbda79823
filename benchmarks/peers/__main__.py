"""Whole jobs by stagepipe and by what its users would otherwise pick, in interleaved rounds of one run.

    python -m benchmarks.peers [--quick] [--jobs images,models] [--only "stagepipe; DataLoader"] [--json FILE]

    images      JPEG files, decoded, resized, as float32, in batches of 64 x 3 x 224 x 224
    thumbnails  JPEG files, decoded, resized, each written to an npz file
    tensors     50,000 tensors of 3 x 32 x 32 float32 in memory, in batches of 256
    tokens      16 to 512 tokens, padded, in batches of 64
    clips       16 x 3 x 224 x 224 float32, through four steps of NumPy
    models      vectors through three models of 400 MB

Each contestant runs the same functions, by the advice of its own documentation, with as many workers as CPUs. stagepipe
is cut as `auto` does, and its steps write to `stagepipe.empty`. A turn is a new process. In the first round, which is
not timed, its samples are compared byte by byte with those of a plain loop, and its memory is measured; in the others
it takes batches for some seconds after a second of warm-up. The caller does nothing with a batch, not even read it.
NumPy's and torch's own threads are limited to one in every process, also in the plain loop and beside SPDL's threads.
"First item" runs from the start of the program, imports included. "CPU" is that of all processes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.machine import machine, machine_line, repeat_command
from benchmarks.common.turn import TurnError, adopt_orphans, run_turn
from benchmarks.common.turns import order
from benchmarks.peers.contestants import CONTESTANTS, REFERENCE
from benchmarks.peers.jobs import JOBS
from benchmarks.peers.results import Results
from benchmarks.peers.tables import count_rounds, judge, make_table

_ROUNDS, _BUDGET_S = 6, 3.0
_QUICK_ROUNDS, _QUICK_BUDGET_S = 2, 1.0
_INSPECTED_BATCHES = 3
_INSPECTED_ITEMS = 16
"""For a job without batches."""
_LIMIT_S = 120.0
_PACKAGES = ("joblib", "torchdata", "spdl", "grain", "ray", "datasets", "webdataset", "tensorflow-cpu")
_INSPECTED = ("inspected", "digest", "pss_bytes")
_TIMED = ("first_s", "items_per_s", "cpu_s_per_item", "p99_wait_s", "items")
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class _Turn:
    job: str
    contestant: str
    number: int  # 0: the round that inspects


def main(arguments: Sequence[str]) -> None:
    """Take the turns that are missing in the file, and print the tables."""
    options = _parse(arguments)
    rounds = options.rounds or (_QUICK_ROUNDS if options.quick else _ROUNDS)
    budget_s = _QUICK_BUDGET_S if options.quick else _BUDGET_S
    os.environ.update(_ONE_THREAD)
    adopt_orphans()
    about = {
        "command": repeat_command("peers"),
        "settings": {"jobs": options.jobs, "only": options.only, "rounds": rounds, "budget_s": budget_s},
        "machine": machine(_PACKAGES),
    }
    results = Results(options.json, about, is_fresh=options.fresh)
    print(machine_line(results.about["machine"]), f"Repeat: {about['command']}", sep="\n", flush=True)
    for turn in _schedule(options.jobs, options.only, rounds):
        _take(turn, results, budget_s)
    for job in options.jobs:
        print(f"\n{job}: {count_rounds(rounds)}\n", *make_table(results, job), "", *judge(results, job), sep="\n")
    print(f"load average {machine()['load_average']:.1f} at the end; {options.json}")


def _schedule(jobs: Sequence[str], names: Sequence[str], rounds: int) -> Iterator[_Turn]:
    """Yield the turns job by job. The plain loop comes first in round 0: the others are compared with it."""
    for job in jobs:
        able = [name for name in names if CONTESTANTS[name].can_do(job)]
        for number in range(rounds + 1):
            names_in_order = order(able, number) if number else list(dict.fromkeys((REFERENCE, *able)))
            for name in names_in_order:
                yield _Turn(job, name, number)


def _take(turn: _Turn, results: Results, budget_s: float) -> None:
    contestant = CONTESTANTS[turn.contestant]
    place = (turn.job, turn.contestant, turn.number)
    if results.has(*place) or results.find_reason(turn.job, turn.contestant):
        return
    if contestant.missing_package:
        results.add(*place, reason=f"needs {contestant.missing_package}: pip install 'stagepipe[bench]'")
        return
    job = JOBS[turn.job]
    inspected = (_INSPECTED_BATCHES * job.batch or _INSPECTED_ITEMS) if turn.number == 0 else 0
    request: dict[str, Any] = {
        "job": turn.job,
        "framework": contestant.run,
        "workers": len(os.sched_getaffinity(0)),
        "budget_s": budget_s,
        "started_s": time.monotonic(),
        "inspected": inspected,
    }
    print(f"{turn.job}, round {turn.number}: {turn.contestant}", file=sys.stderr, flush=True)
    try:
        figures = run_turn("benchmarks.peers.turn", request, _LIMIT_S)
    except TurnError as error:
        results.add(*place, reason=str(error))
        return
    names = _INSPECTED if inspected else _TIMED
    results.add(*place, figures={name: figures[name] for name in names}, load=round(os.getloadavg()[0], 1))
    if inspected:
        _check(turn, results)


def _check(turn: _Turn, results: Results) -> None:
    """End the run if the contestant delivered other samples than the plain loop."""
    figures = results.collect(turn.job)
    own, reference = ({key: figures[name][key].get(0) for key in _INSPECTED} for name in (turn.contestant, REFERENCE))
    keys = ["inspected"] if CONTESTANTS[turn.contestant].own_pixels else ["inspected", "digest"]
    if any(own[key] != reference[key] for key in keys):
        message = f"{turn.contestant} delivered other samples than the plain loop in {turn.job}"
        raise SystemExit(message)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--jobs", type=_choose(JOBS, ","), default=list(JOBS), help=", ".join(JOBS))
    parser.add_argument(
        "--only", type=_choose(CONTESTANTS, ";"), default=list(CONTESTANTS), help="; ".join(CONTESTANTS)
    )
    parser.add_argument("--rounds", type=int, help=f"timed rounds: {_ROUNDS}")
    parser.add_argument("--json", type=Path, default=Path("runs/peers.json"), help="file for the figures of all turns")
    parser.add_argument("--fresh", action="store_true", help="start over, even if the file is incomplete")
    return parser.parse_args(arguments)


def _choose(known: dict[str, Any], separator: str) -> Callable[[str], list[str]]:
    def choose(text: str) -> list[str]:
        names = [name.strip() for name in text.split(separator)]
        for name in names:
            if name not in known:
                message = f"unknown: {name!r}; choose from {', '.join(known)}"
                raise argparse.ArgumentTypeError(message)
        return names

    return choose


if __name__ == "__main__":
    main(sys.argv[1:])
