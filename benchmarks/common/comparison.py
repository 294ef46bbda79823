"""Contestants in rounds, and the printed table of their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.common.figures import describe_rounds, estimate, ratio
from benchmarks.common.turn import order

Figures = dict[str, dict[str, list[float]]]
"""A value for each round, by contestant and figure."""


def take_rounds(names: Sequence[str], rounds: int, take: Callable[[str], Mapping[str, float]]) -> Figures:
    """Let each contestant take a turn in each round, in an order that changes."""
    found: Figures = {name: {} for name in names}
    for number in range(rounds):
        for name in order(names, number):
            for figure, value in take(name).items():
                found[name].setdefault(figure, []).append(value)
    return found


def require_same(found: Figures, figure: str) -> None:
    """Raise AssertionError unless all contestants have the same value in all rounds: they delivered the same."""
    values = {value for of_one in found.values() for value in of_one[figure]}
    assert len(values) == 1, f"the contestants differ in {figure}: {sorted(values)}"


_WIDTH = 26


def format_figures(title: str, found: Figures, figures: Sequence[str], reference: str = "") -> Iterator[str]:
    """Format a line for each contestant: medians, and their ratios to `reference`, which are taken within a round.

    >>> list(format_figures("a hop", {"Pipe": {"us": [2.0] * 6}}, ["us"]))[1:]
    ['      us', 'Pipe  2.00 [2.00, 2.00]']
    """
    width = 2 + max(map(len, found))
    yield f"{title}: {describe_rounds(len(next(iter(found.values()))[figures[0]]))}"
    yield _line("", width, [cell for name in figures for cell in (name, *([f"/ {reference}"] if reference else []))])
    for name, own in found.items():
        cells = []
        for figure in figures:
            cells.append(estimate(own[figure]).text())
            if reference:
                cells.append(ratio(own[figure], found[reference][figure]).text())
        yield _line(name, width, cells)


def _line(name: str, width: int, cells: Sequence[str]) -> str:
    return (f"{name:{width}}" + "".join(f"{cell:{_WIDTH}}" for cell in cells)).rstrip()
