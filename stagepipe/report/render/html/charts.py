"""Charts in SVG that stretch to the width of what is around them: shares and lines over time. Pure.

A chart holds no text. Its scale, unit and legend are HTML around it, so that no text is stretched and none overlaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from stagepipe.report.render.html.markup import Markup, element

STATES: Final = ("busy", "overhead", "blocked", "starved", "starting")
"""The states of a process's workers, in the order in which they are drawn."""

_HEIGHT: Final = 40
_MAX_POINTS: Final = 100
"""More points than a strip has pixels to show them on a small screen."""


def thin(values: Sequence[float]) -> list[float]:
    """Return at most 100 values, each the mean of some neighbours.

    >>> thin([1.0, 3.0])
    [1.0, 3.0]
    """
    count = min(len(values), _MAX_POINTS)
    bounds = [round(number * len(values) / count) for number in range(count + 1)] if count else []
    return [sum(values[low:high]) / (high - low) for low, high in pairwise(bounds)]


def draw_shares(shares: Mapping[str, Sequence[float]], label: str) -> Markup:
    """Return shares of 1 over time, one above the other: a level bar if there is one value of each."""
    lower = [0.0] * len(shares["busy"])
    areas = []
    for name in STATES:
        upper = [low + max(value, 0.0) for low, value in zip(lower, shares[name], strict=True)]
        if upper != lower:
            areas.append((name, upper))
        lower = upper
    paths = [
        element("path", d=f"{_make_path(upper, 1.0)}V{_HEIGHT}H0Z", class_=f"fill-{name}")
        for name, upper in reversed(areas)  # the lower ones cover the upper ones
    ]
    return _draw_frame(len(lower), paths, label)


def draw_lines(lines: Mapping[int, Sequence[float]], highest: float, label: str) -> Markup:
    """Return lines over time by the number of their style, on a scale from 0 to `highest`. What is above it is cut."""
    paths = [
        element("path", d=_make_path(values, highest), class_=f"line line-{style}") for style, values in lines.items()
    ]
    return _draw_frame(max(map(len, lines.values())), paths, label)


def draw_key(name: str) -> Markup:
    """Return the piece of a legend that shows the colour of a state, or the line of a style."""
    if name in STATES:
        return element("i", class_=f"key fill-{name}")
    path = element("path", d="M0 5H26", class_=f"line line-{name}")
    return element("svg", path, class_="key", viewbox="0 0 26 10", aria_hidden="true")


def _make_path(values: Sequence[float], highest: float) -> str:
    """Return a line whose points are one unit apart. Steps take half of the characters of coordinates."""
    heights = [round(_HEIGHT * (1 - min(max(value, 0.0) / highest, 1.0))) for value in values] if highest > 0 else []
    if len(heights) <= 1:
        return f"M0 {heights[0] if heights else _HEIGHT}H1"
    steps = "".join(f" 1 {after - before}" for before, after in pairwise(heights))
    return f"M0 {heights[0]}l{steps[1:]}"


def _draw_frame(points: int, paths: Sequence[Markup], label: str) -> Markup:
    return element(
        "svg",
        *paths,
        viewbox=f"0 0 {max(points - 1, 1)} {_HEIGHT}",
        preserveaspectratio="none",
        class_="strip",
        role="img",
        aria_label=label,
    )
