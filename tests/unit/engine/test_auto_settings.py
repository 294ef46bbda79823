"""`workers: auto` and `fuse: auto` are chosen from a probe; inline and with a source read only once, nothing is.

Within what bounds the number moves while the run goes on.
"""

import os
import re
import tempfile
from typing import Any

import pytest

from stagepipe import ConfigError, Pipeline, RunError
from stagepipe.api import open_shards, run_to_sink
from stagepipe.core import KeptFiles
from stagepipe.engine import auto_settings, probe
from stagepipe.engine.probe import ProbeLength, run_probe
from stagepipe.machine import Machine, SystemLimits
from stagepipe.plan import system_requirements
from stagepipe.spec import WorkerRange
from tests.support.pipelines import BAD, batch, pipeline, plain, stage

pytestmark = [pytest.mark.timeout(60), pytest.mark.flaky(reruns=1)]  # measured costs decide
CPUS = len(os.sched_getaffinity(0))
WAITS = stage("nap", workers="auto", with_={"seconds": 0.02})


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch, tmp_path):
    """Of earlier tests; the machine's cost curves are not measured again."""
    monkeypatch.setattr("stagepipe.engine.cost_cache._KEPT", KeptFiles(str(tmp_path / "cache" / "costs")))


def run(config: dict[str, Any], **keys: Any) -> tuple[list[Any], Pipeline]:
    with Pipeline(config, **keys) as running:
        return [plain(item) for item in running], running


def test_a_stage_that_waits_gets_workers_and_the_output_is_the_same():
    config = pipeline(WAITS, stage("double"), batch(4), source=40)
    items, running = run(config)
    assert items == run(config, inline=True)[0]
    [line] = running.explain_auto_workers()
    process = running.make_plan().processes[1]
    workers, bounds = process.workers, process.worker_bounds
    assert line.startswith(f"nap: {workers} workers (auto, {bounds}): ")
    assert 2 <= workers <= 4 * CPUS < bounds.maximum <= 16 * CPUS
    assert bounds.minimum == 1
    assert running.report().stages[1].workers == workers


@pytest.mark.parametrize(
    "name, little",
    [("detect_machine", lambda: Machine(8, 1 << 20)), ("read_free_memory_bytes", lambda: 1 << 20)],
    ids=["little memory", "little free memory"],
)
def test_a_machine_without_memory_for_two_workers_gets_one(monkeypatch, name, little):
    monkeypatch.setattr(auto_settings, name, little)
    [line] = Pipeline(pipeline({**WAITS, "fuse": False}, source=24)).explain_auto_workers()
    assert line.startswith("nap: 1 worker (auto, 1-")


def list_processes(running: Pipeline) -> list[list[str]]:
    return [[stage.name for stage in process.stages] for process in running.make_plan().processes]


def test_cheap_stages_share_a_process_and_the_output_is_the_same():
    config = pipeline(stage("double", fuse="auto"), stage("same", fuse="auto"), batch(4), source=64)
    items, running = run(config)
    assert items == run(config, inline=True)[0]
    assert list_processes(running) == [["source", "double", "same"], ["batch"]]
    double, same = running.explain_auto_workers()
    assert double.startswith("double: fused into source (auto): it takes ")
    assert "a hop would cost" in same


@pytest.mark.parametrize(
    "keys, processes",
    [
        ({"fuse": "auto"}, [["source", "double"]]),
        ({"fuse": "auto", "workers": 3}, [["source", "double"]]),
        ({"fuse": "auto", "env": {"FLAG": "1"}}, [["source"], ["double"]]),
        ({"fuse": "auto", "stateful": True}, [["source"], ["double"]]),
        ({"workers": "auto"}, [["source"], ["double"]]),
    ],
)
def test_only_stages_with_auto_that_may_share_a_process_are_fused(keys, processes):
    assert list_processes(Pipeline(pipeline(stage("double", **keys), source=64))) == processes


