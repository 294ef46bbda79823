"""Chaos tests: runs random pipelines, disturbs them, and compares their output with an inline run.

make chaos MINUTES=20
python -m tests.chaos --minutes 20 [--seed 1]    cases from consecutive seeds; the first that fails is shrunk
python -m tests.chaos --kills 2000 [--seed 1]    cases with many kills, until 2,000 workers have died and were replaced
python -m tests.chaos --seed 17 --once           the case of one seed
python -m tests.chaos --case '{...}' [--times 9] the given case
"""

# ruff: noqa: T201 - a command-line tool
from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable

from tests.chaos.cases import Case, make_case, make_kill_case
from tests.chaos.runner import Runner
from tests.chaos.shrinking import print_smallest
from tests.chaos.totals import BAD_VERDICTS, Totals, describe_case

_SHRINK_TIMEOUT_S = 240.0


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
    options = parser.parse_args()
    make = make_kill_case if options.kills else lambda seed: make_case(seed, kills=not options.no_kills)
    deadline = time.monotonic() + 60 * options.minutes
    with Runner() as runner:
        if options.case or options.once:
            case = json.loads(options.case) if options.case else make(options.seed)
            return _run_repeatedly(runner, case, options.times)

        def is_enough(totals: Totals) -> bool:
            return totals["restarts"] >= options.kills if options.kills else time.monotonic() > deadline

        return _run_seeds(runner, options.seed, make, is_enough, go_on=options.go_on)


def _run_repeatedly(runner: Runner, case: Case, times: int) -> int:
    print(json.dumps(case, indent=1))
    failure_count = 0
    for _ in range(times):
        outcome = runner.run(case)
        failure_count += outcome["verdict"] in BAD_VERDICTS
        print(outcome["verdict"], outcome["details"], flush=True)
    return bool(failure_count)


def _run_seeds(
    runner: Runner, seed: int, make: Callable[[int], Case], is_enough: Callable[[Totals], bool], *, go_on: bool
) -> int:
    totals, failure_count = Totals(), 0
    print(f"{' '.join(sys.argv[1:])}: Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.platform()}")
    try:
        while not is_enough(totals) and (go_on or not failure_count):
            failure_count += _run_seed(runner, make(seed), totals, go_on=go_on)
            seed += 1
    except KeyboardInterrupt:
        print("interrupted")
        failure_count += 1
    print(totals.describe())
    return bool(failure_count)


def _run_seed(runner: Runner, case: Case, totals: Totals, *, go_on: bool) -> bool:
    outcome = runner.run(case)
    totals.add(case, outcome)
    print(describe_case(case, outcome), flush=True)
    has_failed = outcome["verdict"] in BAD_VERDICTS
    if has_failed:
        print(f"{outcome['details']}\n{json.dumps(case)}", flush=True)
        if not go_on:
            print_smallest(runner, case, outcome["verdict"], "tests.chaos --times 20", _SHRINK_TIMEOUT_S)
    return has_failed


if __name__ == "__main__":
    sys.exit(main())
