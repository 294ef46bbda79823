"""The series and the sizes in the report of a real run agree with its totals, also over the death of a worker."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, IterableDataset

from stagepipe import from_source
from stagepipe.report import Report, StageSeries, is_comparable

COUNT = 600


def nap(item: int) -> dict[str, Any]:
    time.sleep(0.004)
    return {"item": item, "x": np.zeros(25_000, np.uint8)}


def die_once(item: dict[str, Any], marker: str) -> dict[str, Any]:
    if item["item"] == COUNT // 2 and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def sum_items(report: Report, stage: StageSeries) -> float:
    ends_ns = report.series.times_ns
    starts_ns = [0, *ends_ns]
    return sum(
        rate * (end - start) / 1e9 for rate, start, end in zip(stage.items_per_s, starts_ns, ends_ns, strict=False)
    )


@pytest.mark.parametrize("dies", [False, True])
def test_the_series_agree_with_the_totals(tmp_path: Path, dies: bool):
    builder: Any = from_source(range(COUNT)).map(nap, workers=2)
    if dies:
        builder = builder.map(partial(die_once, marker=str(tmp_path / "died")))
    report = builder.run()
    series = report.series
    assert not [thread for thread in threading.enumerate() if thread.name == "stagepipe-series"]
    names = ["source", "nap", "die_once"][: len(report.stages)]
    assert [stage.name for stage in series.stages] == names
    assert [(hop.source, hop.target) for hop in series.hops] == list(zip(names, [*names[1:], "sink"], strict=True))
    nap_series = series.stages[1]
    assert len(nap_series.items_per_s) == len(series.times_ns) >= 4
    assert 0.8 * COUNT < sum_items(report, nap_series) < 1.4 * report.stages[1].items
    assert max(nap_series.busy[:-1]) > 0.8
    assert all(0 <= share <= 1 for stage in series.stages for share in (*stage.busy, *stage.starved, *stage.blocked))
    assert series.rss_bytes
    assert series.rss_bytes[0].bytes > 10_000_000
    assert len(report.restarts) == dies
    if is_comparable(report.verdict):
        more = [estimate.overrides[0] for estimate in report.what_if if estimate.kind == "workers"]
        names = {"nap", *(["die_once"] if dies else [])}  # the one that dies may be the busiest, while it starts again
        assert more
        assert {override.split(".")[1] for override in more} <= names
    else:  # what restarts or other programs took away says nothing of the pipeline's own costs
        assert not report.what_if
    for hop in report.hops:
        assert sum(size.messages for size in hop.sizes) == hop.messages.total
        assert hop.messages.total >= (0.8 * COUNT if dies else COUNT)  # a dead worker's last tenth of a second is lost
    (size,) = report.hops[1].sizes
    assert (size.min_bytes, size.max_bytes) == (16_384, 32_768)


def test_a_second_epoch_goes_on_with_the_series():
    with from_source(range(100)).map(nap, workers=2).open() as pipeline:
        list(pipeline)
        first = pipeline.report().series
        list(pipeline)
    report = pipeline.report()
    assert report.series.times_ns[: len(first.times_ns)] == first.times_ns
    ends = report.series.times_ns
    assert ends[-1] > first.times_ns[-1]
    assert list(ends) == sorted(set(ends))
    assert 120 < sum_items(report, report.series.stages[1]) < 400  # an estimate: 200 where no CPU is taken away


class PipelineDataset(IterableDataset[int]):
    """Runs a pipeline in the process that iterates; the last item is the number of intervals of its series."""

    def __iter__(self) -> Iterator[int]:
        with from_source(range(100)).map(nap, workers=2).open() as pipeline:
            for item in pipeline:
                yield item["item"]
        yield len(pipeline.report().series.times_ns)


def test_a_pipeline_in_a_worker_of_a_data_loader_has_its_series():
    *items, intervals = DataLoader(PipelineDataset(), num_workers=1, batch_size=None)
    assert items == list(range(100))
    assert intervals >= 1