def test_fuse_auto_chooses_workers_too_and_workers_auto_never_fuses():
    stages = stage("double", workers="auto"), stage("same", fuse="auto"), stage("plus", fuse="auto", workers=2)
    spec = Pipeline(pipeline(*stages)).spec
    assert [(each.workers, each.fuse) for each in spec.stages] == [("auto", False), ("auto", "auto"), (2, "auto")]


@pytest.mark.parametrize("keys", [{"env": {"FLAG": "1"}}, {"cpus": "0"}, {"device": "cpu"}])
def test_nothing_is_fused_into_a_stage_with_its_own_kind_of_process(keys):
    running = Pipeline(pipeline(stage("double", **keys), stage("same", fuse="auto"), source=64))
    assert list_processes(running) == [["source"], ["double"], ["same"]]


def test_an_order_point_is_never_fused_by_auto():
    with pytest.raises(ConfigError, match="cannot be fused"):
        Pipeline(pipeline({**batch(4), "fuse": "auto"}))


def test_the_next_run_takes_the_costs_of_this_one_and_says_when_they_were_measured(monkeypatch):
    config = pipeline(WAITS, stage("double", fuse="auto"), source=40)
    first_items, first = run(config)
    monkeypatch.setattr(probe, "run_probe", None)
    items, second = run(config)
    assert items == first_items
    assert list_processes(second) == list_processes(first)
    *lines, note = second.explain_auto_workers()
    assert tuple(lines) == first.explain_auto_workers()
    assert re.fullmatch(r"auto: from the costs measured at \d\d:\d\d; `stagepipe plan` measures .*", note)


def test_kept_costs_fit_the_machine_as_it_is_now(monkeypatch):
    config = pipeline({**WAITS, "fuse": False}, source=24)
    [line] = Pipeline(config).explain_auto_workers()
    assert not line.startswith("nap: 1 worker")
    monkeypatch.setattr(auto_settings, "read_free_memory_bytes", lambda: 1 << 20)
    [line, _] = Pipeline(config).explain_auto_workers()
    assert line.startswith("nap: 1 worker (auto, 1-")


def test_a_forecast_measures_again_and_the_next_run_takes_its_costs():
    config = pipeline(stage("double", workers="auto"), source=64)
    _ = Pipeline(config).explain_auto_workers()
    running = Pipeline(config)
    assert running.explain_auto_workers()[-1].startswith("auto: from the costs")
    assert not any(line.startswith("auto: from the costs") for line in running.forecast().auto_workers)
    assert Pipeline(config).explain_auto_workers()[-1].startswith("auto: from the costs")


def test_a_probe_without_a_result_is_not_kept():
    config = pipeline(stage("double", workers="auto"), source=3)
    for _ in range(2):
        [line] = Pipeline(config).explain_auto_workers()
        assert line.endswith("too few items for a forecast")


@pytest.mark.parametrize(
    "value, least, most", [("1-3", 1, 3), ({"min": 2, "max": 40}, 2, 40), ({"min": 30, "max": 40}, 30, 40)], ids=str
)
def test_a_range_starts_with_the_best_number_and_keeps_its_bounds(value, least, most):
    running = Pipeline(pipeline({**WAITS, "workers": value}, source=40))
    [line] = running.explain_auto_workers()
    process = running.make_plan().processes[1]
    assert least <= process.workers <= most
    assert line.startswith(f"nap: {process.workers} worker")
    assert f"(auto, {least}-{most})" in line
    assert process.worker_bounds == WorkerRange(least, most)


def test_without_a_probe_a_range_starts_with_its_least():
    source = {"uses": "itertools.repeat", "with": {"object": 1, "times": 4}}
    items, running = run(pipeline(stage("double", workers="3-5"), source=source))
    assert items == [2, 2, 2, 2]
    assert running.explain_auto_workers()[0].startswith("double: 3 workers (auto, 3-5): the source can be read only")
    assert running.make_plan().processes[1].worker_bounds == WorkerRange(3, 5)


