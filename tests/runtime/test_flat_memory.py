"""However long a run is, its processes do not grow."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagepipe import Pipeline
from tests.zoo.pipelines import pipeline, stage

KEPT = 4 << 20
"""Bytes that a process may gain after its warm-up: allocators and histograms settle late."""


def pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def measured(config: dict[str, Any], marks: int, count: int) -> Iterator[dict[str, int]]:
    """Each process's memory at so many places, evenly spread."""
    with Pipeline(config) as running:
        processes = {worker.name: worker.pid for worker in running.start()._run._supervisor.workers.values()}
        processes["caller"] = 0
        number = 0
        for number, _ in enumerate(running, 1):
            if number % (count // marks) == 0:
                gc.collect()
                yield {name: pss_bytes(pid or Path("/proc/self").resolve().name) for name, pid in processes.items()}
        assert number == count


SMALL = [stage("double", name=f"s{number}") for number in range(5)]
LARGE = [stage("megabyte"), *(stage("touched", name=f"t{number}") for number in range(4))]


def grown(stages: list[dict[str, Any]], count: int) -> dict[str, tuple[int, int]]:
    """What each process held at a third and at the end: the most of the samples around."""
    samples = list(measured(pipeline(*stages, source=count), 12, count))
    early, late = samples[2:5], samples[-3:]
    return {name: (max(s[name] for s in early), max(s[name] for s in late)) for name in samples[0]}


def check(found: dict[str, tuple[int, int]]) -> None:
    for name, (early, late) in found.items():
        print(f"{name:12} {early / 1e6:8.1f} MB at a third, {late / 1e6:8.1f} MB at the end")
    assert {name: late - early for name, (early, late) in found.items() if late - early > KEPT} == {}


@pytest.mark.timeout(100)
@pytest.mark.parametrize("stages, count", [(SMALL, 3996), (LARGE, 396)], ids=["small", "large"])
def test_memory_is_flat(stages, count):
    check(grown(stages, count))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stages, count", [(SMALL, 20_004), (LARGE, 2004)], ids=["20,000 small", "2,000 of 1.2 MB"])
def test_memory_is_flat_in_a_long_run(stages, count):
    check(grown(stages, count))
