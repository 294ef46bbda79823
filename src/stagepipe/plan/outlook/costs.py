"""What a pipeline's processes and hops cost for each item of its source, from the record of a probe. Pure.

A probe has one worker a stage and one item under way, so that what is measured is not stretched by others at work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stagepipe.plan.model import Plan, ProcessPlan, Role
from stagepipe.plan.outlook.freight import freight_of
from stagepipe.plan.outlook.glimpse import Glimpse
from stagepipe.report import HopRecord, RunRecord, StageRecord
from stagepipe.report.load import THREADED
from stagepipe.timing import Histogram

_SOME = 3
"""Durations of which the largest is left out: the first item pays for what is loaded late and for fresh pages."""

_LOOP_NS, _CALL_NS = 13_000, 8_000
"""What a worker's loop takes an item, which is saved by fusing, and what each stage's call takes besides its function
(seeding, counting), which is not: of runs whose stages do nothing."""

_WAKING_NS, _WAITING = 300_000, 0.03
"""In a probe a process sleeps before each item, and pays for that, which a run does not: CPU time an item, and of the
time that passes the share in which it looks around."""

_BOUND = 0.7
"""CPU time over working time from which a stage counts as bound to a CPU; the rest is noise, not waiting."""


@dataclass(frozen=True)
class ProcessCost:
    """One process, for an item of the source: all stages in it. Its hops' sides come on top.

    `alone`: it can have one worker only. `unfusable` says why it cannot run in the process before it, or is empty.
    """

    name: str
    last: str  # the name of the last stage in it
    run_ns: float  # in its stages' functions
    call_ns: float  # around these
    loop_ns: float  # in its own loop
    cpu_ns: float  # CPU time, hops included
    memory_bytes: int  # of one worker
    undisturbed: float = 1.0  # share of its stages' time that is not waiting for a CPU which others had
    alone: bool = False
    unfusable: str = ""
    own_threads: bool = False  # a key that fusing takes away
    most_workers: int | None = None  # as the CPUs it is bound to allow


@dataclass(frozen=True)
class HopCost:
    """A hop, for an item of the source: what its two sides work."""

    send_ns: float
    receive_ns: float

    @property
    def ns(self) -> float:
        """Both sides."""
        return self.send_ns + self.receive_ns


@dataclass(frozen=True)
class Costs:
    """A chain: `hops[i]` leads from `processes[i]` to the next, the last one to the consumer."""

    processes: tuple[ProcessCost, ...]
    hops: tuple[HopCost, ...]


def costs_of(plan: Plan, record: RunRecord, seen: Mapping[str, Glimpse]) -> Costs:
    """The costs from a probe of `plan`."""
    items = max(record.items_in, 1)
    stages = {stage.name: stage for stage in record.stages}
    by_source = {hop.source: hop for hop in record.hops}
    outward = [by_source[process.stages[-1].name] for process in plan.processes]
    carrying = [
        freight_of(hop, seen.get(process.name, Glimpse()), plan.curves)
        for process, hop in zip(plan.processes, plan.hops, strict=True)
    ]
    hops = [
        _hop(hop, freight.decision.cost_ns if freight else 0, items)
        for hop, freight in zip(outward, carrying, strict=True)
    ]
    processes = []
    for number, process in enumerate(plan.processes):
        own = [stages[stage.name] for stage in process.stages]
        told = _told(seen.get(process.name, Glimpse()), sum(outward[number].messages.values()), items)
        sides_ns = hops[number].send_ns + (hops[number - 1].receive_ns if number else 0.0)
        processes.append(_process(number, plan, own, told, items=items, sides_ns=sides_ns))
    return Costs(tuple(processes), tuple(hops))


@dataclass(frozen=True)
class _Told:
    """What the kernel said of a process, an item of the source; 0 where nothing is known."""

    cpu_ns: float
    delay_ns: float


def _told(seen: Glimpse, sent: int, items: int) -> _Told:
    cpu_ns = _all_items_ns(seen.last_cpu_ns, seen.cpu_ns, sent)
    return _Told(cpu_ns / items, _all_items_ns(seen.last_delay_ns, seen.delay_ns, sent) / items)


def _process(
    number: int, plan: Plan, own: Sequence[StageRecord], told: _Told, *, items: int, sides_ns: float
) -> ProcessCost:
    """The cost of process `number`, whose stages' records are `own`."""
    process = plan.processes[number]
    work_ns = sum(run_ns(stage, process) * stage.items for stage in own) / items
    undisturbed = _undisturbed(work_ns, told.delay_ns, max(told.cpu_ns - sides_ns, 0.0))
    loop_ns = _LOOP_NS * own[0].items / items
    call_ns = _CALL_NS * sum(stage.items for stage in own) / items
    all_ns = work_ns * undisturbed + call_ns + loop_ns + sides_ns
    passed_ns = max(own[0].wall_ns - own[0].starting_ns, 0) / items
    return ProcessCost(
        name=process.name,
        last=process.stages[-1].name,
        run_ns=work_ns * undisturbed,
        call_ns=call_ns,
        loop_ns=loop_ns,
        cpu_ns=_likely_cpu_ns(told.cpu_ns, all_ns, passed_ns),
        memory_bytes=own[0].pss_bytes,
        undisturbed=undisturbed,
        alone=process.role is not Role.STAGE,
        unfusable=unfusable(process, plan.processes[number - 1] if number else None, plan),
        own_threads=process.threads is not None,
        most_workers=None if process.cpus is None else len(process.cpus),
    )


