"""Ten epochs, holding the last thousand batches or none: the training process does not grow, and nothing is left."""

import gc
import os
from collections import deque
from pathlib import Path
from typing import Any

import psutil
import pytest

from stagepipe.torch import Loader
from tests.zoo.pipelines import batch, pipeline, stage

KEPT_BYTES = 3 << 20
"""What the process may gain after its warm-up: allocators and histograms settle late."""
EPOCHS, WARM = 10, 4


def used() -> tuple[int, int]:
    """Bytes of this process's own memory, and its descriptors."""
    rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    table = {row[0]: int(row[1]) * 1024 for row in rows}
    return table["Pss_Anon:"], len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a name a descriptor is all that is wanted


def live_bytes(loader: Loader) -> int:
    return loader.pipeline._run._supervisor.board.live_bytes()


def grown(config: dict[str, Any], holding: int) -> list[tuple[int, int, int]]:
    """After each epoch: own bytes, descriptors, bytes of shared memory in use."""
    held: deque[Any] = deque(maxlen=holding)
    found = []
    with Loader(config) as loader:
        for _ in range(EPOCHS):
            for item in loader:
                held.append(item)
                del item
            gc.collect()
            found.append((*used(), live_bytes(loader)))
    return found


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
    before, (_, descriptors) = set(psutil.Process().children()), used()
    found = grown(config, holding)
    gc.collect()
    own = [each[0] for each in found]
    assert max(own[-3:]) - max(own[WARM - 1 : WARM + 1]) <= KEPT_BYTES, found
    assert found[-1][1] <= found[WARM][1], "descriptors"
    assert found[-1][2] <= 2 * max(each[2] for each in found[:WARM]), "shared memory"
    assert set(psutil.Process().children()) <= before
    assert used()[1] <= descriptors
