"""What is measured on Ray becomes the costs that it was made of, and no process's CPU time is lost."""

import subprocess
import sys
from contextlib import closing
from dataclasses import asdict

import pytest

from benchmarks.cluster_model.costs import HOPS, RayCosts
from benchmarks.cluster_model.formula import get_driver_s, get_ray_cpu_s
from benchmarks.cluster_model.measure import (
    CpuPoint,
    fit_ray_costs,
    make_measured_job,
    measure_block,
    measure_points,
)
from benchmarks.common.usage import TreeClocks
from stagepipe.engine import RayCluster

COSTS = RayCosts(item_s=4e-5, block_s=7e-3, bytes_per_s=1e9, driver_block_s=6e-3, caller_item_s=1e-4)
BURN = "import time\nwhile time.process_time() < 0.5: pass"


def make_point(nbytes, costs):
    empty = CpuPoint(nbytes=nbytes, work_s=1e-3, items_per_s=1.0, cpu_s=0.0, caller_cpu_s=0.0)
    job = make_measured_job(empty)
    caller_s = get_driver_s(job, costs)
    return CpuPoint(**asdict(empty) | {"cpu_s": get_ray_cpu_s(job, costs) + caller_s, "caller_cpu_s": caller_s})


def test_the_fit_finds_the_costs():
    points = [make_point(nbytes, COSTS) for nbytes in (1_000, 100_000, 8_000_000, 38_500_000)]
    driver_s = HOPS * COSTS.driver_block_s
    block_s = HOPS * (COSTS.item_s + COSTS.block_s) + driver_s
    block = CpuPoint(nbytes=8, work_s=0.0, items_per_s=1.0, cpu_s=block_s, caller_cpu_s=driver_s)
    assert asdict(fit_ray_costs(points, block)) == pytest.approx(asdict(COSTS), rel=1e-6)


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
