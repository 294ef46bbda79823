"""Decides which stage gets or loses a worker during a run. Pure: it reads no clock and no process.

Once a second or more often it gets the counters of the run and the free resources of the machine. The recent cost of an
item in each process goes through the model of `stagepipe plan` (`predict_throughput`). A worker is added if the
predicted gain is above the measured noise and pays for the start; a worker is retired if it is idle and its resources
are needed. Each change is a trial: without the predicted gain it is reverted, and not tried again for a while.

At a steady load the layout stays as it is. A *shift* allows changes again: the cost of an item in a process changes
beyond the noise, or other programs start or end.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Final, NamedTuple

from stagepipe.core import format_bytes, format_percent, join_names
from stagepipe.forecast.cost_values import HopCost, PipelineCosts, ProcessCost, ResourceBudget, compute_expected_cpus
from stagepipe.forecast.costs import add_layout_rules
from stagepipe.forecast.layout import (
    MACHINE_LIMIT,
    ProcessLayout,
    Throughput,
    count_max_workers,
    fits_in_memory,
    make_layout,
    predict_throughput,
    with_workers,
)
from stagepipe.plan import Plan
from stagepipe.report import CONSUMER, LiveRun, LiveStage, format_gain

_NS: Final = 1_000_000_000

_MIN_BLOCK_NS: Final = 400_000_000
"""Workers write their counters every 0.1 s: within a shorter block, the counts are of different moments."""

_MIN_BLOCK_ITEMS: Final = 4
_MAX_BLOCKS: Final = 16
_COST_BLOCKS: Final = 8
"""The cost of an item is its mean over at most this number of blocks."""

_UNKNOWN_NOISE: Final = 0.15
"""The assumed relative noise of a block until enough are measured."""

_MIN_NOISE_BLOCKS: Final = 4
_MIN_SHIFT: Final = 0.25
_SHIFT_SIGMAS: Final = 4.0
"""A cost has shifted if a block differs from the earlier ones by this many times its noise, and by a quarter."""

_MIN_SHIFTED_CPUS: Final = 0.4
"""Other programs have started or ended if their CPU use changes by this much."""

_MIN_LIMITING_SHARE: Final = 0.5
"""A process with less work than this share of the maximum makes no difference to the layout."""

_MIN_GAIN: Final = 0.06
_SETTLED_GAIN: Final = 0.12
"""The minimum gain of a change: while the layout follows a shift, and at a steady load."""

_GAIN_SIGMAS: Final = 2.5
_MIN_UTILIZATION: Final = 0.8
"""A stage whose workers are busy for a smaller share of their time does not limit."""

_MIN_TRIAL_NS: Final = int(0.9 * _NS)
_MAX_TRIAL_NS: Final = 5 * _NS
"""A trial ends as soon as the gain has come, or after this time if the noise is small enough to judge."""

_LONG_TRIAL_NS: Final = 10 * _NS
"""A trial ends after this time even within the noise."""

_LONGEST_TRIAL_NS: Final = 20 * _NS
"""A trial with slow items waits for some of them, but not for longer."""

_MIN_TRIAL_ITEMS: Final = 12
_MIN_GAIN_SHARE: Final = 0.3
"""The share of the predicted gain that a change must reach."""

_MAX_LOSS: Final = 0.05
"""A retired worker is replaced if the rate falls by more, beyond the noise."""

_FIRST_LOOK_NS: Final = int(1.4 * _NS)
_SETTLING_NS: Final = 6 * _NS
"""After this time without a change or shift, the layout has settled."""

_SETTLED_INTERVAL_NS: Final = 60 * _NS
_FIRST_PAUSE_NS: Final = 120 * _NS
"""A failed change is not tried again for this time, then for twice that ..."""

_MAX_PAUSE_NS: Final = 3600 * _NS
_MIN_REMAINING_NS: Final = 2 * _NS
_MIN_UNKNOWN_REMAINING_NS: Final = 10 * _NS
_SPARE_NS: Final = 5 * _NS
_LONG_SPARE_NS: Final = 30 * _NS
_MAX_SPARE_UTILIZATION: Final = 0.75
"""A stage can spare a worker if the others would then work less than this share of their time."""

_MUCH_MEMORY_SHARE: Final = 0.05
"""The memory of one worker, as a share of all, that is worth freeing."""

_SAME_RATE: Final = 0.99
_CLOSE_RATE: Final = 0.97
_MAX_OUTSIDE_SHARE: Final = 0.1
_RATE_POINTS: Final = 12
_GAIN_SHARE_AT_ONCE: Final = 0.6
"""A change that brings this share of the predicted gain succeeds at once."""

_MAX_IN_FLIGHT_RATIO: Final = 1.25
_MUCH_SLOWER: Final = 2.0
"""During the trial of another process, a process whose items take this many times as long is a new bottleneck."""

_MIN_FLOW: Final = 1e-9
_MIN_FLOW_INPUTS: Final = 64
_MIN_FLOW_OUTPUTS: Final = 16
_ORDINALS: Final = {2: "a second one", 3: "a third one", 4: "a fourth one", 5: "a fifth one", 6: "a sixth one"}


@dataclass(frozen=True, kw_only=True)
class ScalingGroup:
    """The workers of one process of the plan: their number at the start, and its bounds.

    One output is made of `items_per_output` inputs; 0: their number is unknown. `rules` has the restrictions of the
    plan.
    """

    name: str
    workers: int
    minimum: int
    maximum: int
    items_per_output: int = 1
    rules: ProcessCost

    @property
    def is_fixed(self) -> bool:
        """Whether the number of workers is fixed."""
        return self.minimum == self.maximum


@dataclass(frozen=True, kw_only=True)
class ScalingSample:
    """The run and the machine at one moment.

    `run` has the counters, a row per process and then the consumer, as `LiveFigures.read` returns them. Each group has
    its number of `workers`, and for one worker the time of a start and the memory, without shared memory. `free_cpus`
    are the CPUs that other programs leave. `caller_cpu_ns` is the CPU time of the process that takes the items, and
    `outside_ns` the time in which it did not iterate, both since the start. `is_changing`: a worker starts or retires.
    `failed`: groups with a worker that could not start since the last sample.
    """

    run: LiveRun
    workers: tuple[int, ...]
    free_cpus: float
    free_memory_bytes: int
    worker_memory_bytes: tuple[int, ...]
    start_ns: tuple[int, ...]
    caller_cpu_ns: int = 0
    outside_ns: int = 0
    is_changing: bool = False
    failed: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Decision:
    """Change `group` to `workers` workers. `reason` is one sentence. `gain`: 0.45 is a rate 45 % higher."""

    group: int
    workers: int
    reason: str
    gain: float


def make_scaling_groups(plan: Plan) -> tuple[ScalingGroup, ...]:
    """Return the groups of a plan, one per process."""
    blank = [_make_cost(process.name) for process in plan.processes]
    rules = add_layout_rules(PipelineCosts(tuple(blank), (HopCost(0, 0),) * len(blank)), plan).processes
    groups = []
    for process, rule in zip(plan.processes, rules, strict=True):
        bounds = process.worker_bounds
        groups.append(
            ScalingGroup(
                name=process.first_stage.row,
                workers=process.workers,
                minimum=process.workers if bounds is None else bounds.minimum,
                maximum=process.workers if bounds is None else bounds.maximum,
                items_per_output=process.items_per_output,
                rules=rule,
            )
        )
    return tuple(groups)


def _make_cost(name: str) -> ProcessCost:
    return ProcessCost(name=name, last_stage=name, run_ns=0, call_ns=0, loop_ns=0, cpu_ns=0, memory_bytes=0)


# ------------------------------------------------------------------ the cost of an item


class _Counts(NamedTuple):
    """The counters of a process, or their growth. Times are in ns, summed over its workers."""

    received: int
    sent: int
    covered_ns: int
    starting_ns: int
    waiting_ns: int
    busy_ns: int
    cpu_ns: int

    def since(self, before: _Counts) -> _Counts:
        return _Counts(*(max(new - old, 0) for new, old in zip(self, before, strict=True)))

    @property
    def work_ns(self) -> int:
        """The time in which its workers were neither starved nor blocked."""
        return max(self.covered_ns - self.starting_ns - self.waiting_ns, self.busy_ns)

    @property
    def utilization(self) -> float:
        return min(self.work_ns / max(self.covered_ns - self.starting_ns, 1), 1.0)


_NOTHING = _Counts(0, 0, 0, 0, 0, 0, 0)


def _read_counts(stage: LiveStage, sent: int) -> _Counts:
    waiting_ns = stage.starved_ns + stage.blocked_ns
    return _Counts(stage.received, sent, stage.covered_ns, stage.starting_ns, waiting_ns, stage.busy_ns, stage.cpu_ns)


def _read_consumer(stage: LiveStage, cpu_ns: int) -> _Counts:
    """The counts of the consumer. Receiving an item is work, although the consumer counts it as waiting."""
    busy_ns, waiting_ns = stage.busy_ns + stage.hop_ns, max(stage.starved_ns - stage.hop_ns, 0)
    return _Counts(stage.items, 0, busy_ns + waiting_ns, 0, waiting_ns, busy_ns, cpu_ns)


def _read_all(sample: ScalingSample) -> list[_Counts]:
    """The counters of each process and of the consumer."""
    *stages, consumer = sample.run.stages
    counts = [_read_counts(stage, hop.messages) for stage, hop in zip(stages, sample.run.hops, strict=True)]
    return [*counts, _read_consumer(consumer, sample.caller_cpu_ns)]


class _Meter:
    """The recent counts of a process, in blocks that are long enough to measure the cost of an item."""

    def __init__(self) -> None:
        self._blocks: deque[_Counts] = deque(maxlen=_MAX_BLOCKS)
        self.total = _NOTHING
        self._began_ns = 0
        self._began: _Counts | None = None
        self._fresh = 0  # blocks since the last change of the layout
        self._steady = 0  # of those, the blocks since the last shift of any process
        self._last_noise = _UNKNOWN_NOISE
        self._reference = 0.0  # the cost of a message when the layout settled; 0: not settled
        self._before_ns = 0.0  # the cost before it shifted; 0: no shift since then
        self.has_counted = False

    def add(self, now_ns: int, counts: _Counts) -> bool:
        """Add the current counters. Returns whether a block is complete."""
        self.total = counts
        if self._began is None:
            self._began_ns, self._began = now_ns, counts
        grown = counts.since(self._began)
        if now_ns - self._began_ns < _MIN_BLOCK_NS or grown.received < _MIN_BLOCK_ITEMS or not grown.covered_ns:
            return False
        self._blocks.append(grown)
        self._began_ns, self._began = now_ns, counts
        self._fresh += 1
        self._steady += 1
        self.has_counted = True
        return True

    def interrupt(self) -> None:
        """Leave out the time from the last block to the next sample: the layout changes, or no item is wanted."""
        self._began = None
        self._fresh = self._steady = 0

    def restart_utilization(self) -> None:
        """Leave out earlier blocks from the utilization: another process limits from now on."""
        self._steady = 0

    def forget(self, keep: int = 0) -> None:
        """Forget the cost of an item except for the last blocks. The noise stays until it is measured again."""
        self._last_noise = self.noise
        self._blocks = deque(list(self._blocks)[-keep:] if keep else (), maxlen=_MAX_BLOCKS)
        self._reference = 0.0
        self._fresh = min(self._fresh, keep)
        self._steady = min(self._steady, keep)

    def keep_fresh(self) -> None:
        """Forget the cost of an item before the last change, which may have affected it."""
        self.forget(keep=self._fresh)

    def settle(self) -> None:
        """Remember the cost, so that slow changes are detected."""
        self._reference = self.cost_ns
        self._before_ns = 0.0

    def note_shift(self) -> None:
        """Remember the cost of a message before the last block."""
        earlier = _add_up(list(self._blocks)[-_COST_BLOCKS - 1 : -1])
        self._before_ns = self._before_ns or earlier.work_ns / max(earlier.received, 1)

    @property
    def growth(self) -> float:
        """The cost of a message relative to the cost before its shift; 1 without a shift since the layout settled."""
        return self.cost_ns / self._before_ns if self._before_ns else 1.0

    @property
    def is_known(self) -> bool:
        """Whether enough was counted to know the cost of a message."""
        return bool(self._blocks)

    @property
    def cost_ns(self) -> float:
        """The work per message; 0 while unknown."""
        recent = self._sum(_COST_BLOCKS)
        return recent.work_ns / recent.received if recent.received else 0.0

    @property
    def last_cost_ns(self) -> float:
        """The work per message in the last block; 0 while unknown."""
        return self._blocks[-1].work_ns / self._blocks[-1].received if self._blocks else 0.0

    @property
    def recent(self) -> _Counts:
        """The sum of the blocks that determine the cost."""
        return self._sum(_COST_BLOCKS)

    @property
    def utilization(self) -> float:
        """The share of the time that its workers work, since the last change or shift; 0 while unknown."""
        return self._sum(min(self._steady, _COST_BLOCKS)).utilization if self._steady else 0.0

    def count_outputs(self) -> float:
        """The number of messages that it sends per message received; 0 while unknown."""
        recent = self.recent
        has_enough = recent.received >= _MIN_FLOW_INPUTS and recent.sent >= _MIN_FLOW_OUTPUTS
        counts = recent if has_enough else self.total
        return counts.sent / counts.received if counts.received else 0.0

    @property
    def noise(self) -> float:
        """The relative deviation of the cost from block to block. Slow changes do not count."""
        return _measure_noise(list(self._blocks)) or self._last_noise

    @property
    def cost_noise(self) -> float:
        """The relative deviation of the mean cost."""
        return self.noise / math.sqrt(max(min(len(self._blocks), _COST_BLOCKS), 1))

    def has_shifted(self) -> bool:
        """Whether the last block differs from the earlier ones, or the recent mean from the reference."""
        *before, last = self._blocks
        if len(before) >= 2:  # noqa: PLR2004 - less tell nothing
            earlier = _add_up(before[-_COST_BLOCKS:])
            if _differs(last, earlier.work_ns / earlier.received, _measure_noise(before) or self._last_noise):
                return True
        return self._reference > 0 and _differs(self.recent, self._reference, self.cost_noise)

    @property
    def is_rising(self) -> bool:
        """Whether the last block cost more than the earlier ones since the last change of the layout."""
        *before, last = list(self._blocks)[-self._fresh :] if self._fresh else [_NOTHING]
        if len(before) < 2 or not self._fresh:  # noqa: PLR2004 - less tell nothing
            return False
        earlier = _add_up(before)
        cost_ns = earlier.work_ns / earlier.received
        return last.work_ns / last.received > cost_ns and _differs(last, cost_ns, self._last_noise)

    def _sum(self, blocks: int) -> _Counts:
        return _add_up(list(self._blocks)[-blocks:])


def _compare_totals(first: _Meter, second: _Meter) -> float:
    """The messages that the first process has received per message of the second. Messages in flight do not count."""
    ratio = first.total.received / max(second.total.received, 1)
    return 1.0 if not second.total.received or 1 / _MAX_IN_FLIGHT_RATIO < ratio < _MAX_IN_FLIGHT_RATIO else ratio


def _add_up(blocks: Sequence[_Counts]) -> _Counts:
    return _Counts(*map(sum, zip(*blocks, strict=True))) if blocks else _NOTHING


def _measure_noise(blocks: Sequence[_Counts]) -> float:
    """Return the relative noise of a block; 0 if there are too few."""
    if len(blocks) < _MIN_NOISE_BLOCKS:
        return 0.0
    logs = [math.log(max(block.work_ns, 1) / block.received) for block in blocks]
    return fmean(abs(new - old) for old, new in pairwise(logs)) * math.sqrt(math.pi) / 2


def _differs(counts: _Counts, cost_ns: float, noise: float) -> bool:
    if not counts.received or cost_ns <= 0:
        return False
    deviation = abs(math.log(max(counts.work_ns, 1) / counts.received / cost_ns))
    return deviation > max(math.log1p(_MIN_SHIFT), _SHIFT_SIGMAS * noise)


class _Rate(NamedTuple):
    """Messages per second over a time, and the relative error."""

    messages_per_s: float = 0.0
    error: float = 1.0
    messages: int = 0


class _RateMeter:
    """The number of messages that each process receives per second, since the last change or shift.

    The rate of the bottleneck is the rate of the run, even while the queues before it fill or empty.
    """

    def __init__(self) -> None:
        self._points: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=_RATE_POINTS)

    def add(self, now_ns: int, counts: Sequence[_Counts]) -> None:
        self._points.append((now_ns, tuple([each.received for each in counts])))

    def clear(self) -> None:
        self._points.clear()

    def measure(self, index: int) -> _Rate:
        """Return the rate of a process over the last seconds."""
        points = [(now_ns, received[index]) for now_ns, received in self._points]
        if len(points) < 2:  # noqa: PLR2004 - two make an interval
            return _Rate()
        rates = [(new[1] - old[1]) / max(new[0] - old[0], 1) for old, new in pairwise(points)]
        mean, error = fmean(rates), _UNKNOWN_NOISE
        if len(rates) >= _MIN_NOISE_BLOCKS and mean > 0:
            error = math.sqrt(fmean([(rate / mean - 1) ** 2 for rate in rates]))
        messages = points[-1][1] - points[0][1]
        rate = messages * _NS / max(points[-1][0] - points[0][0], 1)
        return _Rate(rate, error / math.sqrt(len(rates)), messages)


# ------------------------------------------------------------------ the decision


@dataclass(kw_only=True)
class _Trial:
    """A change whose gain is not known yet: `steps` has its groups, each with the number of added workers.

    `limit` is the process that limited the rate before the change, `before` its rate. A change that reverts another one
    (`is_reversal`) does not count as a failure of the group.
    """

    steps: dict[int, int]
    workers: tuple[int, ...]  # of all groups before it
    gain: float
    limit: int
    before: _Rate
    reason: str
    is_reversal: bool = False
    done: int = 0
    began_ns: int = 0  # when all steps were done

    @property
    def is_growth(self) -> bool:
        """Whether workers are added."""
        return next(iter(self.steps.values())) > 0


@dataclass
class _Pause:
    """No changes of a group for a while, because its last change failed or had no effect."""

    until_ns: int = 0
    length_ns: int = _FIRST_PAUSE_NS


class ScalingPolicy:
    """Decides for one run. Call `decide` once or twice a second.

    >>> policy = ScalingPolicy(make_scaling_groups(plan), budget)  # doctest: +SKIP
    >>> policy.decide(sample).reason  # doctest: +SKIP
    'decode limits the run: its 2 workers are busy 98 % of the time; a third one brings +45 %'
    """

    def __init__(self, groups: Sequence[ScalingGroup], budget: ResourceBudget) -> None:
        """`budget` has the constant resources: the CPUs, GPUs and the memory of the machine, and the arenas."""
        self._groups = tuple(groups)
        self._budget = budget
        self._indices = {group.rules.name: index for index, group in enumerate(groups)}
        self._meters = [_Meter() for _ in (*groups, CONSUMER)]
        self._rate = _RateMeter()
        self._last: ScalingSample | None = None
        self._trial: _Trial | None = None
        self._pauses = [_Pause() for _ in groups]
        self._began_ns = 0  # start of the measurement
        self._moved_ns = 0  # the last change or shift
        self._changed_ns = 0  # the last change
        self._is_settled = False
        self._first_limit = ""
        self._has_moved = False  # the bottleneck is another process than at the start
        self._free_cpus = -1.0
        self._settled_cpus = 0.0
        self._spare_since_ns = [0] * len(groups)

    @property
    def is_settled(self) -> bool:
        """Whether no trial runs and nothing has shifted recently. One sample per second is then enough."""
        return self._is_settled and self._trial is None

    def decide(self, sample: ScalingSample) -> Decision | None:
        """Take the next sample. Returns the change to make now, or None."""
        now_ns = sample.run.taken_at_ns
        last, self._last = self._last, sample
        for group in sample.failed:
            self._pause(group, now_ns)
            self._trial = None
        if last is None or not _is_evidence(last, sample):
            return self._interrupt(sample, now_ns)
        self._measure(sample, now_ns)
        flow = self._compute_flow()
        costs = self._make_costs(sample, flow)
        if costs is None or now_ns - self._began_ns < _FIRST_LOOK_NS:
            return None
        layout = make_layout(sample.workers)
        budget = self._make_budget(sample)
        limit = predict_throughput(layout, costs, budget.cpus).limited_by
        if self._trial is not None:
            decision = self._judge(self._trial, sample, now_ns)
            if self._trial is not None:
                return decision
        if not self._is_settled and now_ns - self._moved_ns >= _SETTLING_NS:
            self._settle(limit)
        self._note_spare(layout, costs, budget, now_ns)
        view = _View(sample, layout, costs, budget, limit, flow)
        return self._find_addition(view, now_ns) or self._find_retirement(view, now_ns)

    # ------------------------------------------------------------------ measuring

    def _interrupt(self, sample: ScalingSample, now_ns: int) -> Decision | None:
        """Start measuring again: the last interval is no evidence. Returns the next step of a change, if any."""
        for meter, counts in zip(self._meters, _read_all(sample), strict=True):
            meter.interrupt()
            if not sample.is_changing:
                meter.add(now_ns, counts)
        self._rate.clear()
        self._rate.add(now_ns, _read_all(sample))
        self._began_ns = self._began_ns if self._is_settled or self._trial is not None else now_ns
        trial = self._trial
        if trial is None:
            self._moved_ns = now_ns if not self._is_settled else self._moved_ns
            return None
        trial.began_ns = self._moved_ns = self._changed_ns = now_ns
        return None if sample.is_changing else self._step(trial, sample)

    def _measure(self, sample: ScalingSample, now_ns: int) -> None:
        has_shifted = False
        counts = _read_all(sample)
        for index, (meter, own) in enumerate(zip(self._meters, counts, strict=True)):
            if meter.add(now_ns, own) and meter.has_shifted():
                has_shifted |= self._note_shift(index, sample)
        self._rate.add(now_ns, counts)
        self._free_cpus = sample.free_cpus if self._free_cpus < 0 else (self._free_cpus + sample.free_cpus) / 2
        if self._is_settled and abs(self._free_cpus - self._settled_cpus) >= _MIN_SHIFTED_CPUS:
            has_shifted = True
            for pause in self._pauses:
                pause.until_ns = 0
        if has_shifted:
            for meter in self._meters:
                meter.restart_utilization()
            self._rate.clear()
            self._rate.add(now_ns, counts)
            self._moved_ns = now_ns
            self._is_settled = False

    def _note_shift(self, index: int, sample: ScalingSample) -> bool:
        """Forget the earlier cost of an item. Returns whether the shift matters to the layout."""
        trial, meter = self._trial, self._meters[index]
        if trial is not None and (index in trial.steps or trial.began_ns):
            # During a trial, items take longer if the workers share a scarce resource; the trial itself judges that. If
            # they take much longer, or more and more time, the items have changed.
            limit_ns = _MUCH_SLOWER * meter.cost_ns
            if not meter.is_rising if index in trial.steps else meter.last_cost_ns < limit_ns:
                return False
            self._trial = None
        flow = self._compute_flow()
        workers = (*sample.workers, 1)
        loads = [
            each.cost_ns * messages / count for each, messages, count in zip(self._meters, flow, workers, strict=True)
        ]
        own = max(meter.last_cost_ns, meter.cost_ns) * flow[index] / workers[index]
        meter.note_shift()
        if meter.last_cost_ns * flow[index] / workers[index] < _MIN_LIMITING_SHARE * max(loads):
            meter.forget(keep=1)
        else:
            meter.forget()  # the last block has items of both kinds
        if own < _MIN_LIMITING_SHARE * max(loads):
            return False
        if index < len(self._pauses):
            self._pauses[index].until_ns = 0
        return True

    def _compute_flow(self) -> list[float]:
        """Messages that each process receives per item that leaves the source. The first value is for the source."""
        flow = [1.0, 1.0]
        for group, (meter, following) in zip(self._groups[1:], pairwise(self._meters[1:]), strict=True):
            if group.items_per_output > 1:
                per_input = 1 / group.items_per_output
            elif following.total.received > meter.total.sent:  # it sends chunks of several items
                per_input = _compare_totals(following, meter)
            else:
                per_input = meter.count_outputs()
            flow.append(flow[-1] * per_input)
        flow[0] = _compare_totals(*self._meters[:2])
        return [max(messages, _MIN_FLOW) for messages in flow]

    def _make_costs(self, sample: ScalingSample, flow: Sequence[float]) -> PipelineCosts | None:
        """Return the costs per source item; None while a process has too few items since its shift.

        The work on hops is a part of `loop_ns`: no process is fused, so it need not be known.
        """
        groups = (*self._groups, None)
        if any(
            not meter.is_known and (meter.has_counted or (group is not None and not group.is_fixed))
            for group, meter in zip(groups, self._meters, strict=True)
        ):
            return None
        per_item = [
            (meter.recent, messages / max(meter.recent.received, 1))
            for meter, messages in zip(self._meters, flow, strict=True)
        ]
        processes = tuple(
            replace(
                group.rules,
                run_ns=min(recent.busy_ns, recent.work_ns) * scale,
                loop_ns=max(recent.work_ns - recent.busy_ns, 0) * scale,
                cpu_ns=recent.cpu_ns * scale,
                memory_bytes=memory_bytes,
            )
            for group, (recent, scale), memory_bytes in zip(
                self._groups, per_item, sample.worker_memory_bytes, strict=False
            )
        )
        consumer, scale = per_item[-1]
        return PipelineCosts(
            processes,
            (HopCost(0.0, 0.0),) * len(processes),
            sink_ns=consumer.work_ns * scale,
            sink_waiting_ns=max(consumer.work_ns - consumer.cpu_ns, 0) * scale,
        )

    def _make_budget(self, sample: ScalingSample) -> ResourceBudget:
        """The current budget: the free resources, and those that the run already uses."""
        used = sum(map(operator.mul, sample.workers, sample.worker_memory_bytes))
        memory_bytes = sample.free_memory_bytes + used + sample.run.shared_memory_bytes
        return replace(
            self._budget,
            cpus=compute_expected_cpus(self._free_cpus, self._budget.machine_cpus),
            memory_bytes=min(self._budget.memory_bytes, memory_bytes),
        )

    def _settle(self, limit: str) -> None:
        for meter in self._meters:
            meter.settle()
        self._is_settled = True
        self._settled_cpus = self._free_cpus
        self._first_limit = self._first_limit or limit

    # ------------------------------------------------------------------ one worker more

    def _find_addition(self, view: _View, now_ns: int) -> Decision | None:
        """Add the fewest workers that come close to the best rate, if that is worth their start."""
        if self._is_settled and now_ns - self._changed_ns < _SETTLED_INTERVAL_NS:
            return None
        now = view.predict(view.layout)
        options: list[tuple[float, ProcessLayout, dict[int, int]]] = []
        layout = view.layout
        steps: dict[int, int] = {}
        while True:
            index = self._indices.get(view.predict(layout).limited_by)
            if index is None or not self._may_grow(index, layout, view, now_ns):
                break
            layout = with_workers(layout, index, layout[index].workers + 1)
            steps = {**steps, index: steps.get(index, 0) + 1}
            options.append((view.predict(layout).items_per_s / now.items_per_s, layout, steps))
        best = max((ratio for ratio, *_ in options), default=1.0)
        ratio, layout, steps = next(
            (option for option in options if option[0] >= _CLOSE_RATE * best), (1.0, layout, {})
        )
        gain = ratio - 1
        if not steps or gain < self._compute_hysteresis(steps) or not self._pays(steps, gain, view, now.items_per_s):
            return None
        first = next(iter(steps))
        if self._meters[first].utilization < _MIN_UTILIZATION:
            return None
        if not fits_in_memory(layout, view.costs, view.budget):
            return self._make_room(first, view, now_ns)
        self._has_moved |= bool(self._first_limit) and self._first_limit != now.limited_by
        reason = self._explain(steps, gain, view)
        return self._begin(self._make_trial(steps, gain, reason, view), view.sample)

    def _may_grow(self, index: int, layout: ProcessLayout, view: _View, now_ns: int) -> bool:
        """Whether a group may have one more worker in this change.

        A change at most doubles the workers, or multiplies them by the growth of the item's cost since a shift, if
        larger.
        """
        group, count = self._groups[index], layout[index].workers
        most = min(group.maximum, count_max_workers(layout[index], view.costs, view.budget))
        reached = max(2.0, self._meters[index].growth) * view.layout[index].workers
        return count < min(most, reached) and now_ns >= self._pauses[index].until_ns

    def _compute_hysteresis(self, steps: Iterable[int]) -> float:
        noise = max(self._meters[index].cost_noise for index in steps)
        return max(_SETTLED_GAIN if self._is_settled else _MIN_GAIN, _GAIN_SIGMAS * noise)

    def _pays(self, steps: Mapping[int, int], gain: float, view: _View, items_per_s: float) -> bool:
        """Whether the gain over the rest of the run exceeds the loss during the starts.

        `items_per_s` is the current rate. The rest of the run is the items that the first of the groups has not
        received yet.
        """
        run = view.sample.run
        starts_ns = sum(view.sample.start_ns[index] * count for index, count in steps.items())
        remaining_ns = 0.0
        if run.items_total is not None:
            first = next(iter(steps))
            waiting = max(run.items_sent - self._meters[first].total.received / view.flow[first], 0.0)
            remaining_ns = (max(run.items_total - run.items_in, 0) + waiting) * _NS / items_per_s
        if run.items_total is None or run.items_sent > run.items_in:  # the number of remaining epochs is unknown
            remaining_ns = max(remaining_ns, run.elapsed_ns, _MIN_UNKNOWN_REMAINING_NS)
        return remaining_ns >= _MIN_REMAINING_NS and gain * (remaining_ns - starts_ns) > starts_ns

    def _explain(self, steps: Mapping[int, int], gain: float, view: _View) -> str:
        first = next(iter(steps))
        if len(steps) > 1:
            names = join_names([self._groups[index].name for index in steps])
            return f"{names} limit the run together: more workers for each bring {format_gain(gain)}"
        count = view.layout[first].workers
        workers = "its worker is" if count == 1 else f"its {count} workers are"
        more = _ORDINALS.get(count + 1, "one more") if steps[first] == 1 else f"{steps[first]} more"
        share = format_percent(self._meters[first].utilization)
        verb = "brings" if steps[first] == 1 else "bring"
        return (
            f"{self._groups[first].name} limits the run: {workers} busy {share} of the time; {more} {verb} "
            f"{format_gain(gain)}"
        )

    # ------------------------------------------------------------------ one worker less

    def _note_spare(self, layout: ProcessLayout, costs: PipelineCosts, budget: ResourceBudget, now_ns: int) -> None:
        """Note since when each group can spare a worker: the others would still wait, at the same rate."""
        rate = predict_throughput(layout, costs, budget.cpus).items_per_s
        for index, (group, own, meter) in enumerate(zip(self._groups, layout, self._meters, strict=False)):
            least = group.minimum if self._has_moved else max(group.minimum, group.workers)
            is_spare = (
                own.workers > max(least, 1)
                and 0 < meter.utilization * own.workers / (own.workers - 1) < _MAX_SPARE_UTILIZATION
                and predict_throughput(with_workers(layout, index, own.workers - 1), costs, budget.cpus).items_per_s
                >= _SAME_RATE * rate
            )
            self._spare_since_ns[index] = (self._spare_since_ns[index] or now_ns) if is_spare else 0

    def _list_spare(self, now_ns: int, long_ns: int) -> list[int]:
        return [
            index
            for index, since_ns in enumerate(self._spare_since_ns)
            if since_ns and now_ns - since_ns >= long_ns and now_ns >= self._pauses[index].until_ns
        ]

    def _find_retirement(self, view: _View, now_ns: int) -> Decision | None:
        """Retire a worker without work, if it has much memory or the machine is full."""
        if now_ns - self._changed_ns < _SETTLED_INTERVAL_NS:
            return None
        memory_bytes = view.sample.worker_memory_bytes
        for index in self._list_spare(now_ns, _LONG_SPARE_NS):
            if memory_bytes[index] >= _MUCH_MEMORY_SHARE * view.budget.memory_bytes:
                return self._retire(index, f"one of them frees {format_bytes(memory_bytes[index])}", view)
            if view.limit == MACHINE_LIMIT:
                return self._retire(index, "the CPUs are busy with other stages", view)
        return None

    def _make_room(self, wanted: int, view: _View, now_ns: int) -> Decision | None:
        """Retire a worker of a stage that waits, to make room for group `wanted`."""
        options = [index for index in self._list_spare(now_ns, _SPARE_NS) if index != wanted]
        if not options:
            return None
        index = max(options, key=view.sample.worker_memory_bytes.__getitem__)
        return self._retire(index, f"{self._groups[wanted].name} limits the run and needs the memory", view)

    def _retire(self, index: int, purpose: str, view: _View) -> Decision | None:
        waiting = format_percent(1 - self._meters[index].utilization)
        count = view.layout[index].workers
        name = self._groups[index].name
        reason = f"{name} waits {waiting} of the time, so {count - 1} of its {count} workers are enough; {purpose}"
        return self._begin(self._make_trial({index: -1}, 0.0, reason, view), view.sample)

    # ------------------------------------------------------------------ trials

    def _make_trial(self, steps: dict[int, int], gain: float, reason: str, view: _View) -> _Trial:
        limit = self._indices.get(view.limit, len(self._groups))  # for the machine: the consumer's rate
        return _Trial(
            steps=steps,
            workers=view.sample.workers,
            gain=gain,
            limit=limit,
            before=self._rate.measure(limit),
            reason=reason,
        )

    def _begin(self, trial: _Trial, sample: ScalingSample) -> Decision | None:
        self._trial = trial
        self._moved_ns = self._changed_ns = sample.run.taken_at_ns
        return self._step(trial, sample)

    def _step(self, trial: _Trial, sample: ScalingSample) -> Decision | None:
        """Return the next step of a change; None if all are done."""
        if trial.done == len(trial.steps):
            return None
        group, delta = list(trial.steps.items())[trial.done]
        trial.done += 1
        return Decision(group, sample.workers[group] + delta, trial.reason, trial.gain)

    def _judge(self, trial: _Trial, sample: ScalingSample, now_ns: int) -> Decision | None:
        """End a trial once its gain is known: keep the change, or revert it."""
        before, after = trial.before, self._rate.measure(trial.limit)
        elapsed_ns = now_ns - trial.began_ns
        is_short = elapsed_ns < _MIN_TRIAL_NS or after.messages < _MIN_TRIAL_ITEMS
        if is_short and elapsed_ns < _LONGEST_TRIAL_NS:
            return None
        gain = after.messages_per_s / before.messages_per_s - 1 if before.messages_per_s else trial.gain
        error = math.hypot(after.error, before.error)
        least = _MIN_GAIN_SHARE * trial.gain if trial.is_growth else -_MAX_LOSS
        has_come = trial.is_growth and (trial.is_reversal or gain >= _GAIN_SHARE_AT_ONCE * trial.gain)
        is_certain = elapsed_ns >= _MAX_TRIAL_NS and abs(gain - least) > error
        if not (has_come or is_certain or elapsed_ns >= _LONG_TRIAL_NS):
            return None
        self._trial = None
        self._moved_ns = now_ns
        for index in trial.steps:
            self._meters[index].keep_fresh()
        if has_come or gain >= least:
            return None
        for index in () if trial.is_reversal else trial.steps:
            self._pause(index, now_ns)
        steps = {index: trial.workers[index] - sample.workers[index] for index in trial.steps}
        steps = {index: delta for index, delta in steps.items() if delta}
        reason = self._explain_failure(trial, gain)
        back = _Trial(
            steps=steps,
            workers=sample.workers,
            gain=0.0,
            limit=trial.limit,
            before=after,
            reason=reason,
            is_reversal=True,
        )
        return self._begin(back, sample) if steps else None

    def _explain_failure(self, trial: _Trial, gain: float) -> str:
        names = join_names([self._groups[index].name for index in trial.steps])
        if trial.is_growth:
            brought = f"{format_gain(gain)} instead of {format_gain(trial.gain)}"
            return f"more workers of {names} brought {brought}: they are removed"
        return f"fewer workers of {names} cost {format_percent(-gain)}: they are restored"

    def _pause(self, index: int, now_ns: int) -> None:
        pause = self._pauses[index]
        pause.until_ns = now_ns + pause.length_ns
        pause.length_ns = min(2 * pause.length_ns, _MAX_PAUSE_NS)


class _View(NamedTuple):
    """The inputs of a decision."""

    sample: ScalingSample
    layout: ProcessLayout
    costs: PipelineCosts
    budget: ResourceBudget
    limit: str
    flow: Sequence[float]

    def predict(self, layout: ProcessLayout) -> Throughput:
        return predict_throughput(layout, self.costs, self.budget.cpus)


def _is_evidence(last: ScalingSample, sample: ScalingSample) -> bool:
    """Whether the interval since the last sample shows costs: all processes ran, and the caller wanted items."""
    elapsed_ns = sample.run.taken_at_ns - last.run.taken_at_ns
    restarts = [sum(stage.restarts for stage in each.run.stages) for each in (last, sample)]
    return (
        sample.run.state == "running"
        and not (sample.is_changing or last.is_changing)
        and sample.outside_ns - last.outside_ns <= _MAX_OUTSIDE_SHARE * elapsed_ns
        and restarts[0] == restarts[1]
        and sample.workers == last.workers
    )
