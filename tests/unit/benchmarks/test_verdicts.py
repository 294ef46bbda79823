"""The planted runs record what their verdicts need, and records survive JSON."""

from __future__ import annotations

import pytest

from benchmarks.verdicts.cases import CASES, Case, Surroundings
from benchmarks.verdicts.turn import decode_record, encode_record, take_turn
from stagepipe.report import RunRecord

pytestmark = pytest.mark.timeout(40)


def run(name: str, folder: str, count: int) -> RunRecord:
    case: Case = next(case for case in CASES if case.name == name)
    config = case.make_config(Surroundings(folder=folder))
    turn = take_turn(config, [f"source.with.count={count}"], consumer_ms=0, cpu_group="")
    record = decode_record(turn["record"])
    assert encode_record(record) == turn["record"]
    return record


def test_the_time_in_repeated_attempts_is_recorded(tmp_path):
    record = run("time lost to retries", str(tmp_path), 20)
    work = record.stages[1]
    assert (work.items, work.retries) == (20, 40)
    assert 0.4e9 <= work.repeated_ns <= work.wall_ns


def test_each_worker_and_its_load_are_recorded(tmp_path):
    work = run("one straggler worker", str(tmp_path), 40).stages[1]
    slowest, *others = sorted(work.worker_loads, key=lambda load: -load.busy_ns / load.items)
    assert sum(load.items for load in work.worker_loads) == 40
    assert slowest.busy_ns / slowest.items > 10 * max(load.busy_ns / load.items for load in others)


def test_a_sink_in_the_calling_process_is_recorded_as_the_consumer(tmp_path):
    consumer = run("slow sink", str(tmp_path), 20).consumer
    assert (consumer.name, consumer.is_sink) == ("SlowSink", True)


def test_a_window_that_memory_cannot_hold_is_recorded(tmp_path):
    pressure = run("window held by memory", str(tmp_path), 100).memory_pressure
    assert pressure is not None
    assert pressure.fitting_items < pressure.window_items
    assert pressure.item_bytes >= 8_000_000
    assert pressure.wanted_bytes > 1.1 * pressure.window_items * pressure.item_bytes
