"""What the figures must be, by the project's own promise, and whether they are. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from hop_.schedule import BASE, Row
from side_by_side.figures import Estimate, estimate, ratio
from side_by_side.targets import Target

_IMAGE = "1.2MB"
_TIMING_NS = 2000
_GROWTH = 2.0
"""From the smallest size that travels in shared memory to one a thousand times as large: hardly more than noise."""


class Figures:
    """The untouched rows by contestant and size."""

    def __init__(self, rows: list[Row]) -> None:
        """The touched rows are for reading: there the receiver's own work is in every figure."""
        self._us = {(row.contestant, row.size): row.us for row in rows if not row.touched}

    def us(self, name: str, size: str) -> list[float] | None:
        """A value a round; None if it was not measured."""
        return self._us.get((name, size))

    def times(self, of: str, to: str, size: str) -> Estimate | None:
        """How many times `to` the contestant `of` takes."""
        first, second = self.us(of, size), self.us(to, size)
        return ratio(first, second) if first and second else None


def targets(rows: list[Row], reports: dict[str, dict[str, Any]]) -> Iterator[Target]:
    """All of them, in the order of the promise."""
    figures = Figures(rows)
    yield _copied(figures)
    yield _at_least("copied", figures.times("Pipe", BASE, _IMAGE), 30)
    for way in ("loaned", "passed on"):
        yield _at_least(way, figures.times("Pipe", f"stagepipe {way}", _IMAGE), 60)
    yield _flat(figures)
    for size in ("0B", "1KB"):
        found = figures.times(BASE, "Pipe", size)
        text = f"at {size}, copied, at most what Pipe takes with the same dict"
        yield (
            Target(text, *_no_value())
            if found is None
            else Target(text, f"{found.text()} times Pipe", found.value <= 1.0)
        )
    yield _timing(reports)


def _copied(figures: Figures) -> Target:
    text = f"at {_IMAGE}, copied, at most 1.5 x memcpy + the small hop"
    copied, small = figures.us(BASE, _IMAGE), figures.us(BASE, "0B")
    memcpy, to_one = figures.us("memcpy", _IMAGE), figures.us("memcpy to one", _IMAGE)
    if not (copied and small and memcpy and to_one):
        return Target(text, *_no_value())
    hop = median(small)
    found = estimate([(a - hop) / b for a, b in zip(copied, memcpy, strict=True)])
    against_one = estimate([(a - hop) / b for a, b in zip(copied, to_one, strict=True)])
    return Target(
        text,
        f"{found.text()} x memcpy + {hop:.1f} us ({against_one.text()} x memcpy to a single buffer)",
        found.value <= 1.5,
    )


def _at_least(way: str, found: Estimate | None, times: int) -> Target:
    text = f"at {_IMAGE}, {way}, at least {times} times less than Pipe"
    if found is None:
        return Target(text, *_no_value())
    return Target(text, f"{found.text(1)} times less", found.value >= times)


def _flat(figures: Figures) -> Target:
    text = "loaned and untouched, the cost does not grow with size up to 64 MB"
    found = {size: figures.us("stagepipe loaned", size) for size in ("64KB", _IMAGE, "8MB", "64MB")}
    values = {size: median(us) for size, us in found.items() if us}
    if "64MB" not in values or len(values) < 2:
        return Target(text, *_no_value())
    least = min(values, key=lambda size: values[size] if size != "64MB" else float("inf"))
    growth = values["64MB"] / values[least]
    listed = ", ".join(f"{size} {us:.1f} us" for size, us in values.items())
    return Target(text, f"{listed} ({growth:.2f} times; {_GROWTH:.0f} allowed)", growth <= _GROWTH)


def _timing(reports: dict[str, dict[str, Any]]) -> Target:
    text = f"timing costs at most {_TIMING_NS / 1000:.0f} us a hop"
    found = [report["timing_ns_per_hop"] for by_name in reports.values() for report in by_name.values()]
    if not found:
        return Target(text, *_no_value())
    return Target(text, f"{max(found) / 1000:.2f} us, as stagepipe's report says", max(found) <= _TIMING_NS)


def _no_value() -> tuple[str, None]:
    return "not measured in this run", None
