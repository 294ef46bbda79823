"""The project's targets for the figures, and whether they are met. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.common.figures import Estimate, estimate, ratio
from benchmarks.common.targets import Target, is_met
from benchmarks.hop.loop import LoopFigures
from benchmarks.hop.pipelines import HEADER_ONLY
from benchmarks.hop.schedule import BASE, Row
from benchmarks.hop.tables import LOOP_BASE

_IMAGE = "1.2MB"
_MAX_TIMING_NS = 2000
_MAX_GROWTH = 2.0
"""The allowed growth from the smallest size in shared memory to one a thousand times as large: mostly noise."""


class Figures:
    """The untouched rows by contestant and size."""

    def __init__(self, rows: list[Row]) -> None:
        """Leave out the touched rows, because the receiver's own work is in all of their figures."""
        self._us = {(row.contestant, row.size): row.us for row in rows if not row.touched}

    def us(self, name: str, size: str) -> list[float] | None:
        """Return a value for each round, or None if the contestant was not measured."""
        return self._us.get((name, size))

    def times(self, of: str, to: str, size: str) -> Estimate | None:
        """Return the time of `of` divided by that of `to`, or None if one of them was not measured."""
        first, second = self.us(of, size), self.us(to, size)
        return ratio(first, second) if first and second else None


def targets(rows: list[Row], reports: dict[str, dict[str, Any]], loops: LoopFigures) -> Iterator[Target]:
    """Judge all targets."""
    figures = Figures(rows)
    yield _copied(figures)
    for name, times in ((BASE, 30), ("stagepipe filled", 30), ("stagepipe passed on", 15), (HEADER_ONLY, 60)):
        yield _faster_than_pipe(name.removeprefix("stagepipe "), figures.times("Pipe", name, _IMAGE), times)
    yield _flat(figures)
    for size in ("0B", "1KB"):
        yield _against_pipe(f"at {size}, copied, no slower than Pipe with the same dict", figures, size)
    yield from _loops(loops)
    yield _timing(reports)


def _copied(figures: Figures) -> Target:
    text = f"at {_IMAGE}, copied, at most 1.5 x memcpy + the small hop"
    copied, small = figures.us(BASE, _IMAGE), figures.us(BASE, "0B")
    memcpy, to_one = figures.us("memcpy", _IMAGE), figures.us("memcpy to one", _IMAGE)
    if not (copied and small and memcpy and to_one):
        return Target(text)
    hop = median(small)
    times, times_one = (ratio([us - hop for us in copied], base) for base in (memcpy, to_one))
    measured = f"{times.text()} x memcpy + {hop:.1f} us ({times_one.text()} x memcpy to a single buffer)"
    return Target(text, measured, is_met(times, at_most=1.5))


def _faster_than_pipe(variant: str, found: Estimate | None, times: int) -> Target:
    text = f"at {_IMAGE}, {variant}, at least {times} times faster than Pipe"
    return Target(text, f"{found.text(1)} times faster", is_met(found, at_least=times)) if found else Target(text)


def _against_pipe(text: str, figures: Figures, size: str) -> Target:
    found = figures.times(BASE, "Pipe", size)
    return Target(text, f"{found.text()} times Pipe", is_met(found, at_most=1.0)) if found else Target(text)


def _loops(loops: LoopFigures) -> Iterator[Target]:
    for kind, turns in loops.items():
        for name, base in LOOP_BASE.items():
            text = f"a loop over dicts of {kind}, {name}: no slower than {base}"
            if not (turns.get(name) and turns.get(base)):
                yield Target(text)
                continue
            found = ratio([turn["us"] for turn in turns[name]], [turn["us"] for turn in turns[base]])
            yield Target(text, f"{found.text()} times {base}", is_met(found, at_most=1.0))


def _flat(figures: Figures) -> Target:
    text = f"header only and untouched, the cost grows at most {_MAX_GROWTH:.0f} times with size up to 64 MB"
    us_by_size = {size: figures.us(HEADER_ONLY, size) for size in ("64KB", _IMAGE, "8MB", "64MB")}
    found = {size: us for size, us in us_by_size.items() if us}
    if "64MB" not in found or len(found) < 2:
        return Target(text)
    largest = found.pop("64MB")
    smallest = min(found.values(), key=median)
    growth = estimate([us / base for us, base in zip(largest, smallest, strict=False)])
    return Target(text, f"{growth.text()} times", is_met(growth, at_most=_MAX_GROWTH))


def _timing(reports: dict[str, dict[str, Any]]) -> Target:
    text = f"timing costs at most {_MAX_TIMING_NS / 1000:.0f} us per hop"
    timing_ns = [report["timing_ns_per_hop"] for by_name in reports.values() for report in by_name.values()]
    if not timing_ns:
        return Target(text)
    measured = f"{max(timing_ns) / 1000:.2f} us, according to stagepipe's report"
    return Target(text, measured, max(timing_ns) <= _MAX_TIMING_NS)
