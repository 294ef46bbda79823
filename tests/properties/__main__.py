"""The property: a random pipeline gives the same values however it runs.

make properties PIPELINES=2000
python -m tests.properties --pipelines 2000 --seed 1    consecutive seeds; the first that differs is shrunk
python -m tests.properties --pipelines 1 --seed 17      one seed
python -m tests.properties --case '{...}'               the given case

Inline, fused, not fused, with one worker a stage and with several, resumed at every position, and with workers killed
at random positions, and with workers that come and go: `running` says what each case compares.
"""

# ruff: noqa: T201 - a command-line tool
from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter

from tests.chaos.runner import Runner
from tests.chaos.running import Outcome
from tests.chaos.shrinking import print_smallest
from tests.properties.cases import make_case

RUNNER_MODULE = "tests.properties.running"
BAD_VERDICTS = ("different", "failed", "hang", "died")
_SHRINK_TIMEOUT_S = 120.0
_PROGRESS_INTERVAL_PIPELINES = 50


def main() -> int:
    """Run the command line. The exit status is 1 if values differ."""
    parser = argparse.ArgumentParser(description="Run random pipelines in several ways and compare the values.")
    parser.add_argument("--pipelines", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case")
    parser.add_argument("--go-on", action="store_true", help="Do not stop at the first case that differs.")
    options = parser.parse_args()
    with Runner(RUNNER_MODULE) as runner:
        if options.case:
            outcome = runner.run(json.loads(options.case))
            print(outcome["verdict"], outcome["details"])
            return int(outcome["verdict"] in BAD_VERDICTS)
        return _run_seeds(runner, options.seed, options.pipelines, go_on=options.go_on)


def _run_seeds(runner: Runner, seed: int, pipelines: int, *, go_on: bool) -> int:
    """Run so many pipelines. A seed whose inline run fails is none, and another takes its place."""
    started_s = time.monotonic()
    totals: Counter[str] = Counter()
    bad_seeds = []
    while totals["pipelines"] < pipelines:
        case = make_case(seed)
        outcome = runner.run(case)
        count(totals, outcome)
        if outcome["verdict"] in BAD_VERDICTS:
            bad_seeds.append(seed)
            print(f"seed {seed}: {outcome['verdict']}: {outcome['details']}\n{json.dumps(case)}", flush=True)
            if not go_on:
                print_smallest(runner, case, outcome["verdict"], "tests.properties", _SHRINK_TIMEOUT_S)
                break
        if not totals["pipelines"] % _PROGRESS_INTERVAL_PIPELINES:
            print(f"{time.monotonic() - started_s:5.0f} s, up to seed {seed}: {_describe(totals)}", flush=True)
        seed += 1
    print(f"{time.monotonic() - started_s:5.0f} s: {_describe(totals)}; seeds that differ: {bad_seeds or 'none'}")
    return int(bool(bad_seeds))


def count(totals: Counter[str], outcome: Outcome) -> None:
    """Add the counts of an outcome."""
    totals[outcome["verdict"]] += 1
    if outcome["verdict"] != "no case":
        totals["pipelines"] += 1
    totals.update({name: value for name, value in outcome.items() if isinstance(value, int)})


def _describe(totals: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(totals.items()))


if __name__ == "__main__":
    sys.exit(main())