@pytest.mark.parametrize("keys", [{"stateful": True}, {"cpus": "0"}, {"fuse": "auto"}], ids=str)
def test_one_worker_that_cannot_have_others_has_no_bounds(keys):
    source = {"uses": "itertools.repeat", "with": {"object": 1, "times": 4}}
    spec = Pipeline(pipeline(stage("double", workers="auto", **keys), source=source)).resolve_auto()
    has_bounds = spec.stages[0].worker_bounds is not None
    assert has_bounds == ("fuse" in keys), "`fuse: auto` is a process of its own here"
    assert spec.stages[0].workers == 1


def test_fuse_auto_is_decided_at_the_start_and_fused_stages_have_no_bounds():
    running = Pipeline(pipeline(stage("double", fuse="auto", workers="1-4"), source=64))
    [line] = running.explain_auto_workers()
    assert line.startswith("double: fused into source (auto): ")
    assert [(each.fuse, each.worker_bounds) for each in running.resolve_auto().stages] == [(True, None)]


def test_slots_are_fewer_where_descriptors_are_scarce(monkeypatch):
    limits = SystemLimits(max_memory_bytes=1 << 30, max_fds=1024, free_fds=300)
    monkeypatch.setattr(system_requirements, "read_system_limits", lambda _: limits)
    running = Pipeline(pipeline(stage("double", workers="1-4000"), stage("same", workers="1-4"), source=64))
    double, same = running.resolve_auto().stages
    assert 10 < double.worker_bounds.maximum < 26
    assert same.worker_bounds == WorkerRange(1, 4)
    assert f"(auto, 1-{double.worker_bounds.maximum})" in running.explain_auto_workers()[0]


def test_on_ray_a_range_is_left_to_ray_and_auto_is_a_number(monkeypatch):
    ranged = {**pipeline(stage("double", workers="2-3"), source=64), "engine": "ray"}
    auto = {**ranged, "stages": [stage("double", workers="auto")]}
    assert Pipeline(auto).resolve_auto().stages[0].worker_bounds is None
    monkeypatch.setattr(probe, "run_probe", None)
    [started] = Pipeline({**ranged, "name": "unmeasured"}).resolve_auto().stages
    assert (started.workers, started.worker_bounds) == (2, WorkerRange(2, 3))
    assert Pipeline(ranged).explain_auto_workers() == ()


def test_a_sink_has_bounds_as_well(tmp_path):
    sink = {"uses": "stagepipe.sinks.jsonl", "with": {"path": str(tmp_path / "out")}, "workers": "1-3"}
    running = Pipeline(pipeline(stage("double"), sink=sink, source=64))
    running.feed_sinks()
    assert running.resolve_auto().sinks[0].worker_bounds == WorkerRange(1, 3)
    assert running.make_plan().processes[-1].slot_count == 3


def test_explicit_numbers_are_kept():
    running = Pipeline(pipeline(WAITS, stage("double", workers=3), source=24))
    assert running.make_plan().processes[2].workers == 3
    assert len(running.explain_auto_workers()) == 1


def test_without_auto_nothing_is_probed(monkeypatch):
    monkeypatch.setattr(probe, "run_probe", None)
    running = Pipeline(pipeline(stage("double", workers=2)))
    assert running.explain_auto_workers() == ()
    assert running.make_plan().processes[1].workers == 2


@pytest.mark.parametrize("workers", ["auto", "2-4", {"min": 2, "max": 4}])
def test_inline_uses_one_worker(monkeypatch, workers):
    monkeypatch.setattr(probe, "run_probe", None)
    running = Pipeline(pipeline({**WAITS, "workers": workers}, source=3), inline=True)
    assert running.make_plan().processes[1].slot_count == 1
    assert running.explain_auto_workers() == ()


