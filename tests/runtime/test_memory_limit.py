"""Arenas near the memory limit: a run slows down, and ends right; it never hangs."""

import random
import time
from typing import Any

import pytest

from stagepipe import Pipeline, RunError
from tests.zoo.pipelines import pipeline, plain, stage

MEMORY = 24 << 20


def config(**keys: Any) -> dict[str, Any]:
    """A window of 16 and six workers; about 1 MB an item, up to four such parts of each."""
    return pipeline(
        stage("varied", workers=2),
        stage("pieces", workers=2),
        stage("summed", workers=2),
        source=24,
        **{"window": 16, "memory": MEMORY, **keys},
    )


def schedules(settings: dict[str, Any], count: int) -> int:
    """Each epoch is another schedule: naps, sizes and parts are drawn anew. Returns the most shared memory in use."""
    rnd = random.Random(3)
    with Pipeline(settings, inline=True) as oracle:
        keys = [[(item["id"], item["sum"]) for item in oracle] for _ in range(count)]
    peak = 0
    with Pipeline(settings) as running:
        board = running.start()._run._supervisor.board
        for epoch in range(count):
            begin, found = time.monotonic(), []
            for item in running:
                peak = max(peak, board.live_bytes())
                found.append((item["id"], int(item["x"].sum())))
                if rnd.random() < 0.05:
                    time.sleep(0.005)
            assert found == keys[epoch], f"schedule {epoch}"
            assert time.monotonic() - begin < 60
    return peak


@pytest.mark.timeout(110)
def test_forty_schedules_near_the_limit():
    """Memory is held down where items enter, before a generator multiplies them: so it may double, but not more."""
    assert schedules(config(), 40) <= MEMORY * 2.5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_hundred_schedules_near_the_limit():
    peak = schedules(config(), 500)
    print(f"500 schedules; at most {peak / 1e6:.1f} MB of {MEMORY / 1e6:.1f} MB in use")  # noqa: T201 - shown with -s


@pytest.mark.timeout(60)
def test_a_very_small_memory_only_slows_it_down():
    schedules(config(memory=6 << 20), 3)


@pytest.mark.timeout(60)
def test_what_cannot_fit_at_a_window_of_one_fails_with_names_and_the_mend():
    with pytest.raises(RunError) as caught, Pipeline(config(memory=2 << 20)) as running:
        list(running)
    error = caught.value
    assert error.stage in {"varied", "pieces", "summed"}
    assert error.item
    assert "`memory`" in error.message
    assert "only one item is under way" in error.message


@pytest.mark.timeout(60)
def test_a_caller_that_keeps_everything_gets_it_all():
    """What it keeps beyond a share of the memory is copied out, and counted."""
    with Pipeline(pipeline(stage("megabyte"), source=60, memory=16 << 20)) as running:
        kept = list(running)
        copied = running.report().memory.copied_out_items
    with Pipeline(pipeline(stage("megabyte"), source=60), inline=True) as plainly:
        assert plain(kept) == plain(list(plainly))
    assert 40 < copied < 60
