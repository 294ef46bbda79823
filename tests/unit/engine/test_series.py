"""The series of a run, from samples that are made here: rates, shares, queues, and which samples are kept."""

import subprocess
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from stagepipe.engine import series as series_module
from stagepipe.engine.series import SeriesRecorder
from stagepipe.report import LiveRun, LiveStage, Series

SECOND_NS = 1_000_000_000
ONE_STAGE: Any = SimpleNamespace(
    processes=(SimpleNamespace(name="work", workers=2, stages=(SimpleNamespace(name="work"),)),),
    hops=(SimpleNamespace(target="sink"),),
)
NOTHING = LiveStage(name="work")


def make_sample(
    second: float, process: LiveStage = NOTHING, *, consumer_received: int = 0, consumer_queue_ns: int = 0
) -> LiveRun:
    return LiveRun(
        taken_at_ns=int(second * SECOND_NS),
        stages=(process, LiveStage(name="consumer", received=consumer_received, queue_ns=consumer_queue_ns)),
        shared_memory_bytes=int(second) * 100,
    )


def record(samples: list[LiveRun], list_pids: Any = list) -> Series:
    recorder = SeriesRecorder(iter(samples).__next__, list_pids)
    try:
        for _ in samples[1:]:
            recorder.add_sample()
        return recorder.to_series(ONE_STAGE, started_ns=samples[0].taken_at_ns)
    finally:
        recorder.stop()


def test_counts_are_divided_by_the_time_that_they_are_about():
    written = replace(NOTHING, covered_ns=SECOND_NS, items=50, busy_ns=SECOND_NS // 2, starved_ns=SECOND_NS // 4)
    samples = [make_sample(0), make_sample(1, written), make_sample(2, written)]
    series = record(samples)
    (stage,) = series.stages
    assert series.times_ns == (SECOND_NS, 2 * SECOND_NS)
    assert stage.items_per_s == (100.0, 0.0)  # two workers: 50 items in one second of either
    assert (stage.busy, stage.starved, stage.blocked) == ((0.5, 0.0), (0.25, 0.0), (0.0, 0.0))
    assert [(hop.source, hop.target, hop.queued) for hop in series.hops] == [("work", "sink", (0.0, 0.0))]
    assert series.shared_memory_bytes == (100, 200)


def test_a_queue_is_there_before_its_messages_are_received():
    """Ten messages wait from 1 s on; they are received from 3 to 5 s, and so waited 2 to 4 s: 30 s in total."""
    waits = [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 5, 12.5), (5, 10, 30), (6, 10, 30)]
    samples = [
        make_sample(second, consumer_received=received, consumer_queue_ns=int(waited_s * SECOND_NS))
        for second, received, waited_s in waits
    ]
    [hop] = record(samples).hops
    assert sum(hop.queued) == pytest.approx(30, abs=0.1)
    assert max(hop.queued) <= 10
    assert hop.queued[0] < 4
    assert hop.queued[1] > 7
    assert hop.queued[2] > 7
    assert hop.queued[-1] == 0


def test_while_workers_are_in_a_function_an_interval_is_as_the_next():
    later = replace(NOTHING, covered_ns=6 * SECOND_NS, items=3, busy_ns=6 * SECOND_NS)
    series = record([make_sample(0), make_sample(1), make_sample(2), make_sample(3, later)])
    assert series.stages[0].items_per_s == (1.0, 1.0, 1.0)
    assert series.stages[0].busy == (1.0, 1.0, 1.0)


def test_a_long_run_keeps_every_second_sample(monkeypatch):
    monkeypatch.setattr(series_module, "_INTERVAL_NS", 3600 * SECOND_NS)  # the thread takes none
    samples = [make_sample(second) for second in range(1000)]
    for count in (241, 242, 500, 1000):
        times_s = [time_ns // SECOND_NS for time_ns in record(samples[:count]).times_ns]
        assert len(times_s) <= 240
        assert times_s[-1] == count - 1
        assert len(times_s) > 120
        assert times_s == sorted(set(times_s))


def test_a_long_run_keeps_memory_of_all_its_time(monkeypatch):
    monkeypatch.setattr(series_module, "_INTERVAL_NS", 3600 * SECOND_NS)
    monkeypatch.setattr(series_module, "_MAX_PSS_SHARE", 1.0)  # whatever it costs here
    begin_s = int(time.perf_counter())  # whole, so that no interval is a nanosecond short
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as small:  # whose memory is read quickly
        series = record([make_sample(begin_s + second) for second in range(4000)], lambda: [small.pid])
    for points, gap_s in ((series.rss_bytes, 32), (series.pss_bytes, 20)):
        times_s = [point.time_ns / SECOND_NS for point in points]
        assert 100 < len(times_s) <= 240
        assert times_s[0] < 2 * gap_s
        assert times_s[-1] > 3960
        assert max(after - before for before, after in pairwise(times_s)) <= gap_s
        assert min(point.bytes for point in points) > 50_000