def test_a_source_that_can_be_read_only_once_is_not_probed_and_keeps_its_items():
    source = {"uses": "itertools.repeat", "with": {"object": 1, "times": 4}}
    items, running = run(pipeline(stage("double", workers="auto"), source=source))
    assert items == [2, 2, 2, 2]
    [line] = running.explain_auto_workers()
    assert line.startswith(f"double: 1 worker (auto, 1-{4 * CPUS}): the source can be read only once")
    assert running.make_plan().processes[1].worker_bounds == WorkerRange(1, 4 * CPUS)


def test_a_source_of_very_few_items_gives_no_forecast():
    config = pipeline(stage("double", workers="auto"), source=3)
    items, running = run(config)
    assert items == [0, 2, 4]
    assert running.explain_auto_workers() == (
        f"double: 1 worker (auto, 1-{4 * CPUS}): the source yields too few items for a forecast",
    )
    for count in (0, 3):
        forecast = Pipeline(pipeline(stage("double"), source=count)).forecast()
        assert (forecast.items_probed, forecast.items_per_s, forecast.advice) == (count, 0.0, ())


def test_a_stage_that_fails_in_the_probe_fails_as_in_the_run():
    config = pipeline(stage(f"{BAD}.raises", name="decode", workers="auto"))
    with pytest.raises(RunError, match="stage decode, worker 0, item 5: KeyError: 'wanted'"):
        _ = Pipeline(config).explain_auto_workers()


def test_the_forecast_covers_every_stage_and_hop():
    config = pipeline(stage("megabyte"), stage("touched", fuse=True), batch(4), source=40)
    forecast = Pipeline(config).forecast()
    assert [stage.name for stage in forecast.stages] == ["source", "megabyte", "touched", "batch"]
    assert [(hop.source, hop.target) for hop in forecast.hops] == [
        ("source", "megabyte"),
        ("megabyte", "touched"),
        ("touched", "batch"),
        ("batch", "sink"),
    ]
    assert all(hop.reason for hop in forecast.hops)
    assert all(stage.memory_bytes > 0 for stage in forecast.stages if stage.process == stage.name)
    large = max(forecast.hops[2].pieces, key=lambda piece: piece.mean_bytes)
    assert large.mode == "shared_memory"
    assert large.pipe_ns > large.shared_memory_ns > 0


def test_a_forced_mode_is_reported_with_its_reason():
    for _ in range(3):  # on a busy machine the probe may end before it has seen a message
        hop = Pipeline(pipeline(stage("same", transport="shared_memory"))).forecast().hops[0]
        if hop.pickle_mode:
            break
    assert hop.mode == "shared_memory"
    assert hop.pickle_mode == "shared_memory"
    assert "forced by the config" in hop.reason


def test_a_probe_takes_few_items_and_leaves_the_pipeline_as_it_was():
    running = Pipeline(pipeline(stage("double"), batch(2), source=5000))
    forecast = running.forecast()
    assert 0 < forecast.items_probed < 5000
    assert not running.started


def test_the_probe_goes_on_until_items_have_reached_every_stage():
    embed = stage("halves_of_all", name="embed", batch={"size": 4, "max_wait": "5s"})
    stages = (stage("nap", with_={"seconds": 0.2}), embed, stage("same", name="rank"))
    figures = run_probe(Pipeline(pipeline(*stages, source=400)).make_plan(), ProbeLength.BRIEF)
    assert all(each.items >= 2 for each in figures.record.stages)
    assert figures.record.items_in < 48


def test_a_stage_that_gets_no_item_is_named_and_there_is_no_rate(monkeypatch):
    monkeypatch.setattr(probe, "_MAX_PROBE_S", 0.2)
    config = pipeline(stage("drops_first", with_={"count": 10**9}), stage("same", name="model"), source=10**6)
    forecast = Pipeline(config).forecast()
    assert (forecast.items_per_s, forecast.limited_by, forecast.advice, forecast.fusions) == (0.0, "", (), ())
    assert forecast.unseen == ("model", "sink")
    assert forecast.bottleneck.startswith("model saw no item in ")
    assert forecast.max_items_per_s > 0


