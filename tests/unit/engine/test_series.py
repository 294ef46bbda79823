"""The series of a run, from samples that are made here: rates, shares, queues, and which samples are kept."""

import subprocess
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from stagepipe.engine import series as series_module
from stagepipe.engine.series import SeriesRecorder, measure_gain, merge_changes
from stagepipe.report import LiveRun, LiveStage, Series
from stagepipe.runtime import WorkerChange
from stagepipe.runtime.supervisor import ChangeCause

SECOND_NS = 1_000_000_000
ONE_STAGE: Any = SimpleNamespace(
    processes=(SimpleNamespace(name="work", workers=2, stages=(SimpleNamespace(name="work"),)),),
    hops=(SimpleNamespace(target="sink"),),
)
NOTHING = LiveStage(name="work", workers=2)


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


def test_the_rate_is_that_of_the_workers_that_there_are():
    """One worker does 10 items/s; a second one is there from 2 s on."""
    points = [(0, 1, 0, 0), (1, 1, 1, 10), (2, 2, 2, 20), (3, 2, 4, 40), (4, 2, 6, 60)]
    samples = [
        make_sample(second, replace(NOTHING, workers=workers, covered_ns=covered_s * SECOND_NS, items=items))
        for second, workers, covered_s, items in points
    ]
    (stage,) = record(samples).stages
    assert stage.items_per_s == (10.0, 15.0, 20.0, 20.0)
    assert stage.workers == (1, 2, 2, 2)
    unchanged = [replace(sample, stages=(replace(sample.stages[0], workers=2), sample.stages[1])) for sample in samples]
    assert record(unchanged).stages[0].workers == ()


def make_change(asked_s: float, *, took_s: float = 0.0, delta: int = 1, **more: Any) -> WorkerChange:
    asked_ns = int(asked_s * SECOND_NS)
    done_ns = asked_ns + int(took_s * SECOND_NS)
    fields = {"group": 0, "stage": "work", "workers": 2, "cause": ChangeCause(), **more}
    return WorkerChange(asked_ns=asked_ns, done_ns=done_ns, delta=delta, **fields)


def sample_rates(*rates: tuple[float, float]) -> list[LiveRun]:
    """Samples every quarter of a second: (until this second, so many items/s)."""
    samples, items, now_s = [], 0.0, 0.0
    for end_s, rate in rates:
        while now_s < end_s:
            samples.append(make_sample(now_s, replace(NOTHING, items=round(items))))
            now_s, items = now_s + 0.25, items + rate / 4
    return samples


@pytest.mark.parametrize(
    "changes, gain",
    [
        ([make_change(10)], 0.5),
        ([make_change(10, took_s=2)], 0.5),  # while the new worker starts, nothing is compared
        ([make_change(10), make_change(13, delta=-1)], 0.5),
        ([make_change(10), make_change(10.5)], 0.0),  # half a second between two changes says nothing
        ([make_change(10, failure="no memory")], 0.0),
        ([make_change(10, took_s=-10)], 0.0),  # it is not done
    ],
)
def test_the_gain_of_a_change_is_the_rate_after_it_against_that_before(changes: list[WorkerChange], gain: float):
    until_done_s = 12 if changes[0].done_ns > 10 * SECOND_NS else 10
    after = (20, 40) if len(changes) > 1 else (20, 60)
    samples = sample_rates((1, 0), (until_done_s, 40), (13, 60), after)
    assert measure_gain(samples, changes, 0, 5 * SECOND_NS) == pytest.approx(gain, abs=0.03)


def test_the_steps_of_one_decision_are_one_change():
    cause, other = ChangeCause("busy"), ChangeCause("busy")
    changes = [
        make_change(1, workers=2, cause=cause),
        make_change(2, took_s=1, workers=3, cause=cause),
        make_change(4, workers=4, cause=other),
        make_change(5, workers=5, cause=other, failure="no memory"),
        make_change(6, workers=3, delta=-1),
    ]
    merged = [(each.workers, each.delta, (each.done_ns - each.asked_ns) / SECOND_NS) for each in merge_changes(changes)]
    assert merged == [(3, 2, 2.0), (4, 1, 0.0), (5, 1, 0.0), (3, -1, 0.0)]


def test_a_shift_of_the_load_is_no_loss_of_the_change_that_answers_it():
    samples = sample_rates((8, 200), (10, 40), (20, 80))
    assert measure_gain(samples, [make_change(10)], 0, 5 * SECOND_NS) == pytest.approx(1.0, abs=0.1)


def test_the_wait_for_the_first_item_is_not_the_rate_before_a_change():
    samples = sample_rates((3, 0), (5, 40), (10, 80))
    assert measure_gain(samples, [make_change(5)], 0, 5 * SECOND_NS) == pytest.approx(1.0, abs=0.1)


def test_a_gain_is_measured_before_its_samples_are_thinned(monkeypatch):
    monkeypatch.setattr(series_module, "_MAX_SAMPLES", 80)
    samples = sample_rates((10, 40), (200, 60))
    recorder = SeriesRecorder(iter(samples).__next__, list, [make_change(10)])
    try:
        for _ in samples[1:]:
            recorder.add_sample()
        assert [gain for _, gain in recorder.list_changes()] == [pytest.approx(0.5, abs=0.05)]
    finally:
        recorder.stop()


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
