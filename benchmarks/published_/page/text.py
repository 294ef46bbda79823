"""All of the page in order, and what is printed of it at the end of a run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from published_.page import e1, e2, e3, e4, e5
from published_.page.verdicts import losses, promises
from published_.page.words import MEANS, TITLES, WHAT, paragraph
from published_.summary import Row, Summary
from side_by_side.figures import estimate
from side_by_side.machine import machine_line

_TABLES: dict[str, Callable[[Sequence[Row]], Iterator[str]]] = {
    "E1": e1.lines,
    "E2": e2.lines,
    "E4": e4.lines,
    "E5": e5.lines,
    "E5 queue": e5.queue_lines,
}
_E3 = "E3"
_OPENING = """
Five write-ups measured what it costs to move data between Python processes, each with one or two mechanisms. Here they
are rerun, with all of their mechanisms, others besides (marked +), and stagepipe, through its public face alone.
`make bench` repeats it on your machine, `make bench-full` with the largest payloads.
"""
_HOW = """
Each contestant has a turn in each of {rounds} rounds, in another order every time (in two, if its turns take longer
than five seconds, but for `bench-full`): a fresh process, with the other side and the servers in processes of their
own, on the loopback. One transfer or a few warm it up. Every transfer is verified, byte by byte, outside of the timing.
A figure is the median of all rounds' transfers with its interval (the sign test's of 95 %, or where the values are few
the whole range); *times stagepipe* is the median of the rounds' ratios with its interval, which is of {coverage:.0%}
with {rounds} rounds. {placed} CPU is the processor time of all processes of both sides for a transfer; peak memory is
the sum of each one's largest resident memory, and what they share counts in each. The published figures are of other
machines: only rankings and ratios compare.
"""
_PINNED = "The receiver has a processor of its own and everybody else the others, but for E5's functions."
_UNPINNED = "The kernel places the processes."


def tables(summary: Summary, about: dict[str, Any]) -> Iterator[str]:
    """Of every experiment that was measured, and the verdicts."""
    for name in _measured(summary, about):
        yield f"\n## {TITLES[name]}"
        yield from _table(name, summary, about)
    yield from _verdicts(summary)


def page(summary: Summary, about: dict[str, Any], pictures: dict[str, str]) -> Iterator[str]:
    """docs/benchmarks.md, line by line. `pictures` is each experiment's plot, as a path from the page."""
    yield "# Five published experiments, on one machine\n"
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
    yield paragraph(WHAT[name])
    yield "\n" + paragraph(f"**What it means.** {MEANS[name]}")
    if source := about["sources"].get(name):
        yield f"\nThe payload: {source}."
    yield from _table(name, summary, about)
    yield f"\n```sh\n{_command(name, about)}\n```"


def _verdicts(summary: Summary) -> Iterator[str]:
    if found := list(promises(summary)):
        yield "\n## What was promised\n"
        yield from found
    yield "\n## Where stagepipe is not the best\n"
    yield from losses(summary)


def _opening(about: dict[str, Any]) -> Iterator[str]:
    rounds = about["settings"]["rounds"]
    placed = _PINNED if about["settings"]["pinned"] else _UNPINNED
    yield paragraph(_OPENING)
    yield ""
    yield paragraph(_HOW.format(rounds=rounds, coverage=estimate([1.0] * rounds).coverage, placed=placed))
    yield ""
    took = f"{about['took_s'] / 60:.0f} minutes, load average {about['load_average_at_end']:.1f} at the end"
    yield paragraph(f"Measured on: {machine_line(about['machine'])} at the beginning; {took}. By:")
    yield f"\n```sh\n{about['command']}\n```"


def _command(name: str, about: dict[str, Any]) -> str:
    if name == _E3:
        return "python benchmarks/crossover.py"
    quoted = f"'{name}'" if " " in name else name
    full = " --full" if about["settings"]["size"] == "full" else ""
    return f"python benchmarks/published.py --experiments {quoted}{full}"
