"""E2's tables. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from benchmarks.published.write_ups import E2_PIPE_SEND_RECEIVE_S, E2_SEND_RECEIVE_S

_CALLS = ("send", "receive")


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Format the largest list, then the totals by size."""
    *_, largest = rows[0].figures
    header = (
        "contestant",
        "published at 10^8: send, receive",
        f"here at {largest}: send, receive",
        "total",
        "times stagepipe",
        "CPU",
        "peak memory",
    )
    yield from table(header, (_largest(row, rows, largest) for row in by_time(rows, largest)))
    yield ""
    yield "Totals by size:"
    body = ([name(row), *(spread(figure) for figure in row.figures.values())] for row in rows)
    yield from table(("contestant", *rows[0].figures), body)
    yield ""
    yield "Pipe by size, send and receive, as published and here:"
    pipe = next((row for row in rows if row.contestant.name == "Pipe"), None)
    if pipe is not None:
        yield from table(("n", "published", "here"), (_pipe(pipe, payload) for payload in pipe.figures))


def _largest(row: Row, rows: Sequence[Row], payload: str) -> list[str]:
    figure, stagepipe = row.figures[payload], reference("E2", list(rows), row.contestant.name)
    return [
        name(row),
        ", ".join(map(seconds, E2_SEND_RECEIVE_S.get(row.contestant.name, ()))),
        _both(row, payload),
        spread(figure),
        times_stagepipe(row, stagepipe, payload),
        duration(figure.cpu_ns) if figure.ns else EMPTY,
        megabytes(figure.peak_bytes),
    ]


def _both(row: Row, payload: str) -> str:
    parts = row.figures[payload].parts_ns or next((report["parts_ns"].get(payload, {}) for report in row.reports), {})
    return ", ".join(duration(parts[call]) for call in _CALLS if call in parts)


def _pipe(row: Row, payload: str) -> list[str]:
    return [payload, ", ".join(map(seconds, E2_PIPE_SEND_RECEIVE_S.get(payload, ()))), _both(row, payload)]
