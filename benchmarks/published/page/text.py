"""The whole page in order, and the part of it that is printed at the end of a run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.common.figures import estimate
from benchmarks.common.machine import machine_line
from benchmarks.published.page import e1, e2, e3, e4, e5
from benchmarks.published.page.verdicts import losses, targets
from benchmarks.published.page.words import DESCRIPTIONS, MEANINGS, TITLES, paragraph
from benchmarks.published.summary import Row, Summary

_TABLES: dict[str, Callable[[Sequence[Row]], Iterator[str]]] = {
    "E1": e1.lines,
    "E2": e2.lines,
    "E4": e4.lines,
    "E5": e5.lines,
    "E5 queue": e5.queue_lines,
}
_E3 = "E3"
_OPENING = """
Five write-ups measured the cost of moving data between Python processes. This page repeats their experiments with all
of their mechanisms, with additional ones (marked +), and with stagepipe through its public API. `make bench` repeats
them on your machine; `make bench-full` includes the largest payloads.
"""
_HOW = """
Each contestant has one turn in each of {rounds} rounds, in a different order every time. A contestant whose turns take
longer than five seconds has two, except in `bench-full`. A turn is a new process; the other side and the servers run in
their own processes, on the loopback. One or a few transfers warm it up. Every transfer is verified byte by byte,
outside the timing. A figure is the median of the transfers of all rounds, with its interval (the 95 % interval of the
sign test, or the whole range if there are few values). *times stagepipe* is the median of the rounds' ratios to
stagepipe, with its interval ({coverage:.0%} with {rounds} rounds). {placement} CPU is the processor time of all
processes of both sides for a transfer. Peak memory is the sum of the peak resident memory of each process; shared
memory counts in each. The published figures come from other machines, so compare only rankings and ratios.
"""
_PINNED = "The receiver has its own processor and all other processes share the rest, except in E5's functions."
_UNPINNED = "The kernel places the processes."


def tables(summary: Summary, about: dict[str, Any]) -> Iterator[str]:
    """Format the tables of every measured experiment, and the verdicts."""
    for name in _measured(summary, about):
        yield f"\n## {TITLES[name]}"
        yield from _table(name, summary, about)
    yield from _verdicts(summary)


def page(summary: Summary, about: dict[str, Any], pictures: dict[str, str]) -> Iterator[str]:
    """Format docs/benchmarks.md line by line. `pictures` has each experiment's plot, as a path relative to the page."""
    yield "# Five published experiments on one machine\n"
    yield from _opening(about)
    for name in _measured(summary, about):
        yield from _section(name, summary, about)
        if name in pictures:
            yield f"\n![{TITLES[name]}]({pictures[name]})"
    yield from _verdicts(summary)


def _measured(summary: Summary, about: dict[str, Any]) -> list[str]:
    return [name for name in TITLES if name in summary or (name == _E3 and _E3 in about)]


def _table(name: str, summary: Summary, about: dict[str, Any]) -> Iterator[str]:
    yield from e3.lines(about[_E3]) if name == _E3 else _TABLES[name](summary[name])


def _section(name: str, summary: Summary, about: dict[str, Any]) -> Iterator[str]:
    yield f"\n## {TITLES[name]}\n"
    yield paragraph(DESCRIPTIONS[name])
    yield "\n" + paragraph(f"**What it means.** {MEANINGS[name]}")
    if source := about["sources"].get(name):
        yield f"\nPayload: {source}."
    yield from _table(name, summary, about)
    yield f"\n```sh\n{_command(name, about)}\n```"


def _verdicts(summary: Summary) -> Iterator[str]:
    if lines := list(targets(summary)):
        yield "\n## Targets\n"
        yield from lines
    yield "\n## Where stagepipe is slower\n"
    yield from losses(summary)


def _opening(about: dict[str, Any]) -> Iterator[str]:
    rounds = about["settings"]["rounds"]
    placement = _PINNED if about["settings"]["pinned"] else _UNPINNED
    yield paragraph(_OPENING)
    yield ""
    yield paragraph(_HOW.format(rounds=rounds, coverage=estimate([1.0] * rounds).coverage, placement=placement))
    yield ""
    took = f"{about['took_s'] / 60:.0f} minutes, load average {about['load_average_at_end']:.1f} at the end"
    yield paragraph(f"Measured on: {machine_line(about['machine'])} at the start; {took}. Command:")
    yield f"\n```sh\n{about['command']}\n```"


def _command(name: str, about: dict[str, Any]) -> str:
    if name == _E3:
        return "python -m benchmarks.crossover"
    quoted = f"'{name}'" if " " in name else name
    full = " --full" if about["settings"]["size"] == "full" else ""
    return f"python -m benchmarks.published --experiments {quoted}{full}"
