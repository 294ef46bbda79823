"""Arenas near the memory limit: a run slows down but completes correctly, and never hangs."""

import random
import time
from typing import Any

import pytest

from stagepipe import Pipeline, RunError
from tests.support.pipelines import pipeline, plain, stage

MEMORY_BYTES = 24 << 20


def config_near_limit(**keys: Any) -> dict[str, Any]:
    """A window of 16 and six workers; items of about 1 MB, each with up to four parts of that size."""
    return pipeline(
        stage("varied", workers=2),
        stage("pieces", workers=2),
        stage("summed", workers=2),
        source=24,
        **{"window": 16, "memory": MEMORY_BYTES, **keys},
    )


def run_schedules(config: dict[str, Any], epochs: int) -> int:
    """Run so many epochs, each with other random naps, sizes and parts. Returns the peak of shared memory in bytes."""
    rnd = random.Random(3)
    with Pipeline(config, inline=True) as inline:
        expected = [[(item["id"], item["sum"]) for item in inline] for _ in range(epochs)]
    peak = 0
    with Pipeline(config) as running:
        board = running.start()._run._supervisor.board
        for epoch in range(epochs):
            started_s, found = time.monotonic(), []
            for item in running:
                peak = max(peak, board.live_bytes())
                found.append((item["id"], int(item["x"].sum())))
                if rnd.random() < 0.05:
                    time.sleep(0.005)
            assert found == expected[epoch], f"schedule {epoch}"
            assert time.monotonic() - started_s < 60
    return peak


@pytest.mark.slow
@pytest.mark.timeout(110)
def test_forty_schedules_near_the_limit():
    """Admission limits memory where items enter, before a generator multiplies them, so its use may double."""
    assert run_schedules(config_near_limit(), 40) <= MEMORY_BYTES * 2.5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_hundred_schedules_near_the_limit():
    peak = run_schedules(config_near_limit(), 500)
    print(f"500 schedules; at most {peak / 1e6:.1f} MB of {MEMORY_BYTES / 1e6:.1f} MB in use")  # noqa: T201 - shown with -s


@pytest.mark.timeout(60)
def test_a_very_small_memory_only_slows_it_down():
    run_schedules(config_near_limit(memory=6 << 20), 3)


@pytest.mark.timeout(60)
def test_an_item_larger_than_the_arena_fails_with_its_name_and_a_fix():
    with pytest.raises(RunError) as caught, Pipeline(config_near_limit(memory=1 << 20)) as running:
        list(running)
    error = caught.value
    assert error.stage in {"varied", "pieces", "summed"}
    assert error.item
    assert "`memory`" in error.message
    assert "only one item is in flight" in error.message


@pytest.mark.timeout(60)
def test_a_caller_that_keeps_all_items_gets_them_all():
    """Items beyond a share of the memory are copied out of shared memory, and counted."""
    with Pipeline(pipeline(stage("megabyte"), source=60, memory=16 << 20)) as running:
        kept = list(running)
        copied = running.report().memory.copied_out_items
    with Pipeline(pipeline(stage("megabyte"), source=60), inline=True) as inline:
        assert plain(kept) == plain(list(inline))
    assert 40 < copied < 60
