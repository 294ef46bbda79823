"""Chunks go from a dataset to the `Batch` after it, where each item of the source is one index."""

import pytest

from stagepipe import Pipeline
from tests.support.pipelines import batch, stage

TINY = "tests.support.tiny_samples.Tiny"


def sends_chunks(*stages, **keys):
    return [process.sends_chunks for process in processes(*stages, **keys)]


def processes(*stages, arguments=None, dataset=None, **keys):
    source = {
        "uses": "stagepipe.sources.dataset",
        "with": {"dataset": TINY, "with": {"count": 9}, **(arguments or {})},
        **(dataset or {}),
    }
    config = {"name": "test", "source": source, "stages": list(stages), **keys}
    return Pipeline(config).make_plan().processes


def test_a_dataset_before_batch_sends_chunks():
    assert sends_chunks(batch(4)) == [True, True, False]
    assert sends_chunks(stage("same", fuse=True), batch(4), stage("same", name="last"), dataset={"workers": 3})[:2] == [
        True,
        True,
    ]


def test_the_source_of_chunks_knows_the_size_of_a_batch():
    assert processes(batch(4))[0].chunk_batch_size == 4


@pytest.mark.parametrize(
    "stages, keys",
    [
        ([], {}),
        ([stage("same"), batch(4)], {}),
        ([stage("stagepipe.stages.Shuffle", with_={"size": 3}), batch(4)], {}),
        ([batch(4, drop_last=True)], {"dataset": {"fuse": True}}),
        ([batch(4)], {"dataset": {"stateful": True}}),
        ([batch(4)], {"dataset": {"batch": {"size": 2}}}),
        ([batch(4)], {"arguments": {"batch_size": 2}}),
        ([batch(4)], {"transport": {"mode": "pipe"}}),
        ([{**batch(4), "transport": "pipe"}], {}),
        ([stage("tests.support.order_points.Pairs")], {}),
    ],
    ids=["no Batch", "a stage between", "Shuffle", "fused", "stateful", "lists", "batches", "pipe", "pipe to Batch",
         "another order point"],
)  # fmt: skip
def test_others_send_single_items(stages, keys):
    assert not any(sends_chunks(*stages, **keys))


def test_more_small_items_are_in_flight():
    source = {"uses": "stagepipe.sources.dataset", "with": {"dataset": TINY, "with": {"count": 9}}}
    plan = Pipeline({"source": source, "stages": [batch(4)]}).make_plan()
    assert [segment.small_item_window for segment in plan.segments] == [2048, 256]
