"""The repetitions: all contestants of a size run side by side and take turns. It runs in the receiver's process.

stagepipe stands behind the interface of a contestant, through its public API only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any

import stagepipe
from benchmarks.common.turn import Placement, order
from benchmarks.crossover.peers import (
    TRANSFERS,
    Array,
    Contestant,
    PipePeer,
    RawArrayPeer,
    check,
    check_all,
    make_array,
    spoiled,
)

MODES = {"stagepipe pipe": "pipe", "stagepipe shared_memory": "shared_memory", "stagepipe auto": "auto"}


def config(name: str, d: int) -> dict[str, Any]:
    """Return the pipeline's config: a source in its own process, read by the caller, and the mode."""
    return {
        "name": name.replace(" ", "-"),
        "source": {"uses": "benchmarks.crossover.peers.Arrays", "with": {"d": d}},
        "transport": {"mode": MODES[name]},
    }


class PipelinePeer:
    """A pipeline whose worker stays alive between repetitions; a repetition is an epoch."""

    def __init__(self, name: str, d: int) -> None:
        self._pipeline = stagepipe.Pipeline(config(name, d))
        self._pipeline.start()
        self.repetition: Callable[[], Iterator[Array]] = self._repetition
        self.hop_summary: dict[str, Any] = {}

    def _repetition(self) -> Iterator[Array]:
        return iter(self._pipeline)

    def close(self) -> None:
        """Close the pipeline and keep what its report says about the hop in `hop_summary`."""
        self._pipeline.close()
        (hop,) = self._pipeline.report().hops
        self.hop_summary = {
            "mode": hop.transport.mode,
            "threshold_bytes": hop.transport.threshold_bytes,
            "reason": hop.transport.reason,
            "messages": {kind: getattr(hop.messages, kind) for kind in hop.messages.__struct_fields__},
            "cost_ns": {"p50": hop.cost_ns.p50, "mean": hop.cost_ns.mean},
        }


CONTESTANTS: dict[str, Callable[[int], Contestant]] = {
    "Pipe": PipePeer,
    "RawArray": RawArrayPeer,
    **{name: partial(PipelinePeer, name) for name in MODES},
}
WARM_UP_REPETITIONS = 2
"""Uncounted repetitions at the start, which touch the pages and let `auto` learn."""


@dataclass
class Row:
    """A contestant at a size, with a value for each repetition.

    `us` is the time per transfer from the request until the last array has arrived. `steady_us` starts when the first
    array has arrived, so it excludes the request and the first transfer.
    """

    contestant: str
    d: int
    us: list[float] = field(default_factory=list)
    steady_us: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class SizeResult:
    """The rows of a size, and a summary of stagepipe's own reports, by contestant."""

    rows: list[Row]
    reports: dict[str, dict[str, Any]]


def measure(d: int, names: Sequence[str], repetitions: int, placement: Placement, corrupt: str = "") -> SizeResult:
    """Measure one size. Raise SystemExit if an array arrives wrong.

    `corrupt` names a contestant whose arrays are corrupted on purpose.
    """
    rows = {name: Row(name, d) for name in names}
    reports: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:  # closes every contestant, even if closing another one raises
        with placement.on_other_cpus():
            contestants = dict(_start_all(names, d, stack))
        for name, contestant in contestants.items():
            _verify(name, contestant, d, spoil=name == corrupt)
        for repetition_number in range(-WARM_UP_REPETITIONS, repetitions):
            for name in order(names, repetition_number):
                us, steady_us = _time_repetition(name, contestants[name])
                if repetition_number >= 0:
                    rows[name].us.append(us)
                    rows[name].steady_us.append(steady_us)
        for name, contestant in contestants.items():
            _verify(name, contestant, d, spoil=False)
    for name, contestant in contestants.items():
        if isinstance(contestant, PipelinePeer):
            reports[name] = contestant.hop_summary
    return SizeResult(list(rows.values()), reports)


def _start_all(names: Sequence[str], d: int, stack: ExitStack) -> Iterator[tuple[str, Contestant]]:
    for name in names:
        contestant = CONTESTANTS[name](d)
        stack.callback(contestant.close)
        yield name, contestant


def _time_repetition(name: str, contestant: Contestant) -> tuple[float, float]:
    """Return the microseconds per transfer, from the request and from the first array."""
    transfer, begin, first = 0, perf_counter_ns(), 0
    try:
        for received in contestant.repetition():
            check(received, transfer)
            if not transfer:
                first = perf_counter_ns()
            transfer += 1
            if transfer == TRANSFERS:
                end = perf_counter_ns()
    except AssertionError as error:
        raise SystemExit(f"{name}: {error}") from error
    if transfer != TRANSFERS:
        message = f"{name}: received {transfer} of {TRANSFERS} transfers"
        raise SystemExit(message)
    return (end - begin) / TRANSFERS / 1000, (end - first) / (TRANSFERS - 1) / 1000


def _verify(name: str, contestant: Contestant, d: int, *, spoil: bool) -> None:
    """Run one repetition outside the timing and check every element."""
    expected, transfer = make_array(d), 0
    arrays = spoiled(contestant.repetition) if spoil else contestant.repetition
    try:
        for received in arrays():
            check_all(received, expected, transfer)
            transfer += 1
    except AssertionError as error:
        message = f"{name}, d = {d}: {error}"
        raise SystemExit(message) from error
