"""Size by size: all contestants alive side by side, and everybody's repetitions in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any

from crossover_.payload import TRANSFERS, check, check_all, make_array, spoiled
from crossover_.peers import Contestant, PipePeer, RawArrayPeer
from crossover_.pipelines import MODES, PipelinePeer
from side_by_side.placing import Places
from side_by_side.turns import order

CONTESTANTS: dict[str, Callable[[int], Contestant]] = {
    "Pipe": PipePeer,
    "RawArray": RawArrayPeer,
    **{name: partial(PipelinePeer, name) for name in MODES},
}
WARM = 2
"""Repetitions before those that count: pages are touched, and `auto` has learned what there is to learn."""


@dataclass
class Row:
    """A contestant at a size: a value for each repetition.

    `us` is from the first request until the last array is in hand, for each of the transfers; `steady_us` the same
    from the first array in hand on, without the request and the way of the first.
    """

    contestant: str
    d: int
    us: list[float] = field(default_factory=list)
    steady_us: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Measured:
    """The rows of a size, and what stagepipe's own reports say, by contestant."""

    rows: list[Row]
    told: dict[str, dict[str, Any]]


def measure(d: int, names: Sequence[str], repetitions: int, places: Places, corrupt: str | None = None) -> Measured:
    """SystemExit if an array arrives wrong. `corrupt` names a contestant whose arrays are spoiled on purpose."""
    rows = {name: Row(name, d) for name in names}
    told: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:  # each is closed, whatever another one's closing raises
        with places.elsewhere():
            started = dict(_started(names, d, stack))
        for name, contestant in started.items():
            _verify(name, contestant, d, spoil=name == corrupt)
        for number in range(-WARM, repetitions):
            for name in order(names, number):
                us, steady_us = _repetition(name, started[name])
                if number >= 0:
                    rows[name].us.append(us)
                    rows[name].steady_us.append(steady_us)
        for name, contestant in started.items():
            _verify(name, contestant, d, spoil=False)
    for name, contestant in started.items():
        if isinstance(contestant, PipelinePeer):
            told[name] = contestant.told
    return Measured(list(rows.values()), told)


def _started(names: Sequence[str], d: int, stack: ExitStack) -> Iterator[tuple[str, Contestant]]:
    for name in names:
        contestant = CONTESTANTS[name](d)
        stack.callback(contestant.close)
        yield name, contestant


def _repetition(name: str, contestant: Contestant) -> tuple[float, float]:
    """Microseconds a transfer: from the request on, and from the first array in hand on."""
    at, begin, first = 0, perf_counter_ns(), 0
    try:
        for received in contestant.repetition():
            check(received, at)
            if not at:
                first = perf_counter_ns()
            at += 1
            if at == TRANSFERS:
                end = perf_counter_ns()
    except AssertionError as error:
        raise SystemExit(f"{name}: {error}") from error
    if at != TRANSFERS:
        message = f"{name}: {at} of {TRANSFERS} transfers came"
        raise SystemExit(message)
    return (end - begin) / TRANSFERS / 1000, (end - first) / (TRANSFERS - 1) / 1000


def _verify(name: str, contestant: Contestant, d: int, *, spoil: bool) -> None:
    """A repetition of which every element is looked at, outside of the timing."""
    expected, at = make_array(d), 0
    arrays = spoiled(contestant.repetition) if spoil else contestant.repetition
    try:
        for received in arrays():
            check_all(received, expected, at)
            at += 1
    except AssertionError as error:
        message = f"{name}, d = {d}: {error}"
        raise SystemExit(message) from error
