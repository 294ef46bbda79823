"""E5's tables. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.published.e5.queues import COUNT
from benchmarks.published.page.forms import duration, name, seconds, spread, table, times_stagepipe
from benchmarks.published.page.verdicts import reference
from benchmarks.published.summary import Row
from benchmarks.published.write_ups import E5_EIGHT_WORKERS_S


def functions(rows: Sequence[Row]) -> list[str]:
    """Return the measured functions."""
    return list(dict.fromkeys(payload.partition(" x ")[0] for payload in rows[0].figures))


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Format a table for each function."""
    for function in functions(rows):
        payloads = [payload for payload in rows[0].figures if payload.startswith(f"{function} x ")]
        yield ""
        yield f"**{function}**, the best time and (in parentheses) the median:"
        header = (
            "contestant",
            "published, w = 8",
            *(f"w = {payload.rpartition(' ')[2]}" for payload in payloads),
        )
        yield from table(
            (*header, "times stagepipe at the largest w"), (_line(row, rows, function, payloads) for row in rows)
        )
    ws = [payload.rpartition(" ")[2] for payload in rows[0].figures]
    starts = [ns for row in rows for report in row.reports for ns in report.get("start_ns", {}).values()]
    if starts:
        yield ""
        start_range = f"{duration(min(starts))} to {duration(max(starts))}"
        yield f"A pipeline starts once, in {start_range} with w = {ws[0]} to {ws[-1]}, including its first epoch."


def _line(row: Row, rows: Sequence[Row], function: str, payloads: Sequence[str]) -> list[str]:
    stagepipe = reference("E5", list(rows))
    return [
        name(row),
        seconds(E5_EIGHT_WORKERS_S.get(row.contestant.name, {}).get(function)),
        *(_best(row, payload) for payload in payloads),
        times_stagepipe(row, stagepipe, payloads[-1]),
    ]


def _best(row: Row, payload: str) -> str:
    figure = row.figures[payload]
    return f"{duration(figure.best_ns)} ({duration(figure.ns.value)})" if figure.ns else spread(figure)


def queue_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Format the microseconds per object."""
    stagepipe = reference("E5 queue", list(rows))
    payloads = list(rows[0].figures)
    yield ""
    yield "Microseconds per object, and (in parentheses) the ratio to stagepipe's:"
    yield from table(
        ("contestant", *payloads),
        ([name(row), *(_us_per_object(row, stagepipe, payload) for payload in payloads)] for row in rows),
    )


def _us_per_object(row: Row, stagepipe: Row | None, payload: str) -> str:
    figure = row.figures[payload]
    if figure.ns is None:
        return spread(figure)
    object_us = f"{figure.ns.value / COUNT / 1000:,.2f}"
    ratio = times_stagepipe(row, stagepipe, payload)
    return f"{object_us} ({ratio})" if ratio else object_us
