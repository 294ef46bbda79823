"""Runs on a real Ray of two CPUs: deaths, errors, refusals, resumes. What an item becomes is in the engine contract."""

import gc
import io
import time
from collections import Counter

import numpy as np
import pytest
from rich.console import Console

from stagepipe import Pipeline, RunError, UsageError
from stagepipe.api import open_shards, run_to_sink
from stagepipe.engine.ray import cluster
from stagepipe.engine.ray.cluster import Reservation, divide_cpus
from stagepipe.report import from_json, render_report, to_json
from tests.support.pipelines import BAD, batch, outputs, pipeline, plain, stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _ray(local_ray):
    pass


def test_a_killed_worker_loses_nothing_and_repeats_nothing(tmp_path):
    config = pipeline(
        stage(f"{BAD}.kills_itself_once", with_={"path": str(tmp_path / "died")}), stage("draws"), source=30, seed=2
    )
    results = outputs({**config, "engine": "ray"})
    assert (tmp_path / "died").exists(), "the worker has died"
    assert results == outputs(config, inline=True)


def test_a_worker_that_dies_each_time_ends_the_run_by_name():
    config = pipeline(stage(f"{BAD}.kills_itself"), engine="ray", max_restarts=1)
    with pytest.raises(RunError, match=r"engine: ray: .*kills_itself.* died more than `max_restarts: 1` times"):
        outputs(config)


def test_the_error_of_a_stage_names_stage_and_item_and_has_its_type():
    with pytest.raises(KeyError) as caught:
        outputs(pipeline(stage(f"{BAD}.raises"), stage("same"), engine="ray"))
    assert isinstance(caught.value, RunError)
    assert (caught.value.stage, caught.value.item) == ("raises", "5")


def test_more_cpus_than_the_cluster_has_are_refused():
    config = pipeline(stage("double", workers=2, resources={"cpus": 1}), engine="ray")
    with pytest.raises(UsageError, match=r"ask for 2 CPUs .*cluster's 2 CPUs are free; set a smaller"):
        outputs(config)


def test_a_run_keeps_its_cpus_until_it_is_closed_and_another_is_refused_meanwhile():
    config = pipeline(stage("double"), engine="ray")
    with Pipeline(config) as running:
        first = iter(running)
        next(first)
        with pytest.raises(UsageError, match=r"CPUs are free; wait until other jobs have ended"):
            outputs(config)
        assert len([*first]) == 19
    assert len(outputs(config)) == 20


def test_cpus_that_another_job_takes_in_between_end_the_start_by_name_and_are_not_kept(local_ray, monkeypatch):
    processes = Pipeline(pipeline(stage("double"))).make_plan().processes
    monkeypatch.setattr(cluster, "_TIMEOUT_S", 2.0)
    monkeypatch.setattr(cluster, "_MAX_PAUSES_S", ())
    shares = divide_cpus(processes, total=2, free=2, nodes=[2])
    other = local_ray.remote(num_cpus=1)(sleep_long).remote()
    wait_for_cpus(local_ray, lambda cpus: cpus <= 1)
    with pytest.raises(RunError, match=r"there is no room for .*: 1 x 1 CPU: another job took the free resources"):
        Reservation(processes, shares)
    wait_for_cpus(local_ray, lambda cpus: cpus == 1)
    local_ray.cancel(other, force=True)
    wait_for_cpus(local_ray, lambda cpus: cpus == 2)


def sleep_long() -> None:
    time.sleep(60)


def wait_for_cpus(ray, is_enough) -> None:
    """Wait until that many CPUs are free: what was reserved is given back."""
    deadline = time.monotonic() + 60
    while not is_enough(ray.available_resources().get("CPU", 0)):
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.1)


def test_a_pipeline_that_nobody_closes_gives_its_cpus_back_when_it_is_gone(local_ray):
    running = Pipeline(pipeline(stage("double"), engine="ray"))
    assert len([*running]) == 20
    wait_for_cpus(local_ray, lambda cpus: cpus < 2)
    del running
    gc.collect()
    wait_for_cpus(local_ray, lambda cpus: cpus == 2)


def test_a_state_resumes_on_ray_and_goes_back_to_the_local_engine():
    config = pipeline(stage("draws"), batch(4), source=20)
    expected = outputs(config, inline=True)
    with Pipeline({**config, "engine": "ray"}) as running:
        items = iter(running)
        first = [plain(next(items)) for _ in range(2)]
        state = running.state_dict()
    with Pipeline(config) as resumed:
        resumed.load_state_dict(state)
        assert first + [plain(item) for item in resumed] == expected


