"""The memory of a run's processes does not grow with the length of the run."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagepipe import Pipeline
from tests.support.pipelines import pipeline, stage

MAX_GROWTH_BYTES = 2 << 20
"""What a process's private memory may gain after the warm-up: allocators and histograms settle late."""
WINDOW = 16
BLOCK_BYTES = 1_310_720
"""The block of an item of 1.2 MB. The number in flight varies between samples, by at most a window."""


def read_memory(pid: int | str) -> tuple[int, int]:
    """The bytes of a process: private memory, and its share of shared memory."""
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    table = {row[0]: int(row[1]) * 1024 for row in rows}
    return table["Pss_Anon:"], table["Pss_Shmem:"]


def sample_memory(config: dict[str, Any], sample_count: int, item_count: int) -> Iterator[dict[str, tuple[int, int]]]:
    """The memory of each process at evenly spaced points of a run."""
    with Pipeline(config) as running:
        processes = {worker.name: worker.pid for worker in running.start()._run._supervisor.workers.values()}
        number = 0
        for number, _ in enumerate(running, 1):
            if number % (item_count // sample_count) == 0:
                gc.collect()
                sample = {name: read_memory(pid) for name, pid in processes.items()}
                yield {**sample, "caller": read_memory("self")}
        assert number == item_count


SMALL = [stage("double", name=f"s{number}") for number in range(5)]
LARGE = [stage("megabyte"), *(stage("touched", name=f"t{number}") for number in range(4))]


def check(stages: list[dict[str, Any]], count: int) -> None:
    """Compare the memory at a third of the run with that at the end, each the maximum of three samples."""
    samples = list(sample_memory(pipeline(*stages, source=count), 12, count))
    growth = {}
    for name in samples[0]:
        early, late = (max(sample[name][0] for sample in part) for part in (samples[2:5], samples[-3:]))
        growth[name] = late - early
        print(f"{name:12} private memory {early / 1e6:6.1f} MB at a third, {late / 1e6:6.1f} MB at the end")  # noqa: T201
    shared = [sum(share for _, share in sample.values()) for sample in samples]
    print("shared memory of all processes:", *(f"{total / 1e6:.1f}" for total in shared), "MB")  # noqa: T201
    assert {name: nbytes for name, nbytes in growth.items() if nbytes > MAX_GROWTH_BYTES} == {}
    in_middle = max(shared[4:8])  # the arenas have touched each of their blocks by then
    assert max(shared[-3:]) - in_middle <= WINDOW * BLOCK_BYTES


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    "stages, count",
    [pytest.param(SMALL, 3996, id="small", marks=pytest.mark.slow), pytest.param(LARGE, 396, id="large")],
)
def test_memory_is_flat(stages, count):
    check(stages, count)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stages, count", [(SMALL, 20_004), (LARGE, 2004)], ids=["20,000 small", "2,000 of 1.2 MB"])
def test_memory_is_flat_in_a_long_run(stages, count):
    check(stages, count)
