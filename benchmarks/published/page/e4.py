"""E4's tables, one for each shape. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.published.e4.arrays import SHAPES
from benchmarks.published.page.forms import (
    EMPTY,
    by_time,
    duration,
    megabytes,
    name,
    seconds,
    spread,
    table,
    times_stagepipe,
)
from benchmarks.published.page.verdicts import reference
from benchmarks.published.summary import Row
from benchmarks.published.write_ups import E4_S

READY = " ready"


def shapes(rows: Sequence[Row]) -> list[str]:
    """Return the measured shapes."""
    return [payload for payload in rows[0].figures if not payload.endswith(READY)]


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Format the created and the ready arrays side by side; the fastest with a ready array comes first."""
    stagepipe = reference("E4", list(rows))
    for shape in shapes(rows):
        nbytes = rows[0].figures[shape].nbytes
        yield ""
        yield f"**{shape}**, {SHAPES.get(shape, '')} {nbytes / 1e6:,.1f} MB:"
        header = (
            "contestant",
            "published",
            "made",
            "times stagepipe",
            "ready",
            "times stagepipe",
            "CPU",
            "peak memory",
        )
        yield from table(header, (_line(row, stagepipe, shape) for row in by_time(rows, shape + READY)))


def _line(row: Row, stagepipe: Row | None, shape: str) -> list[str]:
    made, ready = row.figures[shape], row.figures[shape + READY]
    return [
        name(row),
        seconds(E4_S.get(row.contestant.name, {}).get(shape)),
        spread(made),
        times_stagepipe(row, stagepipe, shape),
        spread(ready) if ready.ns or not made.reason else EMPTY,
        times_stagepipe(row, stagepipe, shape + READY),
        duration(ready.cpu_ns) if ready.ns else EMPTY,
        megabytes(ready.peak_bytes),
    ]
