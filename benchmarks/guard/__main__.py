"""Has the hop become dearer? Compare this tree with an earlier commit, side by side in one run: some minutes.

    python -m benchmarks.guard [--base REF] [--rounds 9] [--limit 1.15]

    small   a hop of small dicts, from a source to the caller
    image   a hop of dicts with an image of 1.2 MB, copied into shared memory
    stage   the small dicts, with a stage that does nothing in between
    batch   a dataset and `Batch`

Each round measures every case with both trees, in an order that changes. The figure is the processor time of all
processes for an item, which other programs disturb less than wall time. A case fails if the whole interval of its ratio
to the base lies above the limit, and "undecided" if a part of it does: then run again, with more rounds. Without
`--base`, the base is the commit before the last. The exit status is 1 if a case fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common.figures import Estimate, ratio
from benchmarks.common.machine import machine, machine_line
from benchmarks.common.turn import ROOT
from benchmarks.common.turns import order
from benchmarks.guard.guard_turn import CASES

_ROUNDS = 9
_LIMIT = 1.15
_TURN_LIMIT_S = 120.0


def main(arguments: Sequence[str]) -> int:
    """Measure, print a line for each case, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", default="HEAD~1", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="each tree has a turn of each case in each round")
    parser.add_argument("--limit", type=float, default=_LIMIT, help="how much dearer an item may be")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the tree to judge, if not this one")
    options = parser.parse_args(arguments)
    print(machine_line(machine()), f"base: {options.base}", sep="\n", flush=True)
    with _check_out(options.base) as base:
        ratios = _measure(options.tree, base, options.rounds)
    failed = [case for case, times in ratios.items() if times.low > options.limit]
    for case, times in ratios.items():
        verdict = "FAIL" if case in failed else "undecided" if times.high > options.limit else "ok"
        print(f"{case:6} {times.text()} times the base  {verdict}")
    print(f"{options.rounds} rounds; brackets hold the {ratios['small'].coverage:.0%} interval of the median")
    return 1 if failed else 0


def _measure(tree: Path, base: Path, rounds: int) -> dict[str, Estimate]:
    figures: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number in range(rounds):
        for case in order(list(CASES), number):
            for name in order(["tree", "base"], number):
                figures[case, name].append(_take_turn(case, tree if name == "tree" else base))
    return {case: ratio(figures[case, "tree"], figures[case, "base"]) for case in CASES}


def _take_turn(case: str, tree: Path) -> float:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), str(Path(__file__).parent)])}
    command = [sys.executable, "-P", "-c", f"import guard_turn; print(guard_turn.measure_us({case!r}))"]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, timeout=_TURN_LIMIT_S, check=True, cwd=tree, text=True
    )
    return float(done.stdout)


@contextmanager
def _check_out(reference: str) -> Iterator[Path]:
    """Check the commit out into a temporary worktree."""
    with tempfile.TemporaryDirectory(prefix="guard-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), reference], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
