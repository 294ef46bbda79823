"""The plan of a config: processes, segments with their windows, hops with their modes and reasons.

Chunks go from a dataset to the `Batch` after it, where each item of the source is one index. `device`: the GPU that
each worker of a stage sees. Parts of sinks: what bounds them, and how many are in flight.
"""

from dataclasses import replace
from typing import Any

import pytest

from stagepipe import Pipeline
from stagepipe.config import load
from stagepipe.core import UsageError
from stagepipe.costs import CostCurves
from stagepipe.machine import Machine, SystemLimits, machine
from stagepipe.plan import SINK_NAME, Plan, ProcessRole, lower_sinks, make_plan
from stagepipe.plan.planner import assign_devices
from stagepipe.plan.system_requirements import find_shortages
from stagepipe.spec import StageSpec, Target, WorkerRange
from tests.support.pipelines import batch, outputs, pipeline, shuffle, stage

CURVES = CostCurves.from_points((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))
MACHINE = Machine(cpus=4, memory_bytes=8 << 30)


def make(*stages: dict[str, Any], **keys: Any) -> Plan:
    return make_plan(load(pipeline(*stages, **keys)), MACHINE, CURVES)


def test_each_stage_that_is_not_fused_gets_a_process():
    plan = make(stage("same", fuse=True), stage("double", workers=3), stage("plus", fuse=True), batch(4), shuffle(5))
    assert [[stage.name for stage in process.stages] for process in plan.processes] == [
        ["source", "same"],
        ["double", "plus"],
        ["batch"],
        ["shuffle"],
    ]
    assert [process.workers for process in plan.processes] == [1, 3, 1, 1]
    assert [process.role for process in plan.processes] == [
        ProcessRole.SOURCE,
        ProcessRole.STAGE,
        ProcessRole.ORDER_POINT,
        ProcessRole.ORDER_POINT,
    ]
    assert [(process.input_segment, process.output_segment) for process in plan.processes] == [
        (0, 0),
        (0, 0),
        (0, 1),
        (1, 2),
    ]
    assert [(hop.source, hop.target) for hop in plan.hops] == [
        ("source", "double"),
        ("double", "batch"),
        ("batch", "shuffle"),
        ("shuffle", SINK_NAME),
    ]
    assert len(plan.segments) == 3


@pytest.mark.parametrize(
    "mode, stage_mode, expected",
    [
        ("auto", "auto", "auto"),
        ("pipe", "auto", "pipe"),
        ("auto", "shared_memory", "shared_memory"),
        ("pipe", "shared_memory", "shared_memory"),
    ],
)
def test_the_transport_of_a_stage_overrides_that_of_the_pipeline(mode, stage_mode, expected):
    plan = make(stage("same", transport=stage_mode), transport={"mode": mode})
    assert plan.hops[0].mode == expected
    assert plan.hops[0].rule.reason


def test_a_forced_pipe_carries_any_size_only_between_single_workers():
    plan = make(stage("same"), stage("double", workers=2), stage("plus"), transport={"mode": "pipe"})
    assert [hop.rule.large_in_pipe for hop in plan.hops] == [True, False, False, True]
    assert "messages that fit a packet" in plan.hops[1].rule.reason


def test_the_threshold_of_the_config_is_used():
    plan = make(stage("same"), transport={"threshold": "3KiB"})
    assert {hop.rule.threshold_bytes for hop in plan.hops} == {3072}
    assert "from the config" in plan.hops[0].rule.reason


