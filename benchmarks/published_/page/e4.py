"""E4's tables, one for each shape. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from published_.e4.arrays import SHAPES
from published_.page.forms import NOTHING, beside, by_time, duration, megabytes, name, seconds, spread, table
from published_.page.verdicts import reference
from published_.summary import Row
from published_.write_ups import E4_S

READY = " ready"


def shapes(rows: Sequence[Row]) -> list[str]:
    """Those that were measured."""
    return [payload for payload in rows[0].figures if not payload.endswith(READY)]


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Made and ready, side by side; the quickest with a ready array first."""
    ours = reference("E4", list(rows))
    for shape in shapes(rows):
        nbytes = rows[0].figures[shape].nbytes
        yield ""
        yield f"**{shape}**, {SHAPES.get(shape, '')} {nbytes / 1e6:,.1f} MB:"
        head = ("contestant", "published", "made", "times stagepipe", "ready", "times stagepipe", "CPU", "peak memory")
        yield from table(head, (_line(row, ours, shape) for row in by_time(rows, shape + READY)))


def _line(row: Row, ours: Row | None, shape: str) -> list[str]:
    made, ready = row.figures[shape], row.figures[shape + READY]
    return [
        name(row),
        seconds(E4_S.get(row.contestant.name, {}).get(shape)),
        spread(made),
        beside(row, ours, shape),
        spread(ready) if ready.ns or not made.reason else NOTHING,
        beside(row, ours, shape + READY),
        duration(ready.cpu_ns) if ready.ns else NOTHING,
        megabytes(ready.peak_bytes),
    ]
