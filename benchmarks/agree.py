"""Do two runs of benchmarks/published.py agree in who is quicker than whom?

    python benchmarks/agree.py ONE.json OTHER.json

For every payload it counts the pairs of contestants that have the same order in both. Of the other pairs it names those
whose medians lie more than a quarter apart in both runs, and exits with 1 if there are any; the rest are ties.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from published_.keeping import read_turns
from published_.summary import Summary, summarise

_APART = 1.25


@dataclass(frozen=True)
class Agreement:
    """Of a payload: how many pairs have the same order, of how many, and which are clearly the other way round."""

    experiment: str
    payload: str
    same: int
    pairs: int
    swapped: tuple[tuple[str, str], ...]

    def line(self) -> str:
        """For the reader."""
        words = "; ".join(f"{one} and {other}" for one, other in self.swapped)
        return f"{self.experiment}, {self.payload}: {self.same} of {self.pairs} pairs" + (
            f"; not {words}" if words else ""
        )


def agreements(one: Summary, other: Summary) -> Iterator[Agreement]:
    """Of each payload that both have."""
    for experiment in one.keys() & other.keys():
        for payload in one[experiment][0].figures:
            yield _agreement(
                experiment, payload, _medians(one, experiment, payload), _medians(other, experiment, payload)
            )


def _medians(summary: Summary, experiment: str, payload: str) -> dict[str, float]:
    rows = summary[experiment]
    return {
        row.contestant.name: found.ns.value
        for row in rows
        if (found := row.figures.get(payload)) and found.ns is not None
    }


def _agreement(experiment: str, payload: str, one: dict[str, float], other: dict[str, float]) -> Agreement:
    pairs = list(combinations(sorted(one.keys() & other.keys()), 2))
    ratios = {(a, b): (one[a] / one[b], other[a] / other[b]) for a, b in pairs}
    different = {pair for pair, (first, second) in ratios.items() if (first < 1) != (second < 1)}
    clearly = (pair for pair in different if all(not 1 / _APART < ratio < _APART for ratio in ratios[pair]))
    return Agreement(experiment, payload, len(pairs) - len(different), len(pairs), tuple(sorted(clearly)))


def main(arguments: Sequence[str]) -> int:
    """Print a line for each payload; the exit status."""
    one, other = (_read(Path(path)) for path in arguments)
    found = sorted(agreements(one, other), key=lambda each: each.experiment)
    print(*(each.line() for each in found), sep="\n")
    print(f"in all {sum(each.same for each in found)} of {sum(each.pairs for each in found)} pairs have the same order")
    return 1 if any(each.swapped for each in found) else 0


def _read(path: Path) -> Summary:
    found = json.loads(path.read_text())
    return summarise(read_turns(found), found["settings"]["size"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
