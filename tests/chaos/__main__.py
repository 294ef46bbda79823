"""Chaos tests: runs random pipelines, disturbs them, and compares their output with an inline run.

make chaos MINUTES=20, make kills KILLS=2000, make histories HISTORIES=1000
python -m tests.chaos --minutes 20 [--seed 1]    cases from consecutive seeds; the first that fails is shrunk
python -m tests.chaos --kills 2000 [--seed 1]    cases with many kills, until 2,000 workers have died and were replaced
python -m tests.chaos --histories 1000 --jobs 2  small cases in which workers come and go at random, with kills
python -m tests.chaos --seed 17 --once           the case of one seed
python -m tests.chaos --case '{...}' [--times 9] the given case
"""

# ruff: noqa: T201 - a command-line tool
from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.chaos.cases import Case, make_case, make_change_case, make_kill_case
from tests.chaos.runner import Runner
from tests.chaos.shrinking import print_smallest
from tests.chaos.totals import BAD_VERDICTS, Totals, describe_case

_SHRINK_TIMEOUT_S = 240.0
_MIN_CHANGES_PER_HISTORY = 3
"""Fewer, on average, would show little: the run fails."""


def main() -> int:
    """Run the command line. The exit status is 1 if a case failed."""
    parser = argparse.ArgumentParser(description="Disturb random pipelines and compare them with an inline run.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--case")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--no-kills", action="store_true")
    parser.add_argument("--go-on", action="store_true", help="Do not stop at the first case that fails.")
    parser.add_argument("--kills", type=int, default=0, help="Run cases with many kills until so many workers died.")
    parser.add_argument("--jobs", type=int, default=1, help="Run so many cases at a time.")
    parser.add_argument("--histories", type=int, default=0, help="Run so many cases in which workers come and go.")
    options = parser.parse_args()
    make = make_kill_case if options.kills else lambda seed: make_case(seed, kills=not options.no_kills)
    if options.histories:
        make = make_change_case
    deadline = time.monotonic() + 60 * options.minutes
    if options.case or options.once:
        case = json.loads(options.case) if options.case else make(options.seed)
        with Runner() as runner:
            return _run_repeatedly(runner, case, options.times)
    with contextlib.ExitStack() as exit_stack:
        runners = [exit_stack.enter_context(Runner()) for _ in range(options.jobs)]

        def is_enough(totals: Totals) -> bool:
            if options.histories:
                return totals["pipelines"] >= options.histories
            return totals["restarts"] >= options.kills if options.kills else time.monotonic() > deadline

        return _run_seeds(runners, itertools.count(options.seed), make, is_enough, go_on=options.go_on)


def _run_repeatedly(runner: Runner, case: Case, times: int) -> int:
    print(json.dumps(case, indent=1))
    failure_count = 0
    for _ in range(times):
        outcome = runner.run(case)
        failure_count += outcome["verdict"] in BAD_VERDICTS
        print(outcome["verdict"], outcome["details"], flush=True)
    return bool(failure_count)


def _run_seeds(
    runners: Sequence[Runner],
    seeds: Iterator[int],
    make: Callable[[int], Case],
    is_enough: Callable[[Totals], bool],
    *,
    go_on: bool,
) -> int:
    """Run cases, one at a time in each runner. Return the exit status."""
    totals, failures, lock = Totals(), list[Case](), threading.Lock()
    print(f"{' '.join(sys.argv[1:])}: Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.platform()}")

    def run_some(runner: Runner) -> None:
        while not is_enough(totals) and (go_on or not failures):
            with lock:
                case = make(next(seeds))
            outcome = runner.run(case)
            with lock:
                totals.add(case, outcome)
                print(describe_case(case, outcome), flush=True)
                if outcome["verdict"] in BAD_VERDICTS:
                    failures.append(case)
                    print(f"{outcome['details']}\n{json.dumps(case)}", flush=True)
                    if not go_on:
                        print_smallest(runner, case, outcome["verdict"], "tests.chaos --times 20", _SHRINK_TIMEOUT_S)

    is_interrupted = False
    try:
        with ThreadPoolExecutor(len(runners)) as executor:
            list(executor.map(run_some, runners))
    except KeyboardInterrupt:
        print("interrupted")
        is_interrupted = True
    print(totals.describe())
    lacks_changes = totals["changes"] < _MIN_CHANGES_PER_HISTORY * totals["histories"]
    if lacks_changes:
        print("too few workers came or went for so many histories")
    return int(bool(failures) or is_interrupted or lacks_changes)


if __name__ == "__main__":
    sys.exit(main())
