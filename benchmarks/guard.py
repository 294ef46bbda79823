"""Check that the hop has not become more expensive: compare this tree with an earlier commit, in three minutes.

    python -m benchmarks.guard [--base REF] [--rounds 9] [--limit 1.15]

    small   a hop of small dicts, from a source to the caller
    image   a hop of dicts with an image of 1.2 MB, copied into shared memory
    stage   the small dicts, with a stage in between that does nothing
    batch   a dataset and `Batch`
    alone   small dicts, one every half millisecond, so that each one wakes the caller

Each round measures every case with both trees, in a changing order. The figure is the processor time of all processes
per item, because other programs disturb it less than wall time; for `alone` it is wall time, which shows a lost
wake-up. A case fails if the median of the rounds' ratios to the base is above the limit, and their whole interval is
above 1. Without `--base`, the base is the last tag before this commit; without tags, the last commit that is older
than a week, or else the first commit. The exit status is 1 if a case fails, and 2 if the comparison was not possible.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common.command import machine, machine_line
from benchmarks.common.figures import Estimate, ratio
from benchmarks.common.turn import ROOT, order
from benchmarks.guard_turn import CASES

_ROUNDS = 9
_LIMIT = 1.15
"""In six runs on a busy machine, the medians of `small` were 0.98 to 1.04 with equal trees, and 1.27 to 1.31 with a hop
that used 30 % more CPU (tests/support/planted.py). The lower ends of the slower hop's intervals were 1.01 to 1.24."""
_TURN_LIMIT_S = 120.0


class GuardError(Exception):
    """The comparison was not possible. The message gives the reason."""


def main(arguments: Sequence[str]) -> int:
    """Measure, print a line for each case, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", default="", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="each tree has a turn of each case in each round")
    parser.add_argument("--limit", type=float, default=_LIMIT, help="how many times the base an item may cost")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, not {options.rounds}")
    try:
        with _check_out(options.base or find_base()) as (base, subject):
            print(machine_line(machine()), f"base: {subject}", sep="\n", flush=True)
            ratios = _measure(base, options.rounds)
    except GuardError as error:
        print(f"guard: {error}", file=sys.stderr)
        return 2
    failed = find_failed(ratios, options.limit)
    for case, times in ratios.items():
        print(f"{case:6} {times.text()} times the base  {'FAIL' if case in failed else 'ok'}")
    print(f"{options.rounds} rounds; brackets hold the {ratios['small'].coverage:.0%} interval of the median")
    return 1 if failed else 0


def find_base(git_folder: Path = ROOT) -> str:
    """Return the last tag before HEAD; without tags, the last commit older than a week; else the first commit."""
    tag = _ask_git(git_folder, "describe", "--tags", "--abbrev=0", "HEAD~1")
    week = _ask_git(git_folder, "rev-list", "--max-count=1", "--before=1 week ago", "HEAD")
    return tag or week or _ask_git(git_folder, "rev-list", "--max-parents=0", "HEAD").split("\n")[0]


def _ask_git(folder: Path, *command: str) -> str:
    line = ["git", "-C", str(folder), *command]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def find_failed(ratios: Mapping[str, Estimate], limit: float) -> list[str]:
    """Return the cases that became more expensive than the limit, with an interval that confirms it.

    >>> find_failed({"small": Estimate(1.3, 1.1, 1.4, 0.96), "stage": Estimate(1.3, 0.9, 1.4, 0.96)}, 1.15)
    ['small']
    """
    return [case for case, times in ratios.items() if times.value > limit and times.low > 1.0]


def _measure(base: Path, rounds: int) -> dict[str, Estimate]:
    figures: dict[tuple[str, str], list[float]] = defaultdict(list)
    trees = {"tree": ROOT, "base": base}
    for number in range(rounds):
        for case in order(list(CASES), number):
            for name in order(list(trees), number):
                figures[case, name].append(_take_turn(case, trees[name], base.parent))
    return {case: ratio(figures[case, "tree"], figures[case, "base"]) for case in CASES}


def _take_turn(case: str, tree: Path, folder: Path) -> float:
    """Run the guard_turn in `folder` with the stagepipe of `tree`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), str(folder)])}
    command = [sys.executable, "-P", "-c", f"import guard_turn; print(guard_turn.measure_us({case!r}))"]
    try:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, timeout=_TURN_LIMIT_S, check=True, cwd=tree, text=True
        )
    except subprocess.TimeoutExpired:
        message = f"case {case!r} did not finish within {_TURN_LIMIT_S:.0f} s in {tree}"
        raise GuardError(message) from None
    except subprocess.CalledProcessError:
        message = f"case {case!r} failed in {tree}: its error is above"
        raise GuardError(message) from None
    return float(done.stdout)


@contextmanager
def _check_out(reference: str) -> Iterator[tuple[Path, str]]:
    """Check the commit out into a temporary worktree, next to guard_turn. Yield its folder, number and title."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run(
        [*git, "log", "-1", "--format=%h %s", "--end-of-options", reference, "--"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if found.returncode:
        message = f"{reference!r} is no commit of this repository: give one with --base"
        raise GuardError(message)
    subject = found.stdout.strip()
    with tempfile.TemporaryDirectory(prefix="guard-") as folder:
        shutil.copy(ROOT / "benchmarks" / "guard_turn.py", folder)
        tree = Path(folder) / "base"
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(tree), subject.split()[0]], check=True)
        try:
            yield tree, subject
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
