"""Runs a bench: measures the hop's mechanisms and the peers in interleaved rounds, within a time budget.

Runs in the caller's process.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np

from stagepipe.bench.model import BENCH_SIZES_BYTES, COLD, HOP_MECHANISMS, PEER_MECHANISMS, BenchResult, CostPoint
from stagepipe.bench.peers import PeerBenchmark
from stagepipe.bench.producer import make_random_bytes
from stagepipe.calibration import MULTI_BUFFER_COUNT, RoundTrip, fit_curves, select_single_buffer
from stagepipe.costs import CostMeasurement
from stagepipe.machine import describe_host, detect_machine, read_cpu_model
from stagepipe.timing import TransferKind
from stagepipe.transport import MAX_INLINE_BYTES

ProgressCallback = Callable[[float], None]
"""Receives the share of the time budget that is used, 0 to 1."""
_MIN_ROUNDS = 3
"""The first copy of a large message may be a cold one. Then two are left that are not."""
_COLD_ROUNDS = 3
"""Each cold message takes memory that nothing has touched before."""
_MEMORY_PER_MESSAGE_RATIO = 32
"""Memory that a message of the largest size takes, over its size: five processes hold copies of it."""
_LARGE_MESSAGE_BYTES = 1 << 20
"""Messages larger than this go one at a time, so that they touch few blocks."""


@dataclass(frozen=True)
class BenchBudget:
    """About how long to measure, and up to which message size."""

    duration_s: float
    max_message_bytes: int


FULL_BUDGET = BenchBudget(18.0, BENCH_SIZES_BYTES[-1])
"""The default. Starting the processes comes on top, so that a bench takes some 20 s."""
QUICK_BUDGET = BenchBudget(4.0, 16 << 20)
"""The budget of `--quick`. Starting the processes comes on top."""


def run_bench(budget: BenchBudget = FULL_BUDGET, on_progress: ProgressCallback | None = None) -> BenchResult:
    """Measure the mechanisms of a hop and the peers side by side, at every size.

    >>> run_bench(QUICK_BUDGET).crossover_summary  # doctest: +SKIP
    'shared memory is cheaper from 3.6 kB up: at 4.1 kB it takes 30 µs, the pipe 90 µs'

    Raises RunError if a process cannot be started or does not answer, or if a byte arrives wrong.
    """
    start_s = monotonic()
    sizes_bytes = choose_sizes_bytes(budget.max_message_bytes, detect_machine().memory_bytes)
    load_average = os.getloadavg()[0]
    with ExitStack() as stack:
        peers = [stack.enter_context(PeerBenchmark(name, sizes_bytes[-1])) for name in PEER_MECHANISMS]
        round_trip = stack.enter_context(RoundTrip())
        runner = _RoundRunner(round_trip, peers, sizes_bytes)
        runner.warm_up()
        rounds = _run_rounds(budget.duration_s, runner.run_round, on_progress or _ignore_progress)
        round_trip.stop()
        outbound, returned = round_trip.summarize()
        serialization_ns = round_trip.serialization_ns
    multi_buffer_bytes = runner.multi_buffer_bytes
    return BenchResult(
        points={
            **make_hop_points(outbound, returned, multi_buffer_bytes, sizes_bytes, serialization_ns),
            **{name: make_peer_points(costs) for name, costs in runner.peer_costs_ns.items()},
        },
        curves=fit_curves(outbound, returned, multi_buffer_bytes),
        serialization_ns=serialization_ns,
        duration_s=monotonic() - start_s,
        rounds=rounds,
        host=_describe_bench_host(),
        load_average=load_average,
    )


def choose_sizes_bytes(max_message_bytes: int, memory_bytes: int) -> tuple[int, ...]:
    """The sizes up to `max_message_bytes` that fit a machine with `memory_bytes`. Always includes 1 MiB.

    >>> choose_sizes_bytes(16 << 20, 64 << 20)[-1] >> 20
    1
    """
    max_message_bytes = min(max_message_bytes, memory_bytes // _MEMORY_PER_MESSAGE_RATIO)
    return tuple(size for size in BENCH_SIZES_BYTES if size <= max(max_message_bytes, _LARGE_MESSAGE_BYTES))


def _run_rounds(duration_s: float, run_round: Callable[[int], None], on_progress: ProgressCallback) -> int:
    """Run as many rounds as fit into `duration_s`, at least three. Returns their number."""
    start_s = monotonic()
    longest_round_s = 0.0
    rounds = 0
    while rounds < _MIN_ROUNDS or monotonic() - start_s + longest_round_s < duration_s:
        round_start_s = monotonic()
        run_round(rounds)
        rounds += 1
        longest_round_s = max(longest_round_s, monotonic() - round_start_s)
        on_progress(min((monotonic() - start_s) / duration_s, 1.0))
    return rounds


def _ignore_progress(fraction: float) -> None:
    """The default for `on_progress`."""


def _choose_repetitions(nbytes: int) -> int:
    """How often to measure a size in a round. Small messages are cheap and are measured more often."""
    return 6 if nbytes <= 64 << 10 else 3 if nbytes <= _LARGE_MESSAGE_BYTES else 1


@dataclass
class _RoundRunner:
    """Runs rounds over the hop and the peers. Collects the peers' costs in ns, by mechanism and size."""

    round_trip: RoundTrip
    peers: Sequence[PeerBenchmark]
    sizes_bytes: Sequence[int]
    peer_costs_ns: dict[str, dict[int, list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        data = make_random_bytes(self.sizes_bytes[-1])
        self._items = {size: {"data": data[:size]} for size in self.sizes_bytes}
        self._multi_buffer_item = {
            f"data{index}": np.full(MAX_INLINE_BYTES + 64 * index, index, np.uint8)
            for index in range(MULTI_BUFFER_COUNT)
        }

    @property
    def multi_buffer_bytes(self) -> int:
        """The size of the item with several buffers."""
        return sum(array.nbytes for array in self._multi_buffer_item.values())

    def warm_up(self) -> None:
        """Send the first messages of each peer, which cost more than later ones, and discard their costs."""
        for peer in self.peers:
            peer.measure_costs_ns(self.sizes_bytes[0], 3)

    def run_round(self, round_index: int) -> None:
        """Measure all sizes once. The order of the sizes alternates between rounds."""
        for size in self.sizes_bytes if round_index % 2 else self.sizes_bytes[::-1]:
            self._measure_hop(size, with_cold=round_index < _COLD_ROUNDS)
            for peer in self.peers:
                self.peer_costs_ns.setdefault(peer.name, {}).setdefault(size, []).extend(
                    peer.measure_costs_ns(size, _choose_repetitions(size))
                )
        for _ in range(_choose_repetitions(0)):
            self.round_trip.send(TransferKind.PIPE, self._multi_buffer_item)
            self.round_trip.send(TransferKind.COPIED, self._multi_buffer_item)
        self.round_trip.drain()

    def _measure_hop(self, nbytes: int, *, with_cold: bool) -> None:
        round_trip, item = self.round_trip, self._items[nbytes]
        for _ in range(_choose_repetitions(nbytes)):
            round_trip.send(TransferKind.PIPE, item)
            round_trip.send(TransferKind.COPIED, item)
            round_trip.send_loaned(nbytes)
            if nbytes > _LARGE_MESSAGE_BYTES:
                round_trip.drain()
        if with_cold:
            round_trip.send_cold(nbytes, item)
        round_trip.drain()


def make_hop_points(
    outbound: Sequence[CostMeasurement],
    returned: Sequence[CostMeasurement],
    multi_buffer_bytes: int,
    sizes_bytes: Sequence[int],
    serialization_ns: int,
) -> dict[str, tuple[CostPoint, ...]]:
    """The costs of each mechanism of a hop by size, with `serialization_ns` added.

    The measurements of a mechanism, sorted by size, belong to `sizes_bytes` in the same order.
    """
    measurements = {
        "pipe": select_single_buffer(outbound, TransferKind.PIPE, multi_buffer_bytes),
        "copied": select_single_buffer(outbound, TransferKind.COPIED, multi_buffer_bytes),
        "loaned": select_single_buffer(outbound, TransferKind.ZERO_COPY, multi_buffer_bytes),
        "passed on": select_single_buffer(returned, TransferKind.ZERO_COPY, multi_buffer_bytes),
        COLD: select_single_buffer(outbound, TransferKind.COLD_COPY, multi_buffer_bytes),
    }
    return {
        name: tuple(
            CostPoint(
                nbytes=size,
                count=measurement.count,
                low_ns=measurement.low_ns + serialization_ns,
                ns=measurement.cost_ns + serialization_ns,
                high_ns=measurement.high_ns + serialization_ns,
            )
            for size, measurement in zip(sizes_bytes, measurements[name], strict=True)
        )
        for name in HOP_MECHANISMS
    }


def make_peer_points(costs_ns_by_size: Mapping[int, Sequence[int]]) -> tuple[CostPoint, ...]:
    """The medians and quartiles of a peer's costs in ns, sorted by size.

    >>> make_peer_points({64: [1, 2, 3, 4, 5]})
    (CostPoint(nbytes=64, count=5, low_ns=2, ns=3, high_ns=4),)
    """
    points = []
    for size, costs_ns in sorted(costs_ns_by_size.items()):
        low_ns, ns, high_ns = (int(np.quantile(costs_ns, quantile)) for quantile in (0.25, 0.5, 0.75))
        points.append(CostPoint(nbytes=size, count=len(costs_ns), low_ns=low_ns, ns=ns, high_ns=high_ns))
    return tuple(points)


def _describe_bench_host() -> dict[str, Any]:
    return {"cpu": read_cpu_model(), **describe_host(), "when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds")}
