"""E2's tables. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from published_.page.forms import NOTHING, beside, by_time, duration, megabytes, name, seconds, spread, table
from published_.page.verdicts import reference
from published_.summary import Row
from published_.write_ups import E2_PIPE_SEND_RECEIVE_S, E2_SEND_RECEIVE_S

_CALLS = ("send", "receive")


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """The largest list, then the curve."""
    *_, largest = rows[0].figures
    head = (
        "contestant",
        "published at 10^8: send, receive",
        f"here at {largest}: send, receive",
        "total",
        "times stagepipe",
        "CPU",
        "peak memory",
    )
    yield from table(head, (_largest(row, rows, largest) for row in by_time(rows, largest)))
    yield ""
    yield "The totals by size:"
    body = ([name(row), *(spread(figure) for figure in row.figures.values())] for row in rows)
    yield from table(("contestant", *rows[0].figures), body)
    yield ""
    yield "Pipe by size, send and receive, as published and here:"
    pipe = next((row for row in rows if row.contestant.name == "Pipe"), None)
    if pipe is not None:
        yield from table(("n", "published", "here"), (_pipe(pipe, payload) for payload in pipe.figures))


def _largest(row: Row, rows: Sequence[Row], payload: str) -> list[str]:
    figure, ours = row.figures[payload], reference("E2", list(rows), row.contestant.name)
    return [
        name(row),
        ", ".join(map(seconds, E2_SEND_RECEIVE_S.get(row.contestant.name, ()))),
        _both(row, payload),
        spread(figure),
        beside(row, ours, payload),
        duration(figure.cpu_ns) if figure.ns else NOTHING,
        megabytes(figure.peak_bytes),
    ]


def _both(row: Row, payload: str) -> str:
    parts = row.figures[payload].parts_ns or next((told["parts_ns"].get(payload, {}) for told in row.told), {})
    return ", ".join(duration(parts[call]) for call in _CALLS if call in parts)


def _pipe(row: Row, payload: str) -> list[str]:
    return [payload, ", ".join(map(seconds, E2_PIPE_SEND_RECEIVE_S.get(payload, ()))), _both(row, payload)]