def test_a_model_that_loads_with_its_first_item_has_its_own_time(monkeypatch):
    monkeypatch.setattr(probe, "_MAX_PROBE_S", 0.5)
    stages = [stage("LoadsAtItsFirstItem", name=name, with_={"seconds": 0.7}) for name in ("first", "second")]
    forecast = Pipeline(pipeline(*stages, source=10**6)).forecast()
    assert forecast.unseen == ()
    assert forecast.items_per_s > 10, "loading is no part of the cost"


def test_a_built_in_sink_is_measured_in_a_temporary_folder(tmp_path):
    sink = {"uses": "stagepipe.sinks.npz", "with": {"path": str(tmp_path / "out")}}
    config = pipeline(stage("megabyte", workers="auto"), sink=sink, source=40)
    forecast = Pipeline(config).forecast()
    assert forecast.limited_by in {"npz", "machine"}, "writing a megabyte takes longer than making it"
    assert not (tmp_path / "out").exists()
    assert forecast.notes == ()


def make_slow_sink(folder, **keys):
    arguments = {"path": str(folder), "shard_items": 64}
    return {"uses": "tests.support.sink_stages.SlowJsonlSink", "with": arguments, **keys}


def test_a_sink_with_workers_is_measured_per_row_and_its_own_folder_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    forecast = Pipeline(pipeline(stage("double"), sink=make_slow_sink(folder), source=400)).forecast()
    assert [each.name for each in forecast.stages] == ["source", "double", "SlowJsonlSink"]
    sink = forecast.stages[-1]
    assert 3_000_000 <= sink.run_ns <= 12_000_000, "a row takes 4 ms"
    assert sink.items_per_source_item == 1
    assert forecast.limited_by == "SlowJsonlSink"
    assert forecast.advice[0].overrides[-1].startswith("sink.workers=")
    assert [fusion.stage for fusion in forecast.fusions] == ["double"]
    assert forecast.notes == ()
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    assert not list(tmp_path.glob("stagepipe-probe-*"))


def test_a_slow_sink_gets_workers_only_where_it_runs(tmp_path):
    config = pipeline(stage("double", workers="auto"), sink=make_slow_sink(tmp_path / "out", workers="auto"), source=64)
    items, running = run(config)
    assert len(items) == 64, "without `run`, no sink gets them"
    assert [line.partition(":")[0] for line in running.explain_auto_workers()] == ["double"]
    pipeline_into_sink = Pipeline(config)
    with open_shards(pipeline_into_sink) as shards, pipeline_into_sink as running:
        lines = running.explain_auto_workers()
        run_to_sink(running, lambda progress: None, shards=shards)
    assert [line.partition(":")[0] for line in lines] == ["double", "SlowJsonlSink"]
    assert running.report().stages[-1].workers >= 2
    assert (tmp_path / "out" / "000000.jsonl").read_text().splitlines() == [str(2 * number) for number in range(64)]


def test_another_sink_does_not_run_and_the_forecast_says_so():
    forecast = Pipeline(pipeline(stage("same"), sink={"uses": f"{BAD}.raises"})).forecast()
    assert (forecast.items_per_s, forecast.unseen) == (0.0, ("sink",))
    assert forecast.max_items_per_s > 0
    assert forecast.bottleneck.startswith("the sink did not run, because its output would remain")


def test_another_sink_runs_if_it_may_and_is_named():
    sink = {"uses": "tests.support.stages.nap", "with": {"seconds": 0.01}}
    forecast = Pipeline(pipeline(stage("same"), sink=sink, source=400)).forecast(run_sink=True)
    assert forecast.limited_by == "nap"
    assert 0 < forecast.items_per_s <= 100
    assert "the sink is the bottleneck" in forecast.bottleneck
