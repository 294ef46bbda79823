"""A worker has what it is sent once: large arrays in memory that all workers of a stage share and may write to."""

import functools

import numpy as np
import pytest
import torch

import stagepipe
from tests.support.sent_data import ITEMS, ArrayDataset, WritesToData, read_private_bytes, sum_data

pytestmark = pytest.mark.timeout(170)
SIZE = 12_000_000
ARRAY_BYTES = 8 * SIZE


def make_data(kind, size=SIZE):
    numbers = np.ones(size)
    if kind == "array":
        return numbers
    if kind == "read-only array":
        numbers.flags.writeable = False
        return numbers
    if kind == "column-major array":
        return np.asfortranarray(numbers.reshape(3, -1))
    if kind == "tensor":
        return torch.from_numpy(numbers)
    return numbers.tobytes()


@functools.cache
def measure(kind, start, size):
    """The private memory of the worker of a dataset."""
    with stagepipe.from_source(ArrayDataset(make_data(kind, size))).with_options(start=start).open() as pipeline:
        return max(item["private_bytes"] for item in pipeline)


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("kind", ["array", "read-only array", "column-major array", "tensor", "bytes"])
def test_a_dataset_is_in_its_worker_once(kind, start):
    small_kind = kind if kind == "tensor" else "array"
    own_bytes = measure(kind, start, SIZE) - measure(small_kind, start, 3)
    assert 0.9 * ARRAY_BYTES < own_bytes < 1.1 * ARRAY_BYTES  # memory that one worker maps is counted as its own


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_the_workers_of_a_stage_share_their_sent_data(kind):
    stage = stagepipe.defer(WritesToData, make_data(kind), writes=False)
    with stagepipe.from_source(range(ITEMS)).map(stage, workers=2).open() as pipeline:
        results = list(pipeline)
        pids = {result["pid"] for result in results}
        private_bytes = list(map(read_private_bytes, pids))  # both have read all of it by now
    assert {result["sum"] for result in results} == {SIZE}
    assert len(pids) == 2
    assert max(private_bytes) < 0.5 * ARRAY_BYTES


def test_a_worker_writes_to_its_own_memory():
    data = make_data("array")
    stage = stagepipe.defer(WritesToData, data, writes=True)
    with stagepipe.from_source(range(ITEMS)).map(stage, workers=2).open() as pipeline:
        results = list(pipeline)
    counts = {}
    for result in results:
        counts[result["pid"]] = counts.get(result["pid"], 0) + 1
        assert result["sum"] == SIZE + counts[result["pid"]]  # its own additions, not those of the other worker
    assert len(counts) == 2
    assert data.sum() == SIZE


def test_a_successor_has_the_data_too(tmp_path):
    with (
        stagepipe.from_source(range(4))
        .map(stagepipe.defer(WritesToData, make_data("array"), kills_at=2, marker=str(tmp_path / "killed")))
        .open() as pipeline
    ):
        assert [result["sum"] for result in pipeline] == [SIZE] * 4
        assert len(pipeline.report().restarts) == 1


def test_tensors_that_share_memory_still_do():
    base = torch.zeros(1 << 18, dtype=torch.float64)
    with stagepipe.from_source(range(1)).map(stagepipe.defer(sum_data, base, base[5:])).open() as pipeline:
        assert list(pipeline) == [7]
