"""The project's targets for the figures, and whether they are met. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.common.figures import Estimate, estimate, ratio
from benchmarks.common.targets import Target
from benchmarks.hop.schedule import BASE, Row

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


def targets(rows: list[Row], reports: dict[str, dict[str, Any]]) -> Iterator[Target]:
    """Judge all targets."""
    figures = Figures(rows)
    yield _copied(figures)
    yield _faster_than_pipe("copied", figures.times("Pipe", BASE, _IMAGE), 30)
    for variant in ("loaned", "passed on"):
        yield _faster_than_pipe(variant, figures.times("Pipe", f"stagepipe {variant}", _IMAGE), 60)
    yield _flat(figures)
    for size in ("0B", "1KB"):
        times_pipe = figures.times(BASE, "Pipe", size)
        text = f"at {size}, copied, no slower than Pipe with the same dict"
        yield (
            Target(text, *_no_value())
            if times_pipe is None
            else Target(text, f"{times_pipe.text()} times Pipe", times_pipe.value <= 1.0)
        )
    yield _timing(reports)


def _copied(figures: Figures) -> Target:
    text = f"at {_IMAGE}, copied, at most 1.5 x memcpy + the small hop"
    copied, small = figures.us(BASE, _IMAGE), figures.us(BASE, "0B")
    memcpy, to_one = figures.us("memcpy", _IMAGE), figures.us("memcpy to one", _IMAGE)
    if not (copied and small and memcpy and to_one):
        return Target(text, *_no_value())
    hop = median(small)
    times_memcpy = estimate([(us - hop) / memcpy_us for us, memcpy_us in zip(copied, memcpy, strict=True)])
    times_one_buffer = estimate([(us - hop) / memcpy_us for us, memcpy_us in zip(copied, to_one, strict=True)])
    return Target(
        text,
        f"{times_memcpy.text()} x memcpy + {hop:.1f} us ({times_one_buffer.text()} x memcpy to a single buffer)",
        times_memcpy.value <= 1.5,
    )


def _faster_than_pipe(variant: str, estimate: Estimate | None, times: int) -> Target:
    text = f"at {_IMAGE}, {variant}, at least {times} times faster than Pipe"
    if estimate is None:
        return Target(text, *_no_value())
    return Target(text, f"{estimate.text(1)} times faster", estimate.value >= times)


def _flat(figures: Figures) -> Target:
    text = "loaned and untouched, the cost does not grow with size up to 64 MB"
    us_by_size = {size: figures.us("stagepipe loaned", size) for size in ("64KB", _IMAGE, "8MB", "64MB")}
    values = {size: median(us) for size, us in us_by_size.items() if us}
    if "64MB" not in values or len(values) < 2:
        return Target(text, *_no_value())
    smallest = min(values, key=lambda size: values[size] if size != "64MB" else float("inf"))
    growth = values["64MB"] / values[smallest]
    listed = ", ".join(f"{size} {us:.1f} us" for size, us in values.items())
    return Target(text, f"{listed} ({growth:.2f} times; {_MAX_GROWTH:.0f} allowed)", growth <= _MAX_GROWTH)


def _timing(reports: dict[str, dict[str, Any]]) -> Target:
    text = f"timing costs at most {_MAX_TIMING_NS / 1000:.0f} us per hop"
    timing_ns = [report["timing_ns_per_hop"] for by_name in reports.values() for report in by_name.values()]
    if not timing_ns:
        return Target(text, *_no_value())
    return Target(
        text, f"{max(timing_ns) / 1000:.2f} us, according to stagepipe's report", max(timing_ns) <= _MAX_TIMING_NS
    )


def _no_value() -> tuple[str, None]:
    return "not measured in this run", None
