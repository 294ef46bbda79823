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
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from benchmarks.published.results import Summary, read_turns, summarise

_TIE_RATIO = 1.25
"""Two medians with a smaller ratio count as a tie."""


@dataclass(frozen=True)
class Agreement:
    """The pairs of one payload: how many have the `same` order, how many there are, and which are clearly reversed."""

    experiment: str
    payload: str
    same: int
    pairs: int
    swapped: tuple[tuple[str, str], ...]

    def line(self) -> str:
        """Format the counts, and name the reversed pairs."""
        reversed_pairs = "; ".join(f"{first} and {second}" for first, second in self.swapped)
        return f"{self.experiment}, {self.payload}: {self.same} of {self.pairs} pairs have the same order" + (
            f"; reversed: {reversed_pairs}" if reversed_pairs else ""
        )


def agreements(one: Summary, other: Summary) -> Iterator[Agreement]:
    """Compare the two runs for each payload that both measured."""
    for experiment in one.keys() & other.keys():
        for payload in one[experiment][0].figures:
            yield _agreement(
                experiment, payload, _medians(one, experiment, payload), _medians(other, experiment, payload)
            )


def _medians(summary: Summary, experiment: str, payload: str) -> dict[str, float]:
    rows = summary[experiment]
    return {
        row.contestant.name: figure.ns.value
        for row in rows
        if (figure := row.figures.get(payload)) and figure.ns is not None
    }


def _agreement(experiment: str, payload: str, one: dict[str, float], other: dict[str, float]) -> Agreement:
    pairs = list(combinations(sorted(one.keys() & other.keys()), 2))
    ratios = {(first, second): (one[first] / one[second], other[first] / other[second]) for first, second in pairs}
    different = {pair for pair, (one_ratio, other_ratio) in ratios.items() if (one_ratio < 1) != (other_ratio < 1)}
    swapped = (pair for pair in different if all(not 1 / _TIE_RATIO < ratio < _TIE_RATIO for ratio in ratios[pair]))
    return Agreement(experiment, payload, len(pairs) - len(different), len(pairs), tuple(sorted(swapped)))


def main(arguments: Sequence[str]) -> int:
    """Print a line for each payload, and return the exit status."""
    one, other = (_read(Path(path)) for path in arguments)
    compared = sorted(agreements(one, other), key=lambda agreement: agreement.experiment)
    print(*(agreement.line() for agreement in compared), sep="\n")
    same, pairs = sum(agreement.same for agreement in compared), sum(agreement.pairs for agreement in compared)
    print(f"total: {same} of {pairs} pairs have the same order")
    return 1 if any(agreement.swapped for agreement in compared) else 0


def _read(path: Path) -> Summary:
    document = json.loads(path.read_text())
    return summarise(read_turns(document), document["settings"]["size"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
