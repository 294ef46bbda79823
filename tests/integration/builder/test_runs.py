"""Pipelines of the builder run in processes: functions of any kind, epochs, a sink, a loader, and errors."""

import functools
import os

import numpy as np
import pytest

from stagepipe import SKIP, RunError, defer, from_dataset, from_source
from tests.support.stages import plus

pytestmark = pytest.mark.timeout(120)


class Scale:
    """Says which process built it."""

    def __init__(self, by):
        self.by = by
        self.pid = os.getpid()

    def __call__(self, item):
        return {"value": item * self.by, "pid": self.pid}


def test_functions_of_every_kind_run_in_workers():
    offset = 100
    builder = (
        from_source(range(40))
        .map(lambda item: item + offset, workers=2)
        .map(functools.partial(plus, amount=1), fuse=True)
        .map(defer(Scale, 2), workers=2)
        .filter(lambda item: item["value"] % 4 == 0)
        .flat_map(lambda item: [item["value"], item["pid"]], fuse=True)
        .batch(2)
    )
    with builder.open() as pipeline:
        epochs = [[batch.tolist() for batch in pipeline] for _ in range(2)]
    expected = [2 * (item + offset + 1) for item in range(40) if (item + offset + 1) % 2 == 0]
    for batches in epochs:
        assert [value for value, _ in batches] == expected
        assert os.getpid() not in {pid for _, pid in batches}


def test_a_first_stage_is_fused_into_the_source():
    with from_source(range(3)).map(lambda item: os.getpid(), fuse=True).open() as pipeline:
        pids = set(pipeline)
        assert [process.name for process in pipeline.make_plan().processes] == ["source"]
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_run_fills_the_sink_and_returns_the_report():
    found = []
    report = from_source(range(10)).map(lambda item: item if item % 2 else SKIP).sink(found.append).run(limit=6)
    assert found == [1, 3, 5]
    assert (report.run.status, report.run.items_in, report.run.items_out) == ("finished", 6, 3)


def test_a_dataset_is_read_by_workers():
    builder = from_dataset([10, 20, 30, 40], shuffle=True, workers=2).map(lambda item: item + 1)
    with builder.open() as pipeline:
        first, second = list(pipeline), list(pipeline)
    assert sorted(first) == sorted(second) == [11, 21, 31, 41]


def test_a_loader_yields_tensors_and_resumes():
    builder = from_source(range(6)).map(lambda item: np.full(2, item)).batch(2)
    with builder.loader() as loader:
        items = iter(loader)
        first = next(items).tolist()
        state = loader.state_dict()
    with builder.loader() as resumed:
        resumed.load_state_dict(state)
        rest = [batch.tolist() for batch in resumed]
    assert [first, *rest] == [[[0, 0], [1, 1]], [[2, 2], [3, 3]], [[4, 4], [5, 5]]]


def write(item):
    item["image"][0] = 1
    return item


def convert(item):
    return item


@pytest.mark.parametrize(
    "make,words",
    [
        (lambda start: start.map(write), "set `stages.write.mutable=true`"),
        (
            lambda start: start.map(lambda _: os.kill(os.getpid(), 9), name="dies"),
            "set `stages.dies.on_error=skip` to",
        ),
        (lambda start: start.map_field("image", convert, as_="pil"), "which `as=pil` cannot convert"),
    ],
)
def test_an_error_of_a_run_advises_an_override(make, words):
    builder = make(from_source(range(4)).map(lambda item: {"image": np.zeros(100_000) + item}))
    with pytest.raises(RunError) as caught, builder.open() as pipeline:
        list(pipeline)
    assert words in str(caught.value)


def test_an_inline_error_advises_in_python():
    builder = from_source([{"image": "cat.jpg"}]).map_field("image", convert, as_="tensor")
    with pytest.raises(RunError, match="which `as=tensor` cannot convert"):
        builder.take(1)
