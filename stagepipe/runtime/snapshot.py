"""The histograms and the trace of a run, as frozen values. `engine.live_figures` reads its counters.

This runs in the caller's process, on any thread. It reads the board without waiting. RunTimings has the histograms of
stages and hops, for the record of the run. A track of the trace has the records of one process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import add

from stagepipe.costs import CostMeasurement, TransportRuleChange, summarize_ledgers
from stagepipe.plan import SINK_NAME
from stagepipe.report import TraceTrack
from stagepipe.runtime.supervisor import Supervisor
from stagepipe.timing import (
    RECEIVE_PHASES,
    SEND_PHASES,
    Board,
    CostLedger,
    Histogram,
    ProcessRegion,
    SlowItemRow,
    StageRegion,
    read_trace,
)


@dataclass(frozen=True)
class StageTimings:
    """The run times of a stage over all its workers. `slow_items` are the slowest of each worker."""

    run_histogram: Histogram
    slow_items: tuple[SlowItemRow, ...]


@dataclass(frozen=True)
class HopTimings:
    """The costs of a hop, over all workers of both sides."""

    phase_histograms: dict[str, Histogram]
    measured_costs: tuple[CostMeasurement, ...]
    rule_changes: tuple[TransportRuleChange, ...]
    messages_by_size_bits: dict[int, int]
    """The number of messages by the bits of their size: 1 bit is 1 byte, 2 bits are 2 and 3 bytes."""


@dataclass(frozen=True)
class RunTimings:
    """The histograms of a run: of its stages by name, and of its hops in the order of the chain."""

    stages: dict[str, StageTimings]
    hops: tuple[HopTimings, ...]


def take_run_timings(supervisor: Supervisor) -> RunTimings:
    """Return the histograms of the run as they are now. Takes a millisecond or more, because they are large."""
    timings = read_run_timings(
        supervisor.board,
        [[stage.name for stage in process.stages] for process in supervisor.plan.processes],
        supervisor.resources.process_indices_by_group,
    )
    changes = map(supervisor.adaptive_transport.get_rule_changes, range(len(timings.hops)))
    hops = [replace(hop, rule_changes=each) for hop, each in zip(timings.hops, changes, strict=True)]
    return RunTimings(timings.stages, tuple(hops))


def read_run_timings(
    board: Board, stage_names: Sequence[Sequence[str]], process_indices_by_group: Sequence[Sequence[int]]
) -> RunTimings:
    """Return the histograms on the board, in any process. They lack the changes of the transport rules.

    `stage_names` has the stages of each process of the plan.
    """
    regions_by_group = [
        [board.region(process_index) for process_index in process_indices]
        for process_indices in process_indices_by_group
    ]
    stages = {
        name: _take_stage_timings([region.stage_region(stage_index) for region in regions])
        for names, regions in zip(stage_names, regions_by_group, strict=False)  # the consumer has no stages
        for stage_index, name in enumerate(names)
    }
    return RunTimings(stages, tuple(_take_hop_timings(*sides) for sides in pairwise(regions_by_group)))


def _take_stage_timings(regions: list[StageRegion]) -> StageTimings:
    return StageTimings(
        _sum_histograms(Histogram.from_words(region.run_histogram_words) for region in regions),
        tuple(row for region in regions for row in region.read_slow_items()),
    )


def _take_hop_timings(senders: list[ProcessRegion], receivers: list[ProcessRegion]) -> HopTimings:
    sender_histograms = [region.phase_histograms() for region in senders]
    receiver_histograms = [region.phase_histograms() for region in receivers]
    sides = ((SEND_PHASES, sender_histograms), (RECEIVE_PHASES, receiver_histograms))
    return HopTimings(
        {
            phase: _sum_histograms(histograms[phase] for histograms in side)
            for phases, side in sides
            for phase in phases
        },
        tuple(
            summarize_ledgers(
                [region.send_ledger for region in senders], [region.receive_ledger for region in receivers]
            )
        ),
        (),
        _count_sizes([region.send_ledger for region in senders]),
    )


def _count_sizes(ledgers: list[CostLedger]) -> dict[int, int]:
    counts: Counter[int] = Counter()
    for ledger in ledgers:
        for entry in ledger.entries():
            counts[entry.size_bits] += entry.cost_histogram.count
    return dict(sorted(counts.items()))


def _sum_histograms(histograms: Iterable[Histogram]) -> Histogram:
    return reduce(add, histograms)


def read_trace_tracks(supervisor: Supervisor) -> tuple[TraceTrack, ...]:
    """Return the rings of all processes of a traced run, in the order of the chain, the consumer's last.

    Call it after the workers have ended, or the last records may be torn.
    """
    resources = supervisor.resources
    names = [(slot.name, slot.worker_group) for slot in resources.slots]
    names.append((SINK_NAME, len(supervisor.plan.processes)))
    return tuple(
        TraceTrack(name, group, read_trace(resources.trace_fds[index])) for index, (name, group) in enumerate(names)
    )