def _likely_cpu_ns(measured_ns: float, work_ns: float, passed_ns: float) -> float:
    """CPU time an item in a run: what was measured, but for waking up, where a single thread cannot have taken more."""
    threaded = measured_ns > THREADED * work_ns + _WAKING_NS + _WAITING * passed_ns
    waits = 0 < measured_ns < _BOUND * work_ns
    return measured_ns if waits or threaded else work_ns


def _undisturbed(run_ns: float, delay_ns: float, cpu_ns: float) -> float:
    """The share of `run_ns` that is left without the waits for a CPU; some of these were outside of the functions."""
    if run_ns <= 0:
        return 1.0
    return max(run_ns - delay_ns, min(run_ns, cpu_ns)) / run_ns


def unfusable(process: ProcessPlan, before: ProcessPlan | None, plan: Plan) -> str:
    """Why a process's stages cannot run in the process before it; empty if they can.

    These are the rules of the config (`fuse`), in words.
    """
    first = process.stages[0]
    mode = next((hop.mode for hop in plan.hops if hop.target == process.name), "auto")
    reasons = (
        (before is None, "it is the source"),
        (process.role is Role.ORDER_POINT, "order is restored there"),
        (first.batch is not None, "it is called with lists"),
        (first.mutable, "it writes into what it receives"),
        (bool(process.env), "it has an `env` of its own"),
        (process.cpus is not None, "it has `cpus` of its own"),
        ((process.threads or 1) != ((before.threads if before else None) or 1), "it has `threads` of its own"),
        (mode != "auto", "the hop before it is forced"),
    )
    return next((words for applies, words in reasons if applies), "")


def typical_ns(durations: Histogram) -> float:
    """The mean without the largest, which is most often the first.

    >>> typical_ns(Histogram.of([900, 10, 12, 11]))
    11.0
    """
    count = durations.count
    if count < _SOME:
        return float(durations.mean_ns)
    return (durations.sum_ns - durations.max_ns) / (count - 1)


def pickling(hop: HopRecord) -> HopCost:
    """What encoding (sender) and decoding (receiver) a message cost, in the middle of those measured."""
    return HopCost(*(float(hop.phases[phase].percentile_ns(50)) for phase in ("encode_ns", "decode_ns")))


def _second_ns(durations: Histogram) -> int:
    """The largest but one."""
    count = durations.count
    return durations.percentile_ns(100 * (count - 1) / count) if count > 1 else durations.max_ns


def _hop(hop: HopRecord, carrying_ns: int, items: int) -> HopCost:
    """Pickling as measured, carrying as foretold: in a probe each message wakes its reader up, as few do in a run.

    The sender copies; the rest of the carrying is taken to be done by halves.
    """
    share = sum(hop.messages.values()) / items
    copy_ns = min(float(hop.phases["copy_ns"].percentile_ns(50)), float(carrying_ns))
    half_ns = (carrying_ns - copy_ns) / 2
    both = pickling(hop)
    return HopCost((both.send_ns + copy_ns + half_ns) * share, (both.receive_ns + half_ns) * share)


def run_ns(stage: StageRecord, process: ProcessPlan) -> float:
    """Time in a stage's function for an item that it takes in.

    Of an order point all counts but its very first item: the work that gives a group is no item's.
    """
    if process.role is Role.ORDER_POINT and stage.name == process.name:
        return (stage.busy_ns - stage.run.max_ns + _second_ns(stage.run)) / max(stage.items, 1)
    return typical_ns(stage.run)


def _all_items_ns(last_ns: int, told_ns: Sequence[int], sent: int) -> float:
    """What grew to `last_ns`, as if it had done so from the first item on: by the items behind one that was told of.

    That is the last one told of, or of few the second: a process's first pays for what is loaded late. 0 if nothing is
    known.
    """
    if not told_ns or sent <= 1:
        return 0.0
    at = min(len(told_ns) - 1, sent - 2, max(sent // _SOME - 1, 1))
    share = (sent - at - 1) / sent
    return max(last_ns - told_ns[at], 0) / share if share > 0 else 0.0
