"""The planted runs record what their verdicts need, and records survive JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.common.turn import FIGURES
from benchmarks.verdicts import CASES, Case, Surroundings
from benchmarks.verdicts.__main__ import _is_disturbed, format_case, list_undisturbed, make_page
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


def make_round(*, limited_by="work", right=True, other_cpus=0.0, **more):
    verdict = {"kind": "stage", "limited_by": limited_by, "fix": "", "advice": "Do less.", "sentence": "It is slow."}
    step = {"fix": "", "rate": 10.0, "other_cpus": other_cpus, "verdict": verdict}
    return {"right": right, "disturbed": False, "gain": 2.0, "stops": True, "steps": [step, step], **more}


def test_a_round_is_disturbed_if_other_programs_used_the_cpus_and_the_verdict_says_so():
    cpus = len(os.sched_getaffinity(0))
    sleeping, busy = CASES[0], next(case for case in CASES if case.trouble == "busy")
    others = {"limited_by": "other programs", "right": False}
    assert _is_disturbed(sleeping, make_round(**others, other_cpus=0.25 * cpus))
    assert not _is_disturbed(sleeping, make_round(**others, other_cpus=0.2 * cpus))
    assert not _is_disturbed(sleeping, make_round(right=False, other_cpus=1.0 * cpus))
    assert not _is_disturbed(busy, make_round(**others, other_cpus=1.0 * cpus))


def test_disturbed_rounds_are_neither_right_nor_wrong():
    rounds = [make_round(), make_round(right=False), make_round(right=False, disturbed=True)]
    document = {"cases": {"slow sink": rounds}, "skipped": {}}
    assert len(list_undisturbed(document, "slow sink")) == 2
    text = format_case("slow sink", document)
    assert text.startswith("slow sink                1 of 2")
    assert "disturbed 1 times" in text
    assert text.count("said: ") == 1


def test_the_table_of_the_docs_is_that_of_the_results():
    page = (Path(__file__).parents[3] / "docs" / "verdicts.md").read_text()
    verdicts, plan = (json.loads((FIGURES / name).read_text()) for name in ("verdicts.json", "plan_score.json"))
    assert make_page(verdicts, plan, page) == page