def test_the_report_counts_each_item_once_and_omits_unknown_figures():
    with Pipeline(pipeline(stage("double"), stage("skip_thirds"), batch(5), engine="ray")) as running:
        assert len(list(running)) == 3
    report = running.report()
    assert [stage.items for stage in report.stages] == [20, 20, 20, 13]
    assert [hop.messages.object_store for hop in report.hops] == [20, 20, 13, 0]
    assert all(hop.phases.encode_ns.max > 0 and hop.phases.decode_ns.max > 0 for hop in report.hops[:3])
    assert all(hop.phases.queue_ns.max == 0 for hop in report.hops)
    assert not any(stage.is_blocked_measured for stage in report.stages)


def test_the_report_has_the_counts_of_ray_for_hops_and_nodes(local_ray):
    half_of_the_store = np.zeros(60 << 20, np.uint8)
    kept = [local_ray.put(half_of_the_store)]
    with Pipeline(pipeline(stage("double"), stage("same"), engine="ray")) as running:
        items = iter(running)
        results = [next(items)]
        kept.append(local_ray.put(half_of_the_store))  # there is no room for both: the first goes to disk
        results += items
    assert results == [2 * n for n in range(20)]
    report = running.report()
    *hops, last = [hop.store for hop in report.hops]
    assert all(hop.blocks and hop.block_bytes and hop.put_ns and hop.wait_ns for hop in hops)
    assert all((last.blocks, last.put_ns, last.get_ns))
    assert [hop.moved_bytes for hop in (*hops, last)][1:] == [0, 0], "there is one node"
    [node] = report.store_nodes
    assert (node.cpus, node.store_bytes) == (2, 100 << 20)
    assert node.spilled_bytes >= half_of_the_store.nbytes
    assert node.spill_ns > 0
    text = io.StringIO()
    Console(file=text, width=120).print(render_report(report))
    assert "Object store" in text.getvalue()
    assert node.node in text.getvalue()
    assert from_json(to_json(report)) == report
    assert len(kept) == 2


def test_any_order_yields_each_item_exactly_once():
    config = pipeline(stage("parts"), stage("two", workers=2), source=40, order="any")
    assert Counter(outputs({**config, "engine": "ray"})) == Counter(outputs({**config, "order": "source"}, inline=True))


def test_a_range_of_workers_yields_the_same_items_from_no_more_than_its_largest_number():
    config = pipeline(stage("draws", workers="1-2"), source=40, seed=4, engine="ray")
    with Pipeline(config) as running:
        items = [plain(item) for item in running]
    assert items == outputs({**config, "engine": "ray"}, inline=True)
    assert 1 <= running.report().stages[1].workers <= 2


def test_stages_with_workers_after_an_order_point_are_actors_and_yield_the_same():
    stages = [
        stage("skip_thirds"),
        stage("stagepipe.stages.Shuffle", with_={"size": 5}),
        stage("parts", workers=2),
        stage("draws", name="again", workers=2, env={"A": "1"}, on_error="skip"),
    ]
    config = pipeline(*stages, source=12, seed=8)
    with Pipeline({**config, "engine": "ray"}) as running:
        items = [plain(item) for _ in range(2) for item in running]
    assert items == outputs(config, inline=True, epochs=2)
    report = running.report()
    by_name = {each.name: each for each in report.stages}
    assert by_name["again"].workers == by_name["parts"].workers == 4, "each epoch has actors of its own"
    assert by_name["again"].items == len(items)
    assert [hop.transport.mode for hop in report.hops] == ["object_store"] * 5


def test_a_killed_worker_after_an_order_point_loses_nothing(tmp_path):
    killed = stage(f"{BAD}.kills_itself_once", with_={"path": str(tmp_path / "died")}, workers=2)
    config = pipeline(stage("stagepipe.stages.Shuffle", with_={"size": 5}), killed, source=30, seed=2)
    results = outputs({**config, "engine": "ray"})
    assert (tmp_path / "died").exists()
    assert results == outputs(config, inline=True)


def test_sinks_with_workers_write_the_shards_of_the_local_engine(tmp_path):
    for engine in ("ray", "local"):
        sink = {"uses": "stagepipe.sinks.jsonl", "workers": 2, "with": {"path": str(tmp_path / engine)}}
        config = pipeline(stage("double"), source=50, sink=sink, engine=engine)
        running = Pipeline(config)
        with open_shards(running) as shards, running:
            run_to_sink(running, lambda _: None, shards=shards)
    written = {path.name: path.read_bytes() for path in (tmp_path / "local").glob("*.jsonl*")}
    assert written
    assert {path.name: path.read_bytes() for path in (tmp_path / "ray").glob("*.jsonl*")} == written
