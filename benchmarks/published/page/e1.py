"""E1's tables. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.published.e1.protocol import PARTS
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
from benchmarks.published.write_ups import E1_RECEIVE_AND_RESTORE_S

_COMPARED = ("responder receive", "responder restore")


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Format the totals, then all parts."""
    payload = next(iter(rows[0].figures))
    ordered, stagepipe = by_time(rows, payload), reference("E1", list(rows))
    header = (
        "contestant",
        "published: responder's receive and restore",
        "measured here",
        "total",
        "times stagepipe",
        "CPU",
        "peak memory",
    )
    yield from table(header, (_total(row, stagepipe, payload) for row in ordered))
    yield ""
    yield "Medians of the parts:"
    yield from table(("contestant", *PARTS), ([name(row), *_cells(row, payload)] for row in ordered))


def _total(row: Row, stagepipe: Row | None, payload: str) -> list[str]:
    figure, parts = row.figures[payload], parts_ns(row, payload)
    return [
        name(row),
        seconds(E1_RECEIVE_AND_RESTORE_S.get(row.contestant.name)),
        duration(sum(parts[part] for part in _COMPARED)) if parts.keys() >= set(_COMPARED) else EMPTY,
        spread(figure),
        times_stagepipe(row, stagepipe, payload),
        duration(figure.cpu_ns) if figure.ns else EMPTY,
        megabytes(figure.peak_bytes),
    ]


def parts_ns(row: Row, payload: str) -> dict[str, float]:
    """Return the parts from the contestant's own clocks, or from stagepipe's report."""
    return row.figures[payload].parts_ns or next((report["parts_ns"] for report in row.reports), {})


def _cells(row: Row, payload: str) -> list[str]:
    parts = parts_ns(row, payload)
    return [duration(parts[part]) if part in parts else EMPTY for part in PARTS]
