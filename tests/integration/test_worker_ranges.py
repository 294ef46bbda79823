"""A run whose `workers` is a range starts within it, and yields the items of one worker, inline too."""

from typing import Any

import pytest

from stagepipe import Pipeline
from stagepipe.api import open_shards, run_to_sink
from tests.support.pipelines import batch, outputs, pipeline, plain, stage

pytestmark = pytest.mark.timeout(60)


def make(workers: Any, **keys: Any) -> dict[str, Any]:
    return pipeline(stage("light_draws", workers=workers), stage("same"), batch(3), source=60, seed=5, **keys)


@pytest.mark.parametrize("workers", ["auto", "1-4", {"min": 2, "max": 4}], ids=str)
def test_any_range_yields_the_items_of_one_worker(workers):
    expected = outputs(make(1), epochs=2)
    with Pipeline(make(workers)) as running:
        assert [plain(item) for _ in range(2) for item in running] == expected
    assert outputs(make(workers), inline=True, epochs=2) == expected
    bounds = running.make_plan().processes[1].worker_bounds
    assert bounds.minimum <= running.report().stages[1].workers <= bounds.maximum


def test_a_range_takes_part_in_a_resume():
    with Pipeline(make("1-4")) as running:
        items = iter(running)
        first = [plain(next(items)) for _ in range(7)]
        state = running.state_dict()
    resumed = Pipeline(make({"max": 3}))
    resumed.load_state_dict(state)
    with resumed as running:
        rest = [plain(item) for item in running]
    assert first + rest == outputs(make(1))


def test_a_sink_with_a_range_writes_the_shards_of_one_worker(tmp_path):
    written = []
    for workers in (1, "2-4"):
        folder = tmp_path / str(workers)
        arguments = {"path": str(folder), "shard_items": 16}
        sink = {"uses": "stagepipe.sinks.jsonl", "with": arguments, "workers": workers}
        running = Pipeline(pipeline(stage("double"), source=60, sink=sink))
        with open_shards(running) as shards, running:
            run_to_sink(running, lambda progress: None, shards=shards)
        written.append({path.name: path.read_bytes() for path in folder.glob("*.jsonl")})
    assert written[0] == written[1]
    assert len(written[0]) == 4
