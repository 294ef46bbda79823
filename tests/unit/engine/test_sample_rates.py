"""The figures of the stages on a terminal: over the last two seconds, and as last known while workers are busy."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from stagepipe.engine.sample_rates import StageRates
from stagepipe.runtime import ProcessSample, RunSample, RunSnapshot

SECOND_NS = 1_000_000_000
NOTHING = ProcessSample(covered_ns=0, items=0, busy_ns=0, starved_ns=0, blocked_ns=0, received=0, queue_ns=0)
PLANS = [
    SimpleNamespace(name="source", workers=1, stages=(SimpleNamespace(name="source"),)),
    SimpleNamespace(name="a", workers=2, stages=(SimpleNamespace(name="a"), SimpleNamespace(name="b"))),
]


def snapshot(second: float, items: int = 0, busy_ns: int = 0, starting: tuple[str, ...] = ()) -> RunSnapshot:
    groups = tuple((SimpleNamespace(slot=SimpleNamespace(process_plan=plan)),) for plan in PLANS)
    deliveries = SimpleNamespace(wall_ns=int(second * SECOND_NS), items=items, busy_ns=busy_ns, wait_ns=0)
    made: Any = SimpleNamespace(worker_groups=groups, deliveries=deliveries, starting_stages=starting)
    return made


def sample(second: float, process: ProcessSample = NOTHING, consumer_queue_ns: int = 0) -> RunSample:
    return RunSample(
        taken_at_ns=int(second * SECOND_NS),
        items_done=None,
        processes=(NOTHING, process),
        consumer_received=0,
        consumer_queue_ns=consumer_queue_ns,
        shared_memory_bytes=0,
    )


def test_figures_are_of_the_last_two_seconds_and_stay_while_workers_are_in_a_function():
    rates = StageRates()
    first = rates.update(snapshot(0, starting=("a",)), sample(0))
    assert [stage.is_starting for stage in first] == [False, True, False]
    slow = replace(NOTHING, covered_ns=4 * SECOND_NS, items=4, busy_ns=4 * SECOND_NS)
    rates.update(snapshot(2, items=4), sample(2, slow))
    quick = replace(slow, covered_ns=8 * SECOND_NS, items=44, busy_ns=5 * SECOND_NS, queue_ns=6 * SECOND_NS)
    source, stage, sink = rates.update(snapshot(4, items=24, busy_ns=SECOND_NS), sample(4, quick, 3 * SECOND_NS))
    assert (source.name, source.queued) == ("source", 0.0)
    assert (stage.name, stage.fused) == ("a", ("b",))
    assert (stage.items_per_s, stage.busy, stage.queued) == pytest.approx((20.0, 0.25, 3.0))
    assert (sink.name, sink.items_per_s, sink.busy, sink.queued) == pytest.approx(("sink", 10.0, 0.5, 1.5))
    for second in (5, 6, 7, 8):
        later = rates.update(snapshot(second, items=24, busy_ns=SECOND_NS), sample(second, quick, 3 * SECOND_NS))
    assert later[1] == stage
    assert later[2].items_per_s == 0
