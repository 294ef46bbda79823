"""The monitor measures how much memory the workers use."""

import os
from types import SimpleNamespace
from typing import Any

from stagepipe.engine.monitor import RunMonitor
from stagepipe.runtime import WorkerSnapshot
from stagepipe.timing import ProcessCounter, StageCounter


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


def test_the_memory_of_a_worker_that_has_ended_stays_as_last_measured():
    monitor = RunMonitor()
    monitor.sample_usage([worker(3, 1, "a", 0, pid=os.getpid())])
    usage = monitor.usage_by_process[3]
    assert usage.rss_bytes > 1 << 20
    assert 0 < usage.pss_bytes <= usage.rss_bytes
    monitor.sample_usage([worker(3, 1, "a", 0, pid=2**22 + 1)])
    assert monitor.usage_by_process == {3: usage}
