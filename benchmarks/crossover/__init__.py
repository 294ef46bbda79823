"""E3, pipe and shared memory by size: the contestants, their repetitions, the verdict and the plot.

`repetition` of a contestant requests the arrays and yields them one by one. A float32 array of shape (d, d) is sent;
both sides make it. Each contestant has a child process, forked from a server that has no threads. The child sends
`TRANSFERS` arrays on each request and exits when the other side closes. A receiver that waits for a dead child gets
EOFError. stagepipe has the same interface, and uses only its public API.

All contestants of a size take turns in the receiver's process. The table compares `auto` with the
others at every size. The plot has microseconds per transfer against d for all five contestants; its error bars show the
standard error of the mean, as in the write-up. matplotlib is imported only to draw.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import stagepipe
from benchmarks.common.figures import (
    VERDICTS,
    Estimate,
    Target,
    compare,
    estimate,
    format_times,
    mean_and_error,
    quotient,
)
from benchmarks.common.page import make_table, save_plot
from benchmarks.common.turn import Placement, end_process, order

Array = NDArray[np.float32]
TRANSFERS = 100
"""Arrays in a repetition, as in the write-up. Their numbers are exact in float32."""


def make_array(d: int) -> Array:
    """Create an array of shape (d, d): the same random numbers between 1 and 2 on both sides."""
    return np.random.default_rng(17).random((d, d), np.float32) + np.float32(1)


def stamp(array: Array, transfer: int) -> None:
    """Write the number of the transfer into the first element, so that a mix-up shows."""
    array[0, 0] = transfer


def check(received: Any, transfer: int) -> None:
    """Raise AssertionError unless the array is number `transfer`. It reads the first element, inside the timing."""
    assert received[0, 0] == transfer, f"received transfer {received[0, 0]:g}, expected transfer {transfer}"


def check_all(received: Any, expected: Array, transfer: int) -> None:
    """Raise AssertionError unless every element of the transfer is right. Not timed."""
    assert received.dtype == np.float32, f"transfer {transfer} has dtype {received.dtype}, expected float32"
    assert received.shape == expected.shape, (
        f"transfer {transfer} has shape {received.shape}, expected {expected.shape}"
    )
    check(received, transfer)
    wrong = int(np.count_nonzero(received.ravel()[1:] != expected.ravel()[1:]))
    assert not wrong, f"transfer {transfer} has {wrong} of {expected.size} elements wrong"


def spoiled(arrays: Callable[[], Any]) -> Callable[[], Any]:
    """Corrupt the last element of each array of a repetition, for the test of the check."""

    def repetition() -> Any:
        for received in arrays():
            array = np.array(received)
            array[-1, -1] += 1
            yield array

    return repetition


class Arrays:
    """The arrays of a repetition; each iteration is one repetition. It yields one array with a new number each time."""

    def __init__(self, d: int) -> None:
        self._array = make_array(d)

    def __iter__(self) -> Iterator[Array]:
        for transfer in range(TRANSFERS):
            stamp(self._array, transfer)
            yield self._array


_SIGNAL = b""
"""Requests a repetition, and raises a flag."""
_CLOSED = (EOFError, OSError)
_CONTEXT = multiprocessing.get_context("forkserver")


class Contestant(Protocol):
    """A mechanism that receives arrays from another process."""

    repetition: Callable[[], Any]
    """Returns an iterator over the arrays of one repetition; its first step sends the request."""

    def close(self) -> None:
        """End the child."""


class _Child:
    """A child process and the connection that carries the requests to it, and for some contestants its answers."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self.connection, other = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=target, args=(other, *arguments), daemon=True)
        self._process.start()
        other.close()

    def close(self) -> None:
        """Close the connection, which ends the child; kill a child that does not exit in time."""
        self.connection.close()
        end_process(self._process)


# ---------------------------------------------------------------------------------------------- Pipe


