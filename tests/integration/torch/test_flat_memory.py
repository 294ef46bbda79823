"""Ten epochs, holding the last thousand batches or none: the training process does not grow, and nothing is left."""

import gc
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from stagepipe.torch import Loader
from tests.support.pipelines import batch, pipeline, stage
from tests.support.processes import list_run_processes

MAX_GROWTH_BYTES = 3 << 20
"""Allowed growth after the warm-up: allocators and histograms settle late."""
EPOCHS = 10
WARM_UP_EPOCHS = 4
RELEASE_TIMEOUT_S = 20.0
"""A worker without work notes which of its blocks came back when it looks around; on a busy machine, that is late."""


def measure_process() -> tuple[int, int]:
    """Return the bytes of this process's private memory, and the number of its descriptors."""
    rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    table = {row[0]: int(row[1]) * 1024 for row in rows}
    return table["Pss_Anon:"], len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only the names are needed


def live_bytes(loader: Loader) -> int:
    return loader.pipeline._run._supervisor.board.live_bytes()


def measure_epochs(config: dict[str, Any], holding: int) -> list[tuple[int, int, int]]:
    """Return after each epoch: private bytes, descriptors, bytes of shared memory in use."""
    held: deque[Any] = deque(maxlen=holding)
    found = []
    with Loader(config) as loader:
        for _ in range(EPOCHS):
            for item in loader:
                held.append(item)
                del item
            gc.collect()
            found.append((*measure_process(), live_bytes(loader)))
        deadline = time.monotonic() + RELEASE_TIMEOUT_S
        while live_bytes(loader) > allowed_bytes(found) and time.monotonic() < deadline:
            time.sleep(0.05)
        found[-1] = (*found[-1][:2], live_bytes(loader))
    return found


def allowed_bytes(found: list[tuple[int, int, int]]) -> int:
    """The bytes of shared memory that may be in use after the last epoch: twice the most of the warm-up."""
    return 2 * max(epoch[2] for epoch in found[:WARM_UP_EPOCHS])


@pytest.mark.timeout(110)
@pytest.mark.parametrize(
    "config, holding",
    [
        (pipeline(stage("image", with_={"size": 40}), batch(2), source=2400), 1000),
        (pipeline(stage("megabyte"), batch(2), source=30), 0),
    ],
    ids=["the last 1,000 small batches", "no large one"],
)
def test_ten_epochs(config, holding):
    before, (_, descriptors) = list_run_processes(), measure_process()
    found = measure_epochs(config, holding)
    gc.collect()
    private_bytes = [epoch[0] for epoch in found]
    assert max(private_bytes[-3:]) - max(private_bytes[WARM_UP_EPOCHS - 1 : WARM_UP_EPOCHS + 1]) <= MAX_GROWTH_BYTES, (
        found
    )
    assert found[-1][1] <= found[WARM_UP_EPOCHS][1], "descriptors"
    assert found[-1][2] <= allowed_bytes(found), "shared memory"
    assert list_run_processes() <= before
    assert measure_process()[1] <= descriptors
