"""Check whether two runs of benchmarks/published rank the contestants in the same order.

    python -m benchmarks.published.agree ONE.json OTHER.json

For every payload it counts the pairs of contestants that have the same order in both runs. Of the other pairs it names
those whose medians differ by more than a quarter in both runs, and exits with status 1 if there are any. The rest are
ties.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from benchmarks.published.results import Row, Summary, read_turns, summarise

_TIE_RATIO = 1.25
"""Two medians with a smaller ratio count as a tie."""


Count = tuple[int, int, list[str]]
"""The pairs of a payload that have the same order, all of its pairs, and those that are clearly reversed."""


def agreements(one: Summary, other: Summary) -> Iterator[tuple[str, Count]]:
    """Compare the two runs for each payload that both measured."""
    for experiment in sorted(one.keys() & other.keys()):
        for payload in one[experiment][0].figures:
            yield f"{experiment}, {payload}", _count(*(_medians(run[experiment], payload) for run in (one, other)))


def _medians(rows: Sequence[Row], payload: str) -> dict[str, float]:
    figures = {row.contestant.name: row.figures[payload].ns for row in rows if payload in row.figures}
    return {name: ns.value for name, ns in figures.items() if ns is not None}


def _count(one: dict[str, float], other: dict[str, float]) -> Count:
    pairs = list(combinations(sorted(one.keys() & other.keys()), 2))
    ratios = {(first, second): (one[first] / one[second], other[first] / other[second]) for first, second in pairs}
    different = [pair for pair, (one_ratio, other_ratio) in ratios.items() if (one_ratio < 1) != (other_ratio < 1)]
    swapped = [pair for pair in different if all(not 1 / _TIE_RATIO < ratio < _TIE_RATIO for ratio in ratios[pair])]
    return len(pairs) - len(different), len(pairs), [f"{first} and {second}" for first, second in sorted(swapped)]


def main(arguments: Sequence[str]) -> int:
    """Print a line for each payload, and return the exit status."""
    counts = dict(agreements(*(_read(Path(path)) for path in arguments)))
    for name, (same, pairs, swapped) in counts.items():
        reversed_pairs = f"; reversed: {'; '.join(swapped)}" if swapped else ""
        print(f"{name}: {same} of {pairs} pairs have the same order{reversed_pairs}")
    same, pairs = sum(count[0] for count in counts.values()), sum(count[1] for count in counts.values())
    print(f"total: {same} of {pairs} pairs have the same order")
    return 1 if any(swapped for _, _, swapped in counts.values()) else 0


def _read(path: Path) -> Summary:
    document = json.loads(path.read_text())
    return summarise(read_turns(document), document["settings"]["size"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
