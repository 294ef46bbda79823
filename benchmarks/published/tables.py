"""The tables of each experiment, from the rows of its contestants. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.common.figures import VERDICTS
from benchmarks.crossover.rounds import Row as CrossoverRow
from benchmarks.crossover.verdict import lines as crossover_lines
from benchmarks.crossover.verdict import make_table, targets
from benchmarks.published.e1.channels import PARTS
from benchmarks.published.e4 import SHAPES
from benchmarks.published.e5.queues import COUNT
from benchmarks.published.experiments import (
    E1_RECEIVE_AND_RESTORE_S,
    E2_PIPE_SEND_RECEIVE_S,
    E2_SEND_RECEIVE_S,
    E4_S,
    E5_EIGHT_WORKERS_S,
)
from benchmarks.published.results import Row, Summary
from benchmarks.published.verdicts import (
    EMPTY,
    by_time,
    duration,
    megabytes,
    name,
    reference,
    rounds,
    seconds,
    spread,
    table,
    times_stagepipe,
)

E3 = "E3"
READY = " ready"
_N = "n (coverage)"
_COMPARED = ("responder receive", "responder restore")
_CALLS = ("send", "receive")


def experiment_tables(experiment: str, summary: Summary, about: dict[str, Any]) -> Iterator[str]:
    """Format an experiment's tables, or say that this run did not measure it."""
    if experiment == E3 and E3 in about:
        yield from _e3([CrossoverRow(**row) for row in about[E3]["rows"]])
    elif experiment in summary:
        yield from _TABLES[experiment](summary[experiment])
    else:
        yield "\nNot measured in this run."


# ---------------------------------------------------------------------------------------------- E1


def _e1(rows: Sequence[Row]) -> Iterator[str]:
    payload = next(iter(rows[0].figures))
    ordered = by_time(rows, payload)
    header = ("contestant", "its work", "published: responder's receive and restore", "measured here", "total", _N)
    yield from table(
        (*header, "times stagepipe", "CPU", "peak memory"),
        (_e1_total(row, rows, payload) for row in ordered),
    )
    yield "\nMedians of the parts:"
    yield from table(("contestant", *PARTS), ([name(row), *_e1_parts(row, payload)] for row in ordered))


def _e1_total(row: Row, rows: Sequence[Row], payload: str) -> list[str]:
    figure, parts = row.figures[payload], _parts_ns(row, payload)
    return [
        name(row),
        row.contestant.work,
        seconds(E1_RECEIVE_AND_RESTORE_S.get(row.contestant.name)),
        duration(sum(parts[part] for part in _COMPARED)) if parts.keys() >= set(_COMPARED) else EMPTY,
        spread(figure),
        rounds([figure]),
        times_stagepipe(row, reference("E1", rows, row), payload),
        *_usage(row, payload),
    ]


def _usage(row: Row, payload: str) -> list[str]:
    figure = row.figures[payload]
    return [duration(figure.cpu_ns) if figure.ns else EMPTY, megabytes(figure.peak_bytes)]


def _parts_ns(row: Row, payload: str) -> dict[str, float]:
    """Return the parts from the contestant's own clocks, or from stagepipe's report."""
    return row.figures[payload].parts_ns or next(
        (report["parts_ns"] for report in row.reports if "parts_ns" in report), {}
    )


def _e1_parts(row: Row, payload: str) -> list[str]:
    parts = _parts_ns(row, payload)
    return [duration(parts[part]) if part in parts else EMPTY for part in PARTS]


# ---------------------------------------------------------------------------------------------- E2


def _e2(rows: Sequence[Row]) -> Iterator[str]:
    *_, largest = rows[0].figures
    header = ("contestant", "published at 10^8: send, receive", f"here at {largest}: send, receive", "total", _N)
    yield from table(
        (*header, "times stagepipe", "CPU", "peak memory"),
        (_e2_largest(row, rows, largest) for row in by_time(rows, largest)),
    )
    yield "\nTotals by size:"
    body = ([name(row), rounds(row.figures.values()), *map(spread, row.figures.values())] for row in rows)
    yield from table(("contestant", _N, *rows[0].figures), body)
    pipe = next((row for row in rows if row.contestant.name == "Pipe"), None)
    if pipe is not None:
        yield "\nPipe by size, send and receive, as published and here:"
        yield from table(("n", "published", "here"), (_e2_pipe(pipe, payload) for payload in pipe.figures))


def _e2_largest(row: Row, rows: Sequence[Row], payload: str) -> list[str]:
    figure = row.figures[payload]
    return [
        name(row),
        ", ".join(map(seconds, E2_SEND_RECEIVE_S.get(row.contestant.name, ()))),
        _e2_calls(row, payload),
        spread(figure),
        rounds([figure]),
        times_stagepipe(row, reference("E2", rows, row), payload),
        *_usage(row, payload),
    ]


def _e2_calls(row: Row, payload: str) -> str:
    parts = row.figures[payload].parts_ns or next((report["parts_ns"].get(payload, {}) for report in row.reports), {})
    return ", ".join(duration(parts[call]) for call in _CALLS if call in parts)


