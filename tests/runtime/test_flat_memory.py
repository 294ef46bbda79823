"""However long a run is, its processes do not grow."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagepipe import Pipeline
from tests.zoo.pipelines import pipeline, stage

KEPT = 2 << 20
"""Bytes that a process's own memory may gain after its warm-up: allocators and histograms settle late."""
WINDOW = 16
BLOCK = 1_310_720
"""The block of an item of 1.2 MB. How many are under way varies from sample to sample, by a window at most."""


def memory(pid: int | str) -> tuple[int, int]:
    """Bytes of a process: its own, and its share of shared memory."""
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    table = {row[0]: int(row[1]) * 1024 for row in rows}
    return table["Pss_Anon:"], table["Pss_Shmem:"]


def measured(config: dict[str, Any], marks: int, count: int) -> Iterator[dict[str, tuple[int, int]]]:
    """Each process's memory at so many places, evenly spread."""
    with Pipeline(config) as running:
        processes = {worker.name: worker.pid for worker in running.start()._run._supervisor.workers.values()}
        number = 0
        for number, _ in enumerate(running, 1):
            if number % (count // marks) == 0:
                gc.collect()
                found = {name: memory(pid) for name, pid in processes.items()}
                yield {**found, "caller": memory("self")}
        assert number == count


SMALL = [stage("double", name=f"s{number}") for number in range(5)]
LARGE = [stage("megabyte"), *(stage("touched", name=f"t{number}") for number in range(4))]


def check(stages: list[dict[str, Any]], count: int) -> None:
    """What the processes hold at a third and at the end: the most of three samples each."""
    samples = list(measured(pipeline(*stages, source=count), 12, count))
    grown = {}
    for name in samples[0]:
        early, late = (max(sample[name][0] for sample in part) for part in (samples[2:5], samples[-3:]))
        grown[name] = late - early
        print(f"{name:12} own memory {early / 1e6:6.1f} MB at a third, {late / 1e6:6.1f} MB at the end")  # noqa: T201
    shared = [sum(share for _, share in sample.values()) for sample in samples]
    print("shared memory of all:", *(f"{total / 1e6:.1f}" for total in shared), "MB")  # noqa: T201
    assert {name: gained for name, gained in grown.items() if gained > KEPT} == {}
    assert max(shared[-3:]) - max(shared[2:5]) <= WINDOW * BLOCK


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
