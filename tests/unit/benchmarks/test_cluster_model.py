"""The model of engines on a cluster: its simulation and its formula agree, and both say what a cluster costs."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, replace

import pytest

from benchmarks.cluster_model import (
    HOPS,
    ClusterSize,
    CpuPoint,
    EngineCosts,
    LocalCosts,
    ModelEngine,
    ModelJob,
    NodeLoss,
    RayCosts,
    find_least_nodes,
    find_limits,
    fit_local_costs,
    fit_ray_costs,
    get_driver_s,
    get_ray_cpu_s,
    make_measured_job,
    measure_block,
    measure_points,
    name_limit,
    predict_rate,
    simulate,
)
from benchmarks.common.turn import TreeClocks
from stagepipe.engine.ray import RayCluster

COSTS = EngineCosts(
    local=LocalCosts(hop_s=5e-5, copy_bytes_per_s=1e10),
    ray=RayCosts(
        item_s=1e-4,
        block_s=5e-3,
        bytes_per_s=2e9,
        driver_block_s=1e-3,
        caller_item_s=5e-5,
        max_block_bytes=8 << 20,
    ),
    machine={"cpus": 2},
)
EVEN = ClusterSize(nodes=4, cpus_per_node=8, node_spread=0.0)
FAST = replace(EVEN, network_bytes_per_s=1e15, storage_bytes_per_s=1e15)
CLUSTER_ENGINES = [ModelEngine.RAY, ModelEngine.ISLANDS]


def make_job(item_bytes=1_200_000.0, work_s=0.01, result_bytes=1_000.0, **fields):
    return replace(ModelJob.of_images(item_bytes, work_s, result_bytes), **{"work_spread": 0.0} | fields)


@pytest.mark.parametrize("engine", CLUSTER_ENGINES)
@pytest.mark.parametrize("item_bytes", [100_000, 1_200_000, 38_500_000])
@pytest.mark.parametrize("nodes", [1, 3, 20])
def test_simulation_equals_the_formula_where_nothing_queues(engine, item_bytes, nodes):
    job, cluster = make_job(item_bytes, work_s=1.0), replace(FAST, nodes=nodes)
    assert name_limit(engine, job, cluster, COSTS) == "CPUs"
    simulated = simulate(engine, job, cluster, COSTS, blocks_per_cpu=100).items_per_s
    assert simulated == pytest.approx(predict_rate(engine, job, cluster, COSTS), rel=0.02)


@pytest.mark.parametrize(
    "limit, engine, job, cluster",
    [
        ("driver", ModelEngine.RAY, make_job(), replace(FAST, nodes=50)),
        (
            "caller's network",
            ModelEngine.RAY,
            make_job(result_bytes=1_200_000, returns_items=True),
            replace(EVEN, network_bytes_per_s=1e8),
        ),
        ("network", ModelEngine.RAY, make_job(), replace(EVEN, network_bytes_per_s=1e8)),
        ("network", ModelEngine.ISLANDS, make_job(), replace(EVEN, network_bytes_per_s=1e7)),
        ("storage", ModelEngine.RAY, make_job(), replace(EVEN, storage_bytes_per_s=1e7)),
        ("storage", ModelEngine.ISLANDS, make_job(), replace(EVEN, storage_bytes_per_s=1e7)),
    ],
)
def test_a_full_queue_serves_at_the_rate_of_its_limit(limit, engine, job, cluster):
    assert name_limit(engine, job, cluster, COSTS) == limit
    simulated = simulate(engine, job, cluster, COSTS, blocks_per_cpu=100).items_per_s
    assert simulated == pytest.approx(predict_rate(engine, job, cluster, COSTS), rel=0.05)


@pytest.mark.parametrize("engine", CLUSTER_ENGINES)
def test_queues_and_stragglers_only_cost(engine):
    """No simulated run is faster than the formula, and uneven nodes and items make it slower."""
    job, rates = make_job(), []
    for spread in (0.0, 0.2, 0.4):
        cluster = replace(EVEN, node_spread=spread)
        rates.append(simulate(engine, replace(job, work_spread=5 * spread), cluster, COSTS).items_per_s)
        assert rates[-1] <= predict_rate(engine, job, EVEN, COSTS) * 1.001
    assert rates[0] > rates[1] > rates[2]


def test_a_slow_node_delays_islands_more_than_ray():
    uneven, job = replace(FAST, nodes=10, node_spread=0.2), make_job(work_s=0.1)
    left = {
        engine: simulate(engine, job, uneven, COSTS).items_per_s / predict_rate(engine, job, uneven, COSTS)
        for engine in CLUSTER_ENGINES
    }
    assert left[ModelEngine.ISLANDS] < 0.8 < left[ModelEngine.RAY] < 0.97


@pytest.mark.parametrize("share", [0.25, 0.75])
def test_a_lost_node_costs_what_the_page_says(share):
    job, cluster, nodes = make_job(work_s=1.0), replace(FAST, nodes=5), 5
    runs = {
        (engine, keeps): simulate(
            engine, job, cluster, COSTS, blocks_per_cpu=200, loss=NodeLoss(share=share, keeps_output=keeps)
        ).seconds
        / simulate(engine, job, cluster, COSTS, blocks_per_cpu=200).seconds
        for engine, keeps in [(ModelEngine.RAY, True), (ModelEngine.ISLANDS, True), (ModelEngine.ISLANDS, False)]
    }
    assert runs == pytest.approx(
        {
            (ModelEngine.RAY, True): 1 + (1 - share) / (nodes - 1),
            (ModelEngine.ISLANDS, True): 1 + (1 - share),
            (ModelEngine.ISLANDS, False): 2,
        },
        abs=0.06,
    )


@pytest.mark.parametrize("engine, seconds", [(ModelEngine.RAY, 30), (ModelEngine.ISLANDS, 20)])
def test_a_node_lost_at_the_end_is_noticed_and_its_work_repeated(engine, seconds):
    job = make_job(work_s=1.0)
    whole, lossy = (simulate(engine, job, FAST, COSTS, loss=loss).seconds for loss in (None, NodeLoss(share=0.99)))
    assert whole + seconds < lossy < whole + seconds + 20


def test_islands_win_wherever_the_model_has_a_cluster():
    for item_bytes in (100_000, 1_200_000, 38_500_000):
        for work_s in (0.001, 0.01):
            job = make_job(item_bytes, work_s)
            assert find_least_nodes(ModelEngine.ISLANDS, job, EVEN, COSTS) == 2
            for nodes in (2, 100):
                cluster = replace(EVEN, nodes=nodes)
                islands, ray = (
                    predict_rate(engine, job, cluster, COSTS) for engine in (ModelEngine.ISLANDS, ModelEngine.RAY)
                )
                assert islands > ray


def test_the_formula_by_hand():
    """1.2 MB, 10 ms, 4 nodes of 8 CPUs: a block of the source has 64 items, the others have 7."""
    job, blocks = make_job(), 1 / 64 + 2 / 7
    assert find_limits(ModelEngine.RAY, job, EVEN, COSTS) == pytest.approx(
        {
            "CPUs": (0.01 + 3 * 1e-4 + blocks * 5e-3 + 1_201_000 / 2e9) / 32,
            "driver": blocks * 1e-3,
            "caller's network": 0,
            "network": (120_000 + 0.75 * 1_201_000) / 4 / 3.125e9,
            "storage": 121_000 / 100e9,
        }
    )
    returned = find_limits(ModelEngine.RAY, replace(job, returns_items=True), EVEN, COSTS)
    assert (returned["driver"], returned["caller's network"], returned["network"]) == pytest.approx(
        (blocks * 1e-3 + 5e-5, 1_000 / 3.125e9, (120_000 + 0.75 * 1_200_000) / 4 / 3.125e9)
    )
    assert find_limits(ModelEngine.ISLANDS, job, EVEN, COSTS) == pytest.approx(
        {
            "CPUs": (0.01 + 3 * 5e-5 + 1_201_000 / 1e10) / 32,
            "network": 120_000 / 4 / 3.125e9,
            "storage": 121_000 / 100e9,
        }
    )
    assert find_limits(ModelEngine.PROCESS, job, EVEN, COSTS)["CPUs"] == pytest.approx(0.01)


def test_one_machine_does_not_get_faster_with_nodes():
    job = make_job()
    for engine in (ModelEngine.PROCESS, ModelEngine.LOCAL):
        assert len({predict_rate(engine, job, replace(EVEN, nodes=nodes), COSTS) for nodes in (1, 10)}) == 1
        with pytest.raises(ValueError, match="uses one machine"):
            simulate(engine, job, EVEN, COSTS)


def test_arrays_that_are_passed_on_are_copied_only_by_ray():
    new = make_job(result_bytes=1_200_000, work_s=0.0)
    passed_on = replace(new, passed_on_bytes=1_200_000)
    by_engine = {
        engine: [find_limits(engine, job, FAST, COSTS)["CPUs"] for job in (new, passed_on)]
        for engine in CLUSTER_ENGINES
    }
    assert by_engine[ModelEngine.RAY][0] == by_engine[ModelEngine.RAY][1]
    saved_s = by_engine[ModelEngine.ISLANDS][0] - by_engine[ModelEngine.ISLANDS][1]
    assert saved_s == pytest.approx(1_200_000 / COSTS.local.copy_bytes_per_s / FAST.cpus)


def test_local_costs_are_the_line_through_measured_hops():
    rows = [
        {"contestant": name, "touched": touched, "nbytes": nbytes, "cpu_us": [cpu_us] * 3}
        for name, touched, nbytes, cpu_us in [
            ("stagepipe copied", False, 1_000, 5.0),
            ("stagepipe copied", False, 100_000, 60.0),
            ("stagepipe copied", False, 1_000_000, 150.0),
            ("stagepipe copied", True, 100_000, 999.0),
            ("Pipe", False, 100_000, 999.0),
        ]
    ]
    costs = fit_local_costs(rows)
    assert (costs.hop_s, costs.copy_bytes_per_s) == pytest.approx((50e-6, 1e10))


RAY_COSTS = RayCosts(item_s=4e-5, block_s=7e-3, bytes_per_s=1e9, driver_block_s=6e-3, caller_item_s=1e-4)
BURN = "import time\nwhile time.process_time() < 0.5: pass"


def make_point(nbytes, costs):
    empty = CpuPoint(nbytes=nbytes, work_s=1e-3, items_per_s=1.0, cpu_s=0.0, caller_cpu_s=0.0)
    job = make_measured_job(empty)
    caller_s = get_driver_s(job, costs)
    return CpuPoint(**asdict(empty) | {"cpu_s": get_ray_cpu_s(job, costs) + caller_s, "caller_cpu_s": caller_s})


def test_the_fit_finds_the_costs():
    points = [make_point(nbytes, RAY_COSTS) for nbytes in (1_000, 100_000, 8_000_000, 38_500_000)]
    driver_s = HOPS * RAY_COSTS.driver_block_s
    block_s = HOPS * (RAY_COSTS.item_s + RAY_COSTS.block_s) + driver_s
    block = CpuPoint(nbytes=8, work_s=0.0, items_per_s=1.0, cpu_s=block_s, caller_cpu_s=driver_s)
    assert asdict(fit_ray_costs(points, block)) == pytest.approx(asdict(RAY_COSTS), rel=1e-6)


def test_a_process_that_ends_keeps_its_cpu_time():
    with subprocess.Popen([sys.executable, "-c", BURN + "\ninput()"], stdin=subprocess.PIPE) as old:
        clocks = TreeClocks()
        with subprocess.Popen(
            [sys.executable, "-c", BURN + "\nprint(flush=True)\ninput()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child:
            child.stdout.readline()
            clocks.sample()
            child.communicate(b"\n")
        old.communicate(b"\n")  # one that was there before, and ends without a sample, counts no less than nothing
        _, cpu_s, caller_s = clocks.measure()
    assert cpu_s - caller_s >= 0.45


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # of Ray itself
def test_ray_is_measured():
    with closing(RayCluster("local")):
        block, points = measure_block(), measure_points("ray", [1_000, 1_200_000], 1)
    for point in (block, *points):
        assert 0 < point.caller_cpu_s < point.cpu_s
        assert point.items_per_s > 0
    assert points[0].cpu_s < points[1].cpu_s
    assert fit_ray_costs(points, block).block_s > 0
