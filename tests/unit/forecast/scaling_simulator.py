"""A run as a queueing network, for the tests of the scaling policy: stages with workers, a window, a machine.

Each item takes a time of its own at each stage; some of it is CPU time, which all share. The counters are those that
workers write: after an item, and every 0.1 s while they wait.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from stagepipe.forecast.cost_values import ProcessCost, ResourceBudget
from stagepipe.forecast.scaling import Decision, ScalingGroup, ScalingPolicy, ScalingSample
from stagepipe.report import LiveHop, LiveRun, LiveStage

SECOND = 1_000_000_000
MEMORY = 8 << 30


@dataclass
class Stage:
    """`item_ms` is the time of an item, `cpu_share` what of it is CPU time; both may be changed while it runs.

    `batch` inputs make one output, `keep` is the share of the inputs that is passed on. `max_rate` is what all workers
    reach together, whatever their number.
    """

    item_ms: float
    workers: int = 1
    maximum: int = 8
    minimum: int = 1
    cpu_share: float = 0.0
    noise: float = 0.2
    batch: int = 1
    keep: float = 1.0
    start_s: float = 0.02
    memory_bytes: int = 50 << 20
    max_rate: float = math.inf
    can_start: bool = True


@dataclass
class Change:
    """A change that the policy asked for, at a time in s."""

    at_s: float
    decision: Decision
    delta: int


@dataclass
class _State:
    queue: deque = field(default_factory=deque)
    busy: int = 0
    starting: int = 0
    retiring: int = 0
    workers: int = 0
    waiting_since: list = field(default_factory=list)
    received: int = 0
    sent: int = 0
    grouped: int = 0
    covered_ns: float = 0.0
    busy_ns: float = 0.0
    starved_ns: float = 0.0
    starting_ns: float = 0.0
    cpu_ns: float = 0.0
    next_free_s: float = 0.0


class Simulation:
    """Runs the stages for some time. `source_ms` and `consumer_ms` are what the source and the consumer take."""

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        source_ms: float = 0.05,
        consumer_ms: float = 0.05,
        cpus: int = 64,
        window: int = 64,
        seed: int = 0,
        total: int | None = None,
        is_scaling: bool = True,
        memory_bytes: int = MEMORY,
        interval_s: float = 0.5,
    ) -> None:
        self.stages = [Stage(source_ms, maximum=1, noise=0.1), *stages, Stage(consumer_ms, maximum=1, noise=0.1)]
        self.other_cpus = 0.0
        self.now_s = 0.0
        self.items_out = 0.0
        self.changes: list[Change] = []
        self.outside_s = 0.0
        self.is_outside = False
        self._cpus = cpus
        self._window = window
        self._total = total
        self._random = random.Random(seed)
        self._memory_bytes = memory_bytes
        self._interval_s = interval_s
        self._events: list = []
        self._count = 0
        self._states = [_State(workers=stage.workers) for stage in self.stages]
        self._in_flight = 0.0
        self._sent_in = 0
        self._source_end_ns = 0
        self._next_sample_s = interval_s
        self._changing = 0
        self._failed: set[int] = set()
        self._requested = [stage.workers for stage in self.stages]
        self._policy = self._make_policy() if is_scaling else None
        for stage, state in zip(self.stages, self._states, strict=True):
            state.waiting_since = [0.0] * stage.workers
            state.starting_ns = state.covered_ns = stage.workers * stage.start_s * SECOND

    def _make_policy(self) -> ScalingPolicy:
        groups = [
            ScalingGroup(
                name=f"stage{index}",
                workers=stage.workers,
                minimum=stage.minimum if stage.maximum > 1 else 1,
                maximum=stage.maximum,
                items_per_output=stage.batch,
                rules=ProcessCost(
                    name=f"stage{index}",
                    last_stage=f"stage{index}",
                    run_ns=0,
                    call_ns=0,
                    loop_ns=0,
                    cpu_ns=0,
                    memory_bytes=0,
                    is_single_worker=index == 0,
                ),
            )
            for index, stage in enumerate(self.stages[:-1])
        ]
        budget = ResourceBudget(
            cpus=self._cpus, machine_cpus=self._cpus, memory_bytes=self._memory_bytes, arena_bytes=0
        )
        return ScalingPolicy(groups, budget)

    # ------------------------------------------------------------------ the network

    def run_until(self, end_s: float) -> float:
        """Go on until `end_s`. Returns the source items per second that came out meanwhile."""
        began_s, began = self.now_s, self.items_out
        while True:
            self._fill()
            next_s = self._events[0][0] if self._events else math.inf
            if min(next_s, self._next_sample_s) > end_s:
                self.now_s = end_s
                return (self.items_out - began) / max(end_s - began_s, 1e-9)
            if self._next_sample_s <= next_s:
                self.now_s = self._next_sample_s
                self._next_sample_s += self._interval_s
                self._sample()
            else:
                self.now_s, _, function = heapq.heappop(self._events)
                function()

    def _at(self, time_s: float, function: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_s, self._count, function))

    def _fill(self) -> None:
        """Give every waiting worker an item; the source draws what the window allows."""
        for index in range(len(self.stages)):
            state = self._states[index]
            while state.waiting_since:
                if state.retiring:
                    state.retiring -= 1
                    self._leave(state, state.waiting_since.pop())
                    self._changing -= 1
                    continue
                if index == 0:
                    is_empty = self._total is not None and self._sent_in >= self._total
                    if is_empty and not self._source_end_ns:
                        self._source_end_ns = int(self.now_s * SECOND)
                    if self._in_flight >= self._window or is_empty:
                        break
                    self._in_flight += 1
                    self._sent_in += 1
                    weight = 1.0
                elif index == len(self.stages) - 1 and self.is_outside:
                    break
                elif state.queue:
                    weight = state.queue.popleft()
                else:
                    break
                self._begin(index, state, weight, state.waiting_since.pop())

    def _leave(self, state: _State, since_s: float) -> None:
        state.starved_ns += (self.now_s - since_s) * SECOND
        state.covered_ns += (self.now_s - since_s) * SECOND
        state.workers -= 1

    def _begin(self, index: int, state: _State, weight: float, since_s: float) -> None:
        stage = self.stages[index]
        waited_ns = (self.now_s - since_s) * SECOND
        busy = sum(each.busy * s.cpu_share for each, s in zip(self._states, self.stages, strict=True)) + 1
        slowdown = max((busy + self.other_cpus) / self._cpus, 1.0)  # a fair scheduler
        deviation = math.sqrt(math.log1p(stage.noise**2))
        took_s = stage.item_ms / 1000 * self._random.lognormvariate(-(deviation**2) / 2, deviation)
        cpu_s = took_s * stage.cpu_share
        took_s += cpu_s * (slowdown - 1)
        if stage.max_rate < math.inf:
            state.next_free_s = max(state.next_free_s, self.now_s) + 1 / stage.max_rate
            took_s = max(took_s, state.next_free_s - self.now_s)
        state.busy += 1

        def end() -> None:
            state.busy -= 1
            state.received += 1
            state.busy_ns += took_s * SECOND
            state.starved_ns += waited_ns
            state.covered_ns += waited_ns + took_s * SECOND
            state.cpu_ns += cpu_s * SECOND
            state.waiting_since.append(self.now_s)
            self._pass_on(index, state, weight)

        self._at(self.now_s + took_s, end)

    def _pass_on(self, index: int, state: _State, weight: float) -> None:
        stage = self.stages[index]
        if index == len(self.stages) - 1:
            self.items_out += weight
            self._in_flight -= weight
            return
        if self._random.random() >= stage.keep:
            self._in_flight -= weight
            self.items_out += weight
            return
        state.grouped += 1
        if state.grouped % stage.batch:
            return
        state.sent += 1
        self._states[index + 1].queue.append(weight * stage.batch)

    # ------------------------------------------------------------------ the policy

    def _sample(self) -> None:
        if self.is_outside:
            self.outside_s += self._interval_s
        if self._policy is None:
            return
        decision = self._policy.decide(
            ScalingSample(
                run=self._read(),
                workers=tuple(self._requested[:-1]),
                free_cpus=max(self._cpus - self.other_cpus, 0.0),
                free_memory_bytes=self._memory_bytes
                - sum(
                    state.workers * stage.memory_bytes for state, stage in zip(self._states, self.stages, strict=True)
                ),
                worker_memory_bytes=tuple(stage.memory_bytes for stage in self.stages[:-1]),
                outside_ns=int(self.outside_s * SECOND),
                start_ns=tuple(int(stage.start_s * SECOND) for stage in self.stages[:-1]),
                caller_cpu_ns=int(self._states[-1].busy_ns),
                is_changing=self._changing > 0,
                failed=frozenset(self._failed),
            )
        )
        self._failed.clear()
        if decision is not None:
            self._apply(decision)

    def _apply(self, decision: Decision) -> None:
        index = decision.group
        stage, state = self.stages[index], self._states[index]
        delta = decision.workers - self._requested[index]
        assert delta
        assert stage.minimum <= decision.workers <= stage.maximum
        self.changes.append(Change(self.now_s, decision, delta))
        if delta > 0 and not stage.can_start:
            self._failed.add(index)
            return
        self._requested[index] = decision.workers
        self._changing += abs(delta)
        if delta < 0:
            state.retiring -= delta
            return

        def start() -> None:
            state.workers += 1
            state.waiting_since.append(self.now_s)
            state.covered_ns += stage.start_s * SECOND
            state.starting_ns += stage.start_s * SECOND
            self._changing -= 1

        for number in range(delta):  # one after another
            self._at(self.now_s + (number + 1) * stage.start_s, start)

    def _read(self) -> LiveRun:
        now_s = self.now_s
        rows = []
        for index, state in enumerate(self._states):
            idle_ns = sum(now_s - since_s for since_s in state.waiting_since) * SECOND
            rows.append(
                LiveStage(
                    name=f"stage{index}",
                    workers=state.workers,
                    ready_workers=state.workers,
                    covered_ns=int(state.covered_ns + idle_ns),
                    busy_ns=int(state.busy_ns),
                    starved_ns=int(state.starved_ns + idle_ns),
                    starting_ns=int(state.starting_ns),
                    cpu_ns=int(state.cpu_ns),
                    received=state.received,
                    items=state.received,
                )
            )
        hops = tuple(LiveHop(source="a", target="b", messages=state.sent) for state in self._states[:-1])
        return LiveRun(
            state="running",
            elapsed_ns=int(now_s * SECOND),
            items_in=self._sent_in,
            items_sent=self._sent_in,
            items_total=self._total,
            source_end_ns=self._source_end_ns,
            stages=tuple(rows),
            hops=hops,
            taken_at_ns=int(now_s * SECOND) + 1,
        )

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers of each stage, without source and consumer."""
        return tuple(self._requested[1:-1])


def copy_stages(stages: Sequence[Stage]) -> list[Stage]:
    """Copy stages, so that a simulation may change them."""
    return [replace(stage) for stage in stages]
