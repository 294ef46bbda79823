"""The monitor compares snapshots: who was busiest since the last one, and how much memory the workers use."""

import os
from types import SimpleNamespace
from typing import Any

from stagepipe.engine.monitor import RunMonitor
from stagepipe.runtime import ProcessSample, RunSample, RunSnapshot, WorkerSnapshot
from stagepipe.runtime.consumer.statistics import DeliveryStatistics
from stagepipe.timing import ProcessCounter, StageCounter

NOTHING = ProcessSample(covered_ns=0, items=0, busy_ns=0, starved_ns=0, blocked_ns=0, received=0, queue_ns=0)


def worker(process_index: int, group: int, name: str, busy_ns: int, pid: int = 0) -> WorkerSnapshot:
    slot: Any = SimpleNamespace(
        process_index=process_index,
        worker_group=group,
        process_plan=SimpleNamespace(name=name, workers=1, stages=(name,)),
    )
    stage_counters = [0] * (StageCounter.LAST_RESERVED + 1)
    stage_counters[StageCounter.BUSY_NS] = busy_ns
    return WorkerSnapshot(
        slot=slot,
        pid=pid,
        is_ready=True,
        counters=(0,) * (ProcessCounter.LAST_RESERVED + 1),
        stage_counters=(tuple(stage_counters),),
        probe_samples=(),
    )


def snapshot(*workers: WorkerSnapshot) -> RunSnapshot:
    deliveries = DeliveryStatistics().take_snapshot()
    return RunSnapshot(
        taken_at_ns=1,
        workers=workers,
        deliveries=deliveries,
        copied_out_items=0,
        restarts=(),
        stall_restarts=(),
        memory_pressures=(),
    )


def test_the_busiest_process_is_the_one_whose_workers_were_busiest_since_the_last_call():
    monitor = RunMonitor()
    busiest = [
        monitor.progress(
            snapshot(worker(0, 0, "source", source_ns), worker(1, 1, "a", a_ns), worker(2, 1, "a", a_ns)),
            RunSample(
                taken_at_ns=1,
                items_done=3,
                processes=(NOTHING,) * 2,
                consumer_received=0,
                consumer_queue_ns=0,
                shared_memory_bytes=0,
            ),
            is_finished=False,
        ).busiest
        for source_ns, a_ns in [(0, 0), (10, 0), (20, 15), (20, 15)]
    ]
    assert busiest == ["", "source", "a", ""]


def test_the_memory_of_a_worker_that_has_ended_stays_as_last_measured():
    monitor = RunMonitor()
    monitor.sample_usage([worker(3, 1, "a", 0, pid=os.getpid())])
    usage = monitor.usage_by_process[3]
    assert usage.rss_bytes > 1 << 20
    assert 0 < usage.pss_bytes <= usage.rss_bytes
    monitor.sample_usage([worker(3, 1, "a", 0, pid=2**22 + 1)])
    assert monitor.usage_by_process == {3: usage}
