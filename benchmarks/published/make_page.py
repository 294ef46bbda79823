"""Put the tables and the plots of benchmarks/published into its page, from the results.

    python -m benchmarks.published.make_page [RESULTS.json] [PAGE.md]

The machines of the write-ups differ: compare only rankings and ratios with their figures, which are shown in seconds.
The prose in docs/benchmarks.md is written by hand. The text between two markers, `<!-- E1 -->` and `<!-- /E1 -->`, is
generated: an experiment's tables and plot, the run, the targets, and the contestants that are faster. The plots go into
a folder next to the page, with the name of the page without its suffix.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.common.command import hardware_line, machine_line
from benchmarks.common.figures import VERDICTS, Estimate, compare, find_coverage, format_three_digits, format_times
from benchmarks.common.page import fill, make_table, save_plot
from benchmarks.common.turn import ROOT
from benchmarks.crossover import Row as CrossoverRow
from benchmarks.crossover import draw as draw_crossover
from benchmarks.crossover import lines as crossover_lines
from benchmarks.crossover import make_size_table
from benchmarks.crossover import targets as crossover_targets
from benchmarks.published.e1 import PARTS
from benchmarks.published.e4 import SHAPES
from benchmarks.published.e5 import COUNT
from benchmarks.published.results import EXPERIMENTS, Figure, Row, Summary, read_turns, summarise

_STAGEPIPE_COLOUR, _OTHER_COLOUR = "#c1272d", "#5a7184"
_WIDE_RANGE = 1e3
_MAX_TICKS = 30
"""Larger than any number of ticks; with a lower limit, matplotlib omits some."""
_PANEL_WIDTH, _ROW_HEIGHT = 5.6, 0.23
_XLABELS = {"E5 queue": "ms for a thousand objects"}


def draw(summary: Summary, about: dict[str, Any], folder: Path) -> dict[str, str]:
    """Draw each measured experiment. Return the paths of the plots, relative to the folder's parent, by experiment."""
    folder.mkdir(parents=True, exist_ok=True)
    machine, plot_paths = hardware_line(about["machine"]), {}
    for experiment, rows in summary.items():
        figure = _panels(list(_payloads(experiment, rows)), rows, _XLABELS.get(experiment, "ms"))
        figure.supxlabel(machine, fontsize=7, color="#666666")
        path = folder / f"{experiment.replace(' ', '_').lower()}.svg"
        save_plot(figure, path)
        plot_paths[experiment] = f"{folder.name}/{path.name}"
    if E3 in about:
        path = folder / "e3.svg"
        draw_crossover([CrossoverRow(**row) for row in about[E3]["rows"]], [path], machine)
        plot_paths[E3] = f"{folder.name}/{path.name}"
    return plot_paths