def _send_arrays(requests: Connection, writer: Connection, d: int) -> None:
    array = make_array(d)
    with contextlib.suppress(*_CLOSED):
        while True:
            requests.recv()
            for transfer in range(TRANSFERS):
                stamp(array, transfer)
                writer.send(array)


class PipePeer:
    """`multiprocessing.Pipe(duplex=False)` carries the array, pickled."""

    def __init__(self, d: int) -> None:
        self._reader, writer = _CONTEXT.Pipe(duplex=False)
        self._child = _Child(_send_arrays, writer, d)
        writer.close()
        self.repetition: Callable[[], Iterator[Array]] = self._repetition

    def _repetition(self) -> Iterator[Array]:
        self._child.connection.send(_SIGNAL)
        for _ in range(TRANSFERS):
            yield self._reader.recv()

    def close(self) -> None:
        self._reader.close()
        self._child.close()


# ---------------------------------------------------------------------------------------------- RawArray


def _write_arrays(flag: Connection, shared: Any, d: int) -> None:
    array, shared_array = make_array(d), np.frombuffer(shared, np.float32).reshape(d, d)
    with contextlib.suppress(*_CLOSED):
        while True:
            flag.recv()
            for transfer in range(TRANSFERS):
                stamp(array, transfer)
                np.copyto(shared_array, array)
                flag.send(_SIGNAL)
                flag.recv()


class RawArrayPeer:
    """`multiprocessing.RawArray` holds the array and a Pipe is the flag: one side writes, the other copies out."""

    def __init__(self, d: int) -> None:
        shared = _CONTEXT.RawArray("f", d * d)
        self._shared_array = np.frombuffer(shared, np.float32).reshape(d, d)
        self._child = _Child(_write_arrays, shared, d)
        self.repetition: Callable[[], Iterator[Array]] = self._repetition

    def _repetition(self) -> Iterator[Array]:
        connection = self._child.connection
        connection.send(_SIGNAL)
        for _ in range(TRANSFERS):
            connection.recv()
            array = self._shared_array.copy()
            connection.send(_SIGNAL)
            yield array

    def close(self) -> None:
        self._child.close()


MODES = {"stagepipe pipe": "pipe", "stagepipe shared_memory": "shared_memory", "stagepipe auto": "auto"}


