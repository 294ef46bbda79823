"""E5's tables. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from published_.e5.queues import COUNT
from published_.page.forms import beside, duration, name, seconds, spread, table
from published_.page.verdicts import reference
from published_.summary import Row
from published_.write_ups import E5_EIGHT_WORKERS_S


def functions(rows: Sequence[Row]) -> list[str]:
    """Those that were measured."""
    return list(dict.fromkeys(payload.partition(" x ")[0] for payload in rows[0].figures))


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """A table for each function."""
    for function in functions(rows):
        payloads = [payload for payload in rows[0].figures if payload.startswith(f"{function} x ")]
        yield ""
        yield f"**{function}**, the best and (behind it) the median:"
        head = (
            "contestant",
            "published, w = 8",
            *(f"w = {payload.rpartition(' ')[2]}" for payload in payloads),
        )
        yield from table(
            (*head, "times stagepipe, the largest w"), (_line(row, rows, function, payloads) for row in rows)
        )
    ws = [payload.rpartition(" ")[2] for payload in rows[0].figures]
    starts = [ns for row in rows for told in row.told for ns in told.get("start_ns", {}).values()]
    if starts:
        yield ""
        between = f"{duration(min(starts))} to {duration(max(starts))}"
        yield f"Starting a pipeline takes {between} with w = {ws[0]} to {ws[-1]}, its first epoch included; once."


def _line(row: Row, rows: Sequence[Row], function: str, payloads: Sequence[str]) -> list[str]:
    ours = reference("E5", list(rows))
    return [
        name(row),
        seconds(E5_EIGHT_WORKERS_S.get(row.contestant.name, {}).get(function)),
        *(_best(row, payload) for payload in payloads),
        beside(row, ours, payloads[-1]),
    ]


def _best(row: Row, payload: str) -> str:
    figure = row.figures[payload]
    return f"{duration(figure.best_ns)} ({duration(figure.ns.value)})" if figure.ns else spread(figure)


def queue_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Microseconds an object."""
    ours = reference("E5 queue", list(rows))
    payloads = list(rows[0].figures)
    yield ""
    yield "Microseconds an object, and behind it how many times stagepipe's:"
    yield from table(
        ("contestant", *payloads), ([name(row), *(_each(row, ours, each) for each in payloads)] for row in rows)
    )


def _each(row: Row, ours: Row | None, payload: str) -> str:
    figure = row.figures[payload]
    if figure.ns is None:
        return spread(figure)
    each_us = f"{figure.ns.value / COUNT / 1000:,.2f}"
    ratio = beside(row, ours, payload)
    return f"{each_us} ({ratio})" if ratio else each_us
