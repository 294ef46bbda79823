"""Charts in SVG: lines, areas of shares, histograms of sizes. Pure.

A chart holds little text, so that none overlaps at any width: its title and legend are HTML around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from stagepipe.core import format_bytes, format_ns
from stagepipe.report.render.html.markup import Markup, element, join
from stagepipe.report.series import SizeCount

_WIDTH: Final = 280
_HEIGHT: Final = 110
_TOP: Final = 16
_BOTTOM: Final = 92
_MIN_SIZE_RATIO = 64
"""The axis of sizes spans at least this much, so that both cost curves are on it, and a bar has room around it."""

_CURVE_POINTS: Final = 24

STATES: Final = ("busy", "overhead", "blocked", "starved", "starting")
"""The states of a process's workers, in the order in which they are drawn. Each has a colour and a pattern."""


class Line(NamedTuple):
    """A line of a chart: its points, and the number of its style (colour and dashes)."""

    label: str
    points: Sequence[tuple[float, float]]
    style: int = 0


def draw_patterns() -> Markup:
    """Return the patterns of the states: they tell them apart without their colours. One per page."""
    lines = {
        "busy": "",
        "overhead": "M0 4h8",
        "blocked": "M0 8L8 0M-1 1L1 -1M7 9L9 7",
        "starved": "M2 2h2v2h-2z",
        "starting": "M4 0v8",
    }
    patterns = (
        element(
            "pattern",
            element("rect", width="8", height="8", class_=f"fill-{name}"),
            *([element("path", d=path, class_="hatch")] if path else []),
            id=f"pattern-{name}",
            width="8",
            height="8",
            patternUnits="userSpaceOnUse",
        )
        for name, path in lines.items()
    )
    return element("svg", element("defs", *patterns), width="0", height="0", class_="patterns", aria_hidden="true")


def draw_shares(shares: Mapping[str, float], label: str) -> Markup:
    """Return a bar that is split by shares of 1. Its width is that of the element around it."""
    start, parts = 0.0, []
    for name in STATES:
        share = min(max(shares.get(name, 0.0), 0.0), 1.0 - start)
        if share > 0:
            rect = {"x": f"{start:.2%}", "width": f"{share:.2%}", "height": "100%"}
            parts.append(element("rect", fill=f"url(#pattern-{name})", **rect))
        start += share
    return element("svg", element("title", label), *parts, class_="bar", role="img", aria_label=label)


def draw_lines(lines: Sequence[Line], *, label: str, maximum_text: str, end_s: float) -> Markup:
    """Return lines over time from 0 s to `end_s`, all on one scale from 0 to the highest point."""
    highest = max((y for line in lines for _, y in line.points), default=0.0) or 1.0
    paths = [
        element("path", d=_make_path(line.points, end_s, highest), class_=f"line line-{line.style % 4}")
        for line in lines
        if line.points
    ]
    return _draw_frame(label, [*paths, *_label_time_axis(end_s), _text(2, 11, maximum_text)])


def draw_areas(times_s: Sequence[float], shares: Mapping[str, Sequence[float]], *, label: str) -> Markup:
    """Return shares of 1 over time, one above the other."""
    end_s = times_s[-1] if times_s else 0.0
    count = min((len(times_s), *(len(values) for values in shares.values())))
    lower = [0.0] * count
    parts = []
    for name, values in shares.items():
        upper = [min(low + max(value, 0.0), 1.0) for low, value in zip(lower, values, strict=False)]
        there = _make_path(list(zip(times_s, upper, strict=False)), end_s, 1.0)
        back = _make_path(list(zip(times_s, lower, strict=False))[::-1], end_s, 1.0)
        parts.append(element("path", d=f"{there}L{back[1:]}Z", fill=f"url(#pattern-{name})"))
        lower = upper
    return _draw_frame(label, [*parts, *_label_time_axis(end_s), _text(2, 11, "100 %")])