def _e2_pipe(row: Row, payload: str) -> list[str]:
    return [payload, ", ".join(map(seconds, E2_PIPE_SEND_RECEIVE_S.get(payload, ()))), _e2_calls(row, payload)]


# ---------------------------------------------------------------------------------------------- E3


def _e3(rows: Sequence[CrossoverRow]) -> Iterator[str]:
    by_size = crossover_lines(rows)
    if not by_size:
        yield "\nNot all contestants were measured in this run."
        return
    repetitions, coverage = len(rows[0].us), next(iter(by_size[0].us.values())).coverage
    yield f"\nMicroseconds per transfer, measured from the request; n = {repetitions} ({coverage:.1%}) in each row:"
    yield ""
    yield from make_table(by_size)
    yield ""
    for target in targets(by_size, len(by_size)):
        verdict = "**missed**" if target.met is False else VERDICTS[target.met]
        yield f"- {target.text}: {verdict}; {target.measured}"


# ---------------------------------------------------------------------------------------------- E4


def shapes(rows: Sequence[Row]) -> list[str]:
    """Return the measured shapes of E4."""
    return [payload for payload in rows[0].figures if not payload.endswith(READY)]


def _e4(rows: Sequence[Row]) -> Iterator[str]:
    for shape in shapes(rows):
        yield f"\n**{shape}**, {SHAPES.get(shape, '')} {rows[0].figures[shape].nbytes / 1e6:,.1f} MB:"
        header = ("contestant", "published", "made", "times stagepipe", "ready", "times stagepipe", _N)
        body = (_e4_line(row, reference("E4", rows, row), shape) for row in by_time(rows, shape + READY))
        yield from table((*header, "CPU", "peak memory"), body)
    if found := [f"{row.contestant.name}: {row.runs_with}" for row in rows if row.runs_with]:
        yield f"\nRuns with: {'; '.join(found)}."


def _e4_line(row: Row, stagepipe: Row | None, shape: str) -> list[str]:
    made, ready = row.figures[shape], row.figures[shape + READY]
    return [
        name(row),
        seconds(E4_S.get(row.contestant.name, {}).get(shape)),
        spread(made),
        times_stagepipe(row, stagepipe, shape),
        spread(ready) if ready.ns or not made.reason else EMPTY,
        times_stagepipe(row, stagepipe, shape + READY),
        rounds([made, ready]),
        *_usage(row, shape + READY),
    ]


# ---------------------------------------------------------------------------------------------- E5


def functions(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the payloads of each measured function of E5, by number of workers."""
    found: dict[str, list[str]] = {}
    for payload in rows[0].figures:
        found.setdefault(payload.partition(" x ")[0], []).append(payload)
    return found


def _e5(rows: Sequence[Row]) -> Iterator[str]:
    for function, payloads in functions(rows).items():
        yield f"\n**{function}**, the median (and the best single measurement):"
        workers = (f"w = {payload.rpartition(' ')[2]}" for payload in payloads)
        yield from table(
            ("contestant", "published, w = 8", *workers, _N, "times stagepipe at the largest w"),
            (_e5_line(row, rows, function, payloads) for row in rows),
        )
    starts = [ns for row in rows for report in row.reports for ns in report.get("start_ns", {}).values()]
    if starts:
        ws = [payload.rpartition(" ")[2] for payload in rows[0].figures]
        start_range = f"{duration(min(starts))} to {duration(max(starts))}"
        yield f"\nA pipeline starts once, in {start_range} with w = {ws[0]} to {ws[-1]}, including its first epoch."


def _e5_line(row: Row, rows: Sequence[Row], function: str, payloads: Sequence[str]) -> list[str]:
    return [
        name(row),
        seconds(E5_EIGHT_WORKERS_S.get(row.contestant.name, {}).get(function)),
        *(_median_and_best(row, payload) for payload in payloads),
        rounds(row.figures[payload] for payload in payloads),
        times_stagepipe(row, reference("E5", rows), payloads[-1]),
    ]


def _median_and_best(row: Row, payload: str) -> str:
    figure = row.figures[payload]
    return f"{duration(figure.ns.value)} ({duration(figure.best_ns)})" if figure.ns else spread(figure)


def _e5_queue(rows: Sequence[Row]) -> Iterator[str]:
    stagepipe = reference("E5 queue", rows)
    payloads = list(rows[0].figures)
    yield "\nMicroseconds per object, and (in parentheses) the ratio to stagepipe's:"
    body = (
        [name(row), rounds(row.figures.values()), *(_us_per_object(row, stagepipe, payload) for payload in payloads)]
        for row in rows
    )
    yield from table(("contestant", _N, *payloads), body)


def _us_per_object(row: Row, stagepipe: Row | None, payload: str) -> str:
    figure = row.figures[payload]
    if figure.ns is None:
        return spread(figure)
    object_us = f"{figure.ns.value / COUNT / 1000:,.2f}"
    ratio = times_stagepipe(row, stagepipe, payload)
    return f"{object_us} ({ratio})" if ratio else object_us


_TABLES: dict[str, Callable[[Sequence[Row]], Iterator[str]]] = {
    "E1": _e1,
    "E2": _e2,
    "E4": _e4,
    "E5": _e5,
    "E5 queue": _e5_queue,
}