def _payloads(experiment: str, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield the payload of each panel, and its title: only the smallest and the largest if there are many."""
    payloads = list(rows[0].figures)
    if experiment == "E4":
        for shape in dict.fromkeys((shapes(rows)[0], shapes(rows)[-1])):
            yield shape + READY, f"{shape}, ready: {rows[0].figures[shape].nbytes / 1e6:,.1f} MB"
    elif experiment == "E5":
        yield from ((named[-1], named[-1]) for named in functions(rows).values())
    elif experiment == "E2":
        yield from ((payload, f"{payload} integers") for payload in dict.fromkeys((payloads[0], payloads[-1])))
    else:
        yield from ((payload, payload) for payload in payloads)


def _panels(payloads: Sequence[tuple[str, str]], rows: Sequence[Row], xlabel: str) -> Any:
    from matplotlib.figure import Figure as Drawing

    columns = min(2, len(payloads))
    lines = ceil(len(payloads) / columns)
    height = lines * (0.9 + _ROW_HEIGHT * len(rows)) + 0.3
    drawing = Drawing(figsize=(max(8.0, _PANEL_WIDTH * columns), height), layout="constrained")
    panels = list(drawing.subplots(lines, columns, squeeze=False).flat)
    for (payload, title), axes in zip(payloads, panels, strict=False):
        _draw_dots(axes, [(row, row.figures[payload]) for row in reversed(by_time(rows, payload))])
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(xlabel)
    for axes in panels[len(payloads) :]:
        axes.axis("off")
    return drawing


def _draw_dots(axes: Any, dots: Sequence[tuple[Row, Figure]]) -> None:
    measured = [(row, figure.ns) for row, figure in dots if figure.ns]
    for position, (row, ns) in enumerate(measured):
        is_own = row.contestant.is_stagepipe
        axes.errorbar(
            ns.value / 1e6,
            position,
            xerr=[[(ns.value - ns.low) / 1e6], [(ns.high - ns.value) / 1e6]],
            fmt="D" if is_own else "o",
            color=_STAGEPIPE_COLOUR if is_own else _OTHER_COLOUR,
            markersize=6 if is_own else 4.5,
            capsize=2.5,
            linewidth=1.2,
        )
    axes.set_yticks(range(len(measured)), [_label(row) for row, _ in measured], fontsize=8)
    for label, (row, _) in zip(axes.get_yticklabels(), measured, strict=True):
        if row.contestant.is_stagepipe:
            label.set(color=_STAGEPIPE_COLOUR, fontweight="bold")
    axes.set_xscale("log")
    axes.margins(y=0.5 / max(1, len(measured)))
    _label_plainly(axes.xaxis)
    axes.grid(visible=True, axis="x", which="major", alpha=0.3)
    axes.grid(visible=True, axis="y", alpha=0.12)
    axes.set_axisbelow(True)


def _label(row: Row) -> str:
    return f"{row.contestant.name} ({row.contestant.work})" if row.contestant.work else row.contestant.name


def _label_plainly(axis: Any) -> None:
    """Label each power of ten with a plain number; with few powers, also 2 and 5 times each."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high < _WIDE_RANGE * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=_MAX_TICKS))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))


_PROSE = ROOT / "docs" / "benchmarks.md"
_PINNED = "The receiver has its own processor and all other processes share the rest, except in E5's functions."
_UNPINNED = "The kernel places the processes."


def main(arguments: Sequence[str]) -> None:
    """Write the page and the plots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="?", default=Path("runs/published.json"))
    parser.add_argument("page", type=Path, nargs="?", default=Path("runs/benchmarks.md"))
    options = parser.parse_args(arguments)
    document = json.loads(options.results.read_text())
    if not document["finished"]:
        message = f"{options.results} is incomplete; resume the run with: {document['command']}"
        raise SystemExit(message)
    summary = summarise(read_turns(document), document["settings"]["size"])
    pictures = draw(summary, document, options.page.with_suffix(""))
    page = _PROSE.read_text()
    for name, block in blocks(summary, document, pictures).items():
        page = fill(page, name, block.strip())
    options.page.write_text(page)
    print(f"wrote {options.page} and {len(pictures)} plots to {options.page.with_suffix('')}")


def blocks(summary: Summary, about: dict[str, Any], pictures: dict[str, str]) -> dict[str, str]:
    """Return the text between the markers, by their name."""
    made = {"run": _run(about), "targets": "\n".join(targets(summary)), "faster": "\n".join(losses(summary))}
    for experiment in (*EXPERIMENTS, E3):
        lines = list(experiment_tables(experiment, summary, about))
        if source := about["sources"].get(experiment):
            lines = [f"Payload: {source}.", *lines]
        if experiment in pictures:
            lines += ["", f"![{experiment}]({pictures[experiment]})"]
        made[experiment] = "\n".join(lines)
    return made


def tables(summary: Summary, about: dict[str, Any]) -> Iterator[str]:
    """Format the tables of every measured experiment and the verdicts, to print them at the end of a run."""
    for experiment in (*summary, *([E3] if E3 in about else [])):
        yield f"\n## {experiment}"
        yield from experiment_tables(experiment, summary, about)
    yield from ("\n## Targets\n", *targets(summary), "\n## Where stagepipe is slower\n", *losses(summary))


def _run(about: dict[str, Any]) -> str:
    settings, count = about["settings"], about["settings"]["rounds"]
    took = f"{about['took_s'] / 60:.0f} minutes, load average {about['load_average_at_end']:.1f} at the end"
    return "\n\n".join(
        (
            paragraph(
                f"{count} rounds; an interval over {count} contains the true median with a probability of "
                f"{find_coverage(count):.0%}. {_PINNED if settings['pinned'] else _UNPINNED} Measured on: "
                f"{machine_line(about['machine'])} at the start; {took}. Command:"
            ),
            f"```sh\n{about['command']}\n```",
        )
    )


E1_RECEIVE_AND_RESTORE_S = {
    "named pipe, base64": 1.17,
    "mmap of a file, base64": 1.39,
    "MPI": 1.39,
    "stdio pipe, base64": 1.73,
    "TCP, base64": 1.88,
    "file on disk, base64": 2.17,
    "queue": 1.14,
}
"""The time of the responder. The write-up has no figure for the file on a RAM disk."""

E2_SEND_RECEIVE_S = {
    "Queue": (0.00, 5.33),
    "Pipe": (3.12, 5.33),
    "Array": (3.02, 2.55),
    "Manager list": (10.19, 10.29),
    "RawArray through NumPy": (5.61, 0.18),
    "File": (3.86, 5.26),
    "Socket": (4.13, 5.34),
}
"""At 10^8 integers, with Python 3.7."""

E2_PIPE_SEND_RECEIVE_S = {
    "10^5": (0.011, 0.004),
    "10^6": (0.032, 0.071),
    "10^7": (0.324, 0.643),
    "10^8": (3.22, 6.41),
}
"""Pipe by number of integers."""

E4_S = {
    "HTTP + JSON": {"A": 0.290, "B": 1.090, "C": 9.230, "D": 259.0},
    "HTTP + base64": {"A": 0.0264, "B": 0.0515, "C": 0.398, "D": 12.3},
    "WebSocket + bytes": {"A": 0.00427, "B": 0.0150, "C": 0.171, "D": 5.14},
    "HTTP + shared memory": {"A": 0.0107, "B": 0.0181, "C": 0.127, "D": 3.13},
    "WebSocket + shared memory": {"A": 0.00434, "B": 0.0149, "C": 0.127, "D": 3.82},
    "Listener/Client": {"A": 0.00700, "B": 0.0172, "C": 0.162, "D": 4.73},
    "gRPC + bytes": {"A": 0.00734, "B": 0.0286, "C": 0.291, "D": 7.92},
    "RabbitMQ + bytes": {"A": 0.00935, "B": 0.0257, "C": 0.243},
}
"""Including the creation of the random array."""

E5_EIGHT_WORKERS_S = {
    "plain": {"empty": 0.000003, "fibonacci": 1.59, "primes": 4.22, "file_io": 0.750},
    "threads": {"empty": 0.0080, "fibonacci": 1.60, "primes": 5.11, "file_io": 2.44},
    "processes": {"empty": 0.0055, "fibonacci": 0.418, "primes": 1.08, "file_io": 0.203},
}
"""Eight calls by eight workers, in 2008."""

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
    yield from make_size_table(by_size)
    yield ""
    for target in crossover_targets(by_size, len(by_size)):
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


EMPTY = ""
_WIDTH = 120
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def duration(ns: float) -> str:
    """Format with three digits and a unit.

    >>> [duration(ns) for ns in (1234567890, 45600000, 789, 0)]
    ['1.23 s', '45.6 ms', '0.789 us', '0 us']
    """
    factor, unit = next((entry for entry in _UNITS if ns >= entry[0]), _UNITS[-1])
    return f"{format_three_digits(ns / factor)} {unit}"


def spread(figure: Figure) -> str:
    """Format the median and its interval, or the reason why there is none.

    `45.6 ms [44.1 ms, 48.0 ms]`
    """
    if figure.ns is None:
        return f"*{figure.reason or 'not measured'}*"
    return f"{duration(figure.ns.value)} [{duration(figure.ns.low)}, {duration(figure.ns.high)}]"


def rounds(figures: Iterable[Figure]) -> str:
    """Format how many rounds the medians of a row come from, and the coverage of their intervals: `6 (97 %)`.

    If the payloads differ, the fewest rounds count.
    """
    measured = [(figure.rounds, figure.ns.coverage) for figure in figures if figure.ns]
    if not measured:
        return EMPTY
    count, coverage = min(measured)
    return f"{count} ({coverage:.0%})".replace("%", " %")


def times_stagepipe(row: Row, stagepipe: Row | None, payload: str) -> str:
    """Format the figure relative to stagepipe's. Return "" for stagepipe's own row, or if there is no ratio."""
    estimate = None if stagepipe is None or stagepipe is row else row.slower_than(stagepipe, payload)
    return EMPTY if estimate is None else format_times(estimate)


def megabytes(nbytes: float) -> str:
    """Format in millions of bytes."""
    return f"{nbytes / 1e6:,.0f} MB" if nbytes else EMPTY


def seconds(value: float | None) -> str:
    """Format a published figure."""
    return EMPTY if value is None else duration(value * 1e9)


def name(row: Row) -> str:
    """Format the name of a contestant: stagepipe in bold, an addition to the write-up with a +."""
    text = row.contestant.name
    if row.contestant.is_stagepipe:
        return f"**{text}**"
    return f"{text} +" if row.contestant.is_addition else text


def by_time(rows: Sequence[Row], payload: str) -> list[Row]:
    """Sort the rows, the fastest first and those without a figure last."""
    return sorted(rows, key=lambda row: figure.value if (figure := row.figures[payload].ns) else float("inf"))


def table(header: Sequence[str], body: Iterable[Sequence[str]]) -> Iterator[str]:
    """Format a table in Markdown, after an empty line. All but the names are aligned to the right."""
    yield ""
    yield from make_table(header, body, left=1)


def paragraph(text: str, hanging: str = "") -> str:
    """Wrap to the line length of the documentation."""
    return textwrap.fill(
        " ".join(text.split()), _WIDTH, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )


_TARGET_FROM_BYTES = 64 << 10
_IN_PLACE = ", made in place"
"""The end of the names of E4's contestants whose sender draws the numbers directly into the sent memory."""
_ARRAY_CONTESTANTS = ("RawArray through NumPy",)
"""The contestants of E2 whose result is an array, not a list."""
_REFERENCES = {"E1": "stagepipe, responder copies", "E2": "stagepipe, list"}
"""In E1 the row whose responder reads and copies the data, as the responders of the write-up do."""


@dataclass(frozen=True)
class Comparison:
    """The time of a contestant divided by stagepipe's, for a payload."""

    experiment: str
    contestant: str
    payload: str
    nbytes: int
    ratio: Estimate

    @property
    def in_target(self) -> bool:
        """Return whether the target covers this payload: arrays of 64 KiB and more."""
        if self.experiment == "E2" and self.contestant not in _ARRAY_CONTESTANTS:
            return False
        return self.nbytes >= _TARGET_FROM_BYTES

    @property
    def met(self) -> bool | None:
        """Return whether stagepipe is faster; None: the interval straddles 1."""
        return compare(self.ratio, at_least=1)


def reference(experiment: str, rows: Sequence[Row], row: Row | None = None) -> Row | None:
    """Return the stagepipe row to compare a row with: one that does the same work, if known."""
    name = _REFERENCES.get(experiment, "stagepipe")
    if row and row.contestant.name in _ARRAY_CONTESTANTS:
        name = "stagepipe, array"
    if row and row.contestant.name.endswith(_IN_PLACE):
        name += _IN_PLACE
    if row and row.contestant.work:
        alike = (own for own in rows if own.contestant.is_stagepipe and own.contestant.work == row.contestant.work)
        name = next((own.contestant.name for own in alike), name)
    return next((own for own in rows if own.contestant.name == name), None)


def comparisons(summary: Summary) -> Iterator[Comparison]:
    """Compare every contestant with stagepipe, for every payload."""
    for experiment, rows in summary.items():
        for row in rows:
            if row.contestant.is_stagepipe or not (stagepipe := reference(experiment, rows, row)):
                continue
            for payload, figure in row.figures.items():
                if (times := row.slower_than(stagepipe, payload)) is not None:
                    yield Comparison(experiment, row.contestant.name, payload, figure.nbytes, times)


def targets(summary: Summary) -> Iterator[str]:
    """Judge the targets: faster than all in E1, with E2's arrays, and in E4, from 64 KiB on."""
    for experiment, what in (("E1", "E1"), ("E2", "E2's arrays"), ("E4", "E4")):
        judged = [found for found in comparisons(summary) if found.experiment == experiment and found.in_target]
        if judged:
            text = f"Faster than every contestant in {what} at payloads of 64 KiB and more: {_verdict(judged)}."
            yield paragraph(f"- {text}", "  ")


def _verdict(judged: Sequence[Comparison]) -> str:
    missed = [found for found in judged if found.met is False]
    undecided = [found for found in judged if found.met is None]
    met = len(judged) - len(missed) - len(undecided)
    if met == len(judged):
        return f"met in all {met}"
    parts = [f"met in {met} of {len(judged)}"]
    if undecided:
        parts.append(f"undecided in {len(undecided)}, whose intervals straddle 1: {_names(undecided)}")
    if missed:
        parts.append(f"**missed** in {len(missed)}, against {_names(missed)}")
    return "; ".join(parts)


def _names(compared: Iterable[Comparison]) -> str:
    by_contestant: dict[str, list[Comparison]] = {}
    for found in compared:
        by_contestant.setdefault(found.contestant, []).append(found)
    return ", ".join(f"{contestant} ({_listed(found)})" for contestant, found in by_contestant.items())


def _listed(compared: Iterable[Comparison]) -> str:
    return ", ".join(f"{found.payload} {format_three_digits(found.ratio.value)}" for found in compared)


def losses(summary: Summary) -> Iterator[str]:
    """List each contestant that is faster, or undecided, for some payload, and its time as a multiple of ours."""
    by_contestant: dict[tuple[str, str], list[Comparison]] = {}
    for found in comparisons(summary):
        if not found.met:
            by_contestant.setdefault((found.experiment, found.contestant), []).append(found)
    if not by_contestant:
        yield "No contestant is faster in this run."
        return
    yield from table(
        ("experiment", "contestant", "faster: payload and times stagepipe", "undecided"),
        (
            (
                experiment,
                contestant,
                _listed(one for one in found if one.met is False),
                _listed(one for one in found if one.met is None),
            )
            for (experiment, contestant), found in by_contestant.items()
        ),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