def config(name: str, d: int) -> dict[str, Any]:
    """Return the pipeline's config: a source in its own process, read by the caller, and the mode."""
    return {
        "name": name.replace(" ", "-"),
        "source": {"uses": "benchmarks.crossover.Arrays", "with": {"d": d}},
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
        """Close the pipeline and keep its report's figures of the hop in `hop_summary`."""
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


AUTO = "stagepipe auto"
FIXED_MODES = tuple(name for name in MODES if name != AUTO)
PEERS = tuple(name for name in CONTESTANTS if name not in MODES)
MAX_RATIO = 1.1
"""The largest allowed ratio of `auto` to the better contestant. An interval above it is a miss; an interval on both
sides of it is undecided."""


@dataclass(frozen=True)
class Line:
    """A size: microseconds per transfer, and `auto` against the better fixed mode and the better peer.

    `us` has the median of the repetitions for each contestant. The medians decide which one is better, and the ratios
    are theirs.
    """

    d: int
    us: dict[str, Estimate]
    own: str
    to_own: Estimate
    peer: str
    to_peer: Estimate


def lines(rows: Sequence[Row], *, steady: bool = False) -> list[Line]:
    """Return a line for each size at which all contestants were measured; `steady` excludes the request."""
    size_lines = []
    for d in sorted({row.d for row in rows}):
        values_by_contestant = {row.contestant: row.steady_us if steady else row.us for row in rows if row.d == d}
        if len(values_by_contestant) == len(CONTESTANTS):
            us = {name: estimate(values) for name, values in values_by_contestant.items()}
            own, peer = (min(names, key=lambda name: us[name].value) for names in (FIXED_MODES, PEERS))
            to_own, to_peer = (quotient(us[AUTO], us[name]) for name in (own, peer))
            size_lines.append(Line(d, us, own, to_own, peer, to_peer))
    return size_lines


def make_size_table(size_lines: Sequence[Line]) -> Iterator[str]:
    """Return the table in Markdown: microseconds per transfer, and the two ratios with their intervals."""
    names = [f"**{name}**" if name in MODES else name for name in CONTESTANTS]
    rows = (
        (
            str(line.d),
            f"{4 * line.d**2:,}",
            *(format_times(line.us[name]) for name in CONTESTANTS),
            format_times(line.to_own),
            f"{format_times(line.to_peer)} {line.peer}",
        )
        for line in size_lines
    )
    return make_table(("d", "bytes", *names, "auto / better mode", "auto / better peer"), rows, left=1)


def targets(size_lines: Sequence[Line], sizes: int) -> Iterator[Target]:
    """Judge both targets. `met` is None if a target is undecided, or if not all `sizes` were measured."""
    complete = len(size_lines) == sizes and sizes > 0
    yield _target(
        "`auto` is as fast as the better of its two modes",
        {line.d: line.to_own for line in size_lines},
        complete=complete,
    )
    yield _target(
        "`auto` is never slower than Pipe or RawArray", {line.d: line.to_peer for line in size_lines}, complete=complete
    )


def _target(text: str, ratios: dict[int, Estimate], *, complete: bool) -> Target:
    text = f"{text} (at every d, the whole interval of the ratio lies at {MAX_RATIO} or below)"
    if not ratios:
        return Target(text)
    found = {d: compare(ratio, at_most=MAX_RATIO) for d, ratio in ratios.items()}
    parts = [
        f"{VERDICTS[met]} at {_listed({d: ratios[d] for d in ratios if found[d] is met})}"
        for met in (False, None)
        if met in found.values()
    ]
    if parts:
        return Target(text, "; ".join(parts), False if False in found.values() else None)
    worst = max(ratios, key=lambda d: ratios[d].high)
    return Target(text, f"the largest ratio is {ratios[worst].text()} at d = {worst}", True if complete else None)


def _listed(ratios: dict[int, Estimate]) -> str:
    return ", ".join(f"d = {d} ({estimate.text()})" for d, estimate in ratios.items())


_STYLES: dict[str, dict[str, Any]] = {
    "Pipe": {"color": "#9a6a00", "marker": "s"},
    "RawArray": {"color": "#7a5195", "marker": "D"},
    "stagepipe pipe": {"color": "#4393c3", "marker": "v", "linestyle": "--"},
    "stagepipe shared_memory": {"color": "#2c8c5a", "marker": "^", "linestyle": "--"},
    "stagepipe auto": {"color": "#c1272d", "marker": "o", "linewidth": 2.2, "zorder": 5},
}


def draw(rows: Sequence[Row], paths: Sequence[Path], machine: str) -> None:
    """Write the plot to each of `paths`, in the format of its suffix (svg, png)."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    figure = Figure(figsize=(9, 5.6), layout="constrained")
    axes = figure.add_subplot()
    sizes = sorted({row.d for row in rows})
    for name in CONTESTANTS:
        contestant_rows = sorted((row for row in rows if row.contestant == name), key=lambda row: row.d)
        points = [mean_and_error(row.us) for row in contestant_rows]
        axes.errorbar(
            [row.d for row in contestant_rows],
            [mean for mean, _ in points],
            [error for _, error in points],
            label=name,
            capsize=3,
            markersize=5,
            **_STYLES[name],
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda d, _: f"{d:.0f}\n{_format_bytes(4 * d * d)}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: f"{us:,.0f}" if us >= 1 else f"{us:g}"))
    axes.set_xlabel("d of the float32 arrays (d, d), and their size")
    axes.set_ylabel("microseconds per transfer")
    axes.set_title("One array from one process to another: mean of the repetitions and its standard error", fontsize=11)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(frameon=False)
    figure.supxlabel(machine, fontsize=7, color="#666666")
    save_plot(figure, *paths)


def _format_bytes(nbytes: float) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.0f} {unit}"
    return f"{nbytes:.0f} B"
