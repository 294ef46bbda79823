"""`workers: auto` is settled from a probe, inline and for what can be read only once it is 1; and it is said."""

import os
from typing import Any

import pytest

from stagepipe import Pipeline, RunError
from stagepipe.engine import settling
from stagepipe.plan import Machine
from tests.zoo.pipelines import BAD, batch, pipeline, plain, stage

pytestmark = pytest.mark.timeout(60)
WAITS = stage("nap", workers="auto", with_={"seconds": 0.02})


def run(config: dict[str, Any], **keys: Any) -> tuple[list[Any], Pipeline]:
    with Pipeline(config, **keys) as running:
        return [plain(item) for item in running], running


def test_a_stage_that_waits_gets_workers_and_the_output_is_the_same():
    config = pipeline(WAITS, stage("double"), batch(4), source=24)
    items, running = run(config)
    assert items == run(config, inline=True)[0]
    [line] = running.chosen
    assert line.startswith("nap: ")
    assert "(auto)" in line
    workers = running.plan.processes[1].workers
    assert 2 <= workers <= 4 * len(os.sched_getaffinity(0))
    assert running.report().stages[1].workers == workers


def test_a_machine_without_memory_for_two_gives_one(monkeypatch):
    monkeypatch.setattr(settling, "this_machine", lambda: Machine(8, 1 << 20))
    [line] = Pipeline(pipeline(WAITS, source=24)).chosen
    assert line.startswith("nap: 1 worker (auto)")


def test_numbers_are_left_as_they_are():
    running = Pipeline(pipeline(WAITS, stage("double", workers=3), source=24))
    assert running.plan.processes[2].workers == 3
    assert len(running.chosen) == 1


def test_without_auto_nothing_is_probed(monkeypatch):
    monkeypatch.setattr(settling, "probe", None)
    running = Pipeline(pipeline(stage("double", workers=2)))
    assert running.chosen == ()
    assert running.plan.processes[1].workers == 2


def test_inline_means_one(monkeypatch):
    monkeypatch.setattr(settling, "probe", None)
    running = Pipeline(pipeline(WAITS, source=3), inline=True)
    assert running.plan.processes[1].workers == 1
    assert running.chosen == ()


def test_a_source_that_can_be_read_only_once_is_not_probed_and_keeps_its_items():
    source = {"uses": "itertools.repeat", "with": {"object": 1, "times": 4}}
    items, running = run(pipeline(stage("double", workers="auto"), source=source))
    assert items == [2, 2, 2, 2]
    [line] = running.chosen
    assert line.startswith("double: 1 worker (auto): the source can be read only once")


def test_a_source_of_very_few_items_foretells_nothing():
    config = pipeline(stage("double", workers="auto"), source=3)
    items, running = run(config)
    assert items == [0, 2, 4]
    assert running.chosen == ("double: 1 worker (auto): the source gives too few items to foretell a pace",)
    for count in (0, 3):
        outlook = Pipeline(pipeline(stage("double"), source=count)).outlook()
        assert (outlook.items, outlook.items_per_s, outlook.advice) == (count, 0.0, ())


def test_a_stage_that_fails_in_the_probe_fails_as_in_the_run():
    config = pipeline(stage(f"{BAD}.raises", name="decode", workers="auto"))
    with pytest.raises(RunError, match="stage decode, worker 0, item 5: KeyError: 'wanted'"):
        _ = Pipeline(config).chosen


def test_the_outlook_tells_of_every_stage_and_hop():
    config = pipeline(stage("megabyte"), stage("touched", fuse=True), batch(4), source=40)
    outlook = Pipeline(config).outlook()
    assert [each.name for each in outlook.stages] == ["source", "megabyte", "touched", "batch"]
    assert [(hop.source, hop.target) for hop in outlook.hops] == [
        ("source", "megabyte"),
        ("megabyte", "touched"),
        ("touched", "batch"),
        ("batch", "sink"),
    ]
    assert all(hop.reason for hop in outlook.hops)
    assert all(stage.memory_bytes > 0 for stage in outlook.stages if stage.process == stage.name)
    large = max(outlook.hops[2].pieces, key=lambda piece: piece.nbytes)
    assert large.mode == "shared_memory"
    assert large.pipe_ns > large.shared_memory_ns > 0


def test_a_forced_mode_is_told_with_what_it_costs():
    hop = Pipeline(pipeline(stage("same", transport="shared_memory"))).outlook().hops[0]
    assert hop.mode == "shared_memory"
    assert hop.pickle_mode == "shared_memory"
    assert "forced by the config" in hop.reason


def test_a_probe_takes_few_items_and_leaves_the_pipeline_as_it_was():
    running = Pipeline(pipeline(stage("double"), batch(2), source=5000))
    outlook = running.outlook()
    assert 0 < outlook.items < 100
    assert not running.started