@pytest.mark.parametrize("window", [1, 5, 100])
def test_the_window_of_the_config_counts_source_items(window):
    plan = make(stage("same", workers=4), batch(10), stage("double"), window=window)
    assert plan.segments[0].window == plan.segments[0].small_item_window == window
    assert plan.segments[1].window == max(1, -(-window // 10))


def test_a_window_holds_at_least_one_batch_per_worker():
    plan = make(stage("size_of_call", batch={"size": 32}, workers=2), window=4)
    assert plan.segments[0].window >= 64


def test_an_automatic_window_feeds_every_worker():
    plan = make(stage("same", workers=30), stage("double", workers=10))
    assert plan.segments[0].window >= 80
    assert plan.segments[0].small_item_window >= plan.segments[0].window


def make_moving(*stages: dict[str, Any], workers: int, **keys: Any) -> Plan:
    """Plan a run in which each stage with a range has so many workers at the start."""
    spec = load(pipeline(*stages, **keys))
    started = (replace(each, workers=workers) if each.worker_bounds else each for each in spec.stages)
    return make_plan(replace(spec, stages=tuple(started)), replace(MACHINE, cuda_devices=("0", "1")), CURVES)


def test_a_range_plans_a_slot_for_each_worker_that_may_come():
    stages = stage("double", workers="2-8"), stage("same"), batch(4), stage("plus", workers=3)
    plan = make_moving(*stages, workers=2, window="auto")
    assert [process.workers for process in plan.processes] == [1, 2, 1, 1, 3]
    assert [process.slot_count for process in plan.processes] == [1, 8, 1, 1, 3]
    assert [process.worker_bounds for process in plan.processes] == [None, WorkerRange(2, 8), None, None, None]
    assert plan.segments == make(stage("double", workers=8), *stages[1:], window="auto").segments
    assert not plan.hops[1].rule.large_in_pipe


def test_a_window_holds_a_batch_of_each_worker_that_may_come():
    plan = make_moving(stage("halves_of_all", batch={"size": 8}, workers="1-4"), workers=1, window=2)
    assert plan.segments[0].window == 32


def test_a_gpu_is_assigned_to_each_slot():
    plan = make_moving(stage("same", workers="1-3", device="cuda"), workers=1)
    assert plan.processes[1].visible_devices == ("0", "1", "0")


def test_before_a_range_is_resolved_its_least_is_planned_and_nothing_moves():
    process = make(stage("double", workers="2-8")).processes[1]
    assert (process.workers, process.worker_bounds, process.slot_count) == (2, None, 2)


def test_memory_comes_from_the_config_or_is_a_share_of_the_machine():
    assert make(memory="1GiB").memory_bytes == 1 << 30
    assert make().memory_bytes == (8 << 30) // 4


def test_the_plan_copies_settings_of_the_config_and_the_machine():
    plan = make(stage("same"), seed=5, order="any")
    assert (plan.seed, plan.any_order, plan.cpu_count, plan.limit) == (5, True, 4, None)
    assert make_plan(load(pipeline()), MACHINE, CURVES, limit=7).limit == 7


def test_order_points_given_as_classes_are_recognised():
    from stagepipe.stages import Batch

    config = pipeline({"name": "group", "uses": Batch, "with": {"size": 4}}, stage("same"))
    plan = make_plan(load(config), MACHINE, CURVES)
    assert plan.processes[1].role is ProcessRole.ORDER_POINT


def test_the_plan_of_a_stage_has_every_key_of_its_spec():
    spec = load(pipeline(stage("double", timeout="3s", retries=2, stateful=True, mutable=True, cpus="0"), batch(4)))
    plan = make_plan(spec, MACHINE, CURVES)
    planned = [vars(stage) for process in plan.processes for stage in process.stages]
    expected = [{**vars(stage), "index": index, "cache_plan": None} for index, stage in enumerate(spec.stages, 1)]
    assert planned[1:] == expected
    source = {key: value for key, value in vars(spec.source).items() if key != "reading"}
    assert planned[0] == {**source, "index": 0, "cache_plan": None}


def test_a_users_order_point_ends_a_segment_and_is_found_by_an_attribute_of_its_class():
    pairs = stage("tests.support.order_points.Pairs")
    plan = make(stage("double", workers=2), pairs, stage("same"), window=12)
    assert [process.role for process in plan.processes[1:]] == [
        ProcessRole.STAGE,
        ProcessRole.ORDER_POINT,
        ProcessRole.STAGE,
    ]
    assert [segment.window for segment in plan.segments] == [12, 6], "a pair is two items of the source"
    hidden = make(stage("tests.support.order_points.HiddenPairs"))
    assert hidden.processes[1].role is ProcessRole.STAGE, "its source does not show it; the worker refuses it"


TINY = "tests.support.tiny_samples.Tiny"


def sends_chunks(*stages, **keys):
    return [process.sends_chunks for process in processes(*stages, **keys)]


def processes(*stages, arguments=None, dataset=None, **keys):
    source = {
        "uses": "stagepipe.sources.dataset",
        "with": {"dataset": TINY, "with": {"count": 9}, **(arguments or {})},
        **(dataset or {}),
    }
    config = {"name": "test", "source": source, "stages": list(stages), **keys}
    return Pipeline(config).make_plan().processes


def test_a_dataset_before_batch_sends_chunks():
    assert sends_chunks(batch(4)) == [True, True, False]
    assert sends_chunks(stage("same", fuse=True), batch(4), stage("same", name="last"), dataset={"workers": 3})[:2] == [
        True,
        True,
    ]


def test_the_source_of_chunks_knows_the_size_of_a_batch():
    assert processes(batch(4))[0].chunk_batch_size == 4


@pytest.mark.parametrize(
    "stages, keys",
    [
        ([], {}),
        ([stage("same"), batch(4)], {}),
        ([stage("stagepipe.stages.Shuffle", with_={"size": 3}), batch(4)], {}),
        ([batch(4, drop_last=True)], {"dataset": {"fuse": True}}),
        ([batch(4)], {"dataset": {"stateful": True}}),
        ([batch(4)], {"dataset": {"batch": {"size": 2}}}),
        ([batch(4)], {"arguments": {"batch_size": 2}}),
        ([batch(4)], {"transport": {"mode": "pipe"}}),
        ([{**batch(4), "transport": "pipe"}], {}),
        ([stage("tests.support.order_points.Pairs")], {}),
    ],
    ids=["no Batch", "a stage between", "Shuffle", "fused", "stateful", "lists", "batches", "pipe", "pipe to Batch",
         "another order point"],
)  # fmt: skip
def test_others_send_single_items(stages, keys):
    assert not any(sends_chunks(*stages, **keys))


def test_more_small_items_are_in_flight():
    source = {"uses": "stagepipe.sources.dataset", "with": {"dataset": TINY, "with": {"count": 9}}}
    plan = Pipeline({"source": source, "stages": [batch(4)]}).make_plan()
    assert [segment.small_item_window for segment in plan.segments] == [2048, 256]


def detect_on(device):
    return StageSpec(name="detect", target=Target("my_ops.detect"), device=device)


@pytest.mark.parametrize(
    "device,available,expected",
    [
        (None, ("0",), None),
        ("cuda", ("0", "1"), ("0", "1", "0", "1", "0")),
        ("cuda", ("GPU-a",), ("GPU-a",) * 5),
        ("cuda:1", ("3", "7"), ("7",) * 5),
        ("cpu", ("0", "1"), ("",) * 5),
        ("cpu", (), ("",) * 5),
    ],
)
def test_workers_are_spread_over_the_devices(device, available, expected):
    assert assign_devices(detect_on(device), 5, available) == expected


@pytest.mark.parametrize("device,available", [("cuda", ()), ("cuda:0", ()), ("cuda:1", ("0",)), ("cuda:2", ("0", "1"))])
def test_a_missing_device_is_named(device, available):
    with pytest.raises(UsageError, match=rf"stages.detect.device: {device}, but"):
        assign_devices(detect_on(device), 1, available)


@pytest.mark.parametrize(
    "value,expected", [("", ()), ("-1", ()), ("0", ("0",)), ("2, 3", ("2", "3")), ("GPU-8a,MIG-1", ("GPU-8a", "MIG-1"))]
)
def test_visible_devices_come_from_the_environment(monkeypatch, value, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert machine.detect_machine().cuda_devices == expected


def test_without_the_variable_they_come_from_the_driver(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "_NVIDIA_GPU_DIR", tmp_path)
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert machine.detect_machine().cuda_devices == ("0", "1")
    monkeypatch.setattr(machine, "_NVIDIA_GPU_DIR", tmp_path / "nothing")
    assert machine.detect_machine().cuda_devices == ()


def test_a_plan_assigns_devices_to_each_process():
    config = pipeline(stage("double", device="cuda", workers=2), stage("plus", device="cpu"), stage("same"))
    plan = make_plan(load(config), Machine(4, 8 << 30, ("0", "1")), CURVES)
    assert [process.visible_devices for process in plan.processes] == [None, ("0", "1"), ("",), None]
    with pytest.raises(UsageError, match=r"stages.double.device"):
        make_plan(load(config), Machine(4, 8 << 30), CURVES)


@pytest.mark.parametrize(
    "gpus, expected",
    [
        (8, ("0,1,2,3", "4,5,6,7", "0,1,2,3")),
        (6, ("0,1,2,3", "4,5,0,1", "2,3,4,5")),
        (4, ("0,1,2,3",) * 3),
        (3, ("0,1,2", "1,2,0", "2,0,1")),
    ],
)
def test_the_processes_of_a_group_see_the_devices_of_the_group(gpus, expected):
    split = StageSpec(name="llm", target=Target("a.b"), device="cuda", group=4)
    assert assign_devices(split, 3, tuple(map(str, range(gpus)))) == expected


def test_a_worker_sees_its_assigned_device(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    read = stage("os.getenv", name="read", field={"key": "name"})
    source = {"uses": [{"name": "CUDA_VISIBLE_DEVICES"}] * 40}
    seen = [item["name"] for item in outputs(pipeline({**read, "device": "cuda", "workers": 2}, source=source))]
    assert set(seen) <= {"4", "5"}
    for device, expected in (("cuda:1", "5"), ("cpu", "")):
        assert [item["name"] for item in outputs(pipeline({**read, "device": device}, source=source))] == [
            expected
        ] * 40


# ------------------------------------------------------------------ parts of sinks


def make_with_sink(*, workers: int = 1, part_bytes: str | None = None, **keys: Any) -> Plan:
    arguments = {"path": "out"} if part_bytes is None else {"path": "out", "part_bytes": part_bytes}
    sink = {"uses": "stagepipe.sinks.npz_shards", "workers": workers, "with": arguments}
    return make_plan(lower_sinks(load(pipeline(sink=sink, **keys))), Machine(4, 8 << 30), CURVES)


@pytest.mark.parametrize("part_bytes", [None, "4MB"])
def test_neither_memory_nor_workers_change_a_part(part_bytes: str | None):
    plans = [
        make_with_sink(workers=n, part_bytes=part_bytes, **keys) for n in (1, 9) for keys in ({}, {"memory": "64MiB"})
    ]
    arguments = [process.first_stage.target.arguments for plan in plans for process in plan.processes[1:2]]
    assert all(each["max_bytes"] == (16_000_000 if part_bytes is None else 4_000_000) for each in arguments)


@pytest.mark.parametrize("memory,window", [("1GiB", 11), ("64MiB", 3), ("24MB", 1)])
def test_as_many_parts_are_in_flight_as_fit_into_the_memory(memory: str, window: int):
    assert make_with_sink(workers=9, memory=memory).segments[1].window == window


def test_a_memory_without_room_for_a_part_is_refused():
    limits = SystemLimits(max_memory_bytes=1 << 40)
    assert list(find_shortages(make_with_sink(memory="20MB"), limits)) == []
    (message,) = find_shortages(make_with_sink(memory="18MB"), limits)
    assert "raise `memory` to 20MB, or set a smaller `part_bytes`" in message