def draw_sizes(
    sizes: Sequence[SizeCount], threshold_bytes: int, curves: Mapping[str, Any], *, label: str
) -> tuple[Markup, bool]:
    """Return the messages by size with the threshold and the cost curves, and whether there were curves.

    Sizes and costs have log axes: bars belong to the left axis (messages), lines to the right one (ns).
    """
    known = [_read_curve(curves, name) for name in ("pipe", "copied")]
    lowest = max(min(count.min_bytes for count in sizes), 64)
    largest = max(*(count.max_bytes for count in sizes), lowest * 2)
    lowest = min(lowest, max(largest // _MIN_SIZE_RATIO, 1))
    if threshold_bytes > 0:
        lowest, largest = min(lowest, threshold_bytes // 2 or 1), max(largest, min(threshold_bytes * 2, 1 << 40))
    span = math.log(largest / lowest)

    def place(size: float) -> float:
        return _WIDTH * min(max(math.log(max(size, 1) / lowest) / span, 0.0), 1.0)

    most = max(count.messages for count in sizes) or 1
    bars = [
        element(
            "rect",
            x=f"{place(count.min_bytes):.1f}",
            width=f"{max(place(count.max_bytes) - place(count.min_bytes) - 1, 2):.1f}",
            y=f"{_BOTTOM - (_BOTTOM - _TOP) * count.messages / most:.1f}",
            height=f"{(_BOTTOM - _TOP) * count.messages / most:.1f}",
            class_="size",
        )
        for count in sizes
    ]
    shown = [_interpolate(curve, lowest, largest) for curve in known]
    costs = [ns for curve in shown for _, ns in curve]
    lines = []
    if costs:
        low, high = math.log(min(costs)), math.log(max(costs) * 1.01)
        for style, curve in enumerate(shown):
            points = [
                f"{place(size):.1f} {_BOTTOM - (_BOTTOM - _TOP) * (math.log(ns) - low) / (high - low):.1f}"
                for size, ns in curve
            ]
            if len(points) > 1:
                lines.append(element("path", d="M" + "L".join(points), class_=f"line line-{style + 1}"))
    x = f"{place(threshold_bytes):.1f}"
    mark = [element("line", x1=x, x2=x, y1=_TOP, y2=_BOTTOM, class_="threshold")] if threshold_bytes > 0 else []
    texts = [_text(2, 11, f"{most:,} messages"), _text(2, _HEIGHT - 5, format_bytes(lowest))]
    texts.append(_text(_WIDTH - 2, _HEIGHT - 5, format_bytes(largest), anchor="end"))
    if costs:
        cost_text = f"{format_ns(min(costs))} to {format_ns(max(costs))}"
        texts.append(_text(_WIDTH - 2, 11, cost_text, anchor="end"))
    return _draw_frame(label, [*bars, *lines, *mark, *texts]), bool(lines)


def _read_curve(curves: Mapping[str, Any], name: str) -> list[tuple[float, float]]:
    """Return the points of a calibrated curve; none if the report has it in another form."""
    curve = curves.get(name)
    if not isinstance(curve, Mapping):
        return []
    pairs = zip(curve.get("sizes", ()), curve.get("ns", ()), strict=False)
    return [(float(size), float(ns)) for size, ns in pairs]


def _interpolate(curve: Sequence[tuple[float, float]], lowest: float, largest: float) -> list[tuple[float, float]]:
    """Return points of the curve from the lowest to the largest size, as far as it reaches."""
    curve = [(size, ns) for size, ns in curve if size > 0 and ns > 0]
    if len(curve) <= 1 or (low := max(lowest, curve[0][0])) >= (high := min(largest, curve[-1][0])):
        return []
    sizes = np.geomspace(low, high, _CURVE_POINTS)
    costs = np.interp(sizes, [size for size, _ in curve], [ns for _, ns in curve])
    return [(float(size), float(ns)) for size, ns in zip(sizes, costs, strict=True)]


def _make_path(points: Sequence[tuple[float, float]], end: float, highest: float) -> str:
    scale_x, scale_y = _WIDTH / (end or 1.0), (_BOTTOM - _TOP) / highest
    return "M" + "L".join(f"{x * scale_x:.0f} {_BOTTOM - max(y, 0.0) * scale_y:.1f}" for x, y in points)


def _label_time_axis(end_s: float) -> list[Markup]:
    y = _HEIGHT - 5
    return [_text(2, y, "0 s"), _text(_WIDTH - 2, y, format_ns(end_s * 1e9), anchor="end")]


def _text(x: float, y: float, text: str, *, anchor: str | None = None) -> Markup:
    return element("text", text, x=x, y=y, text_anchor=anchor)


def _draw_frame(label: str, content: Sequence[Markup]) -> Markup:
    axis = element("line", x1="0", x2=_WIDTH, y1=_BOTTOM, y2=_BOTTOM, class_="axis")
    box = f"0 0 {_WIDTH} {_HEIGHT}"
    return element(
        "svg", element("title", label), axis, join(content), viewbox=box, class_="chart", role="img", aria_label=label
    )
