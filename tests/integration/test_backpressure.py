"""The source does not run ahead of a slow caller, and memory stays near its limit."""

import time
from pathlib import Path

import pytest

from stagepipe import Pipeline
from tests.support.pipelines import STAGES, batch, pipeline, stage

pytestmark = pytest.mark.timeout(60)


def count_reads(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.mark.parametrize("window", [1, 5])
def test_the_source_stays_within_the_window(tmp_path, window):
    log = tmp_path / "log"
    source = {"uses": f"{STAGES}.Logging", "with": {"count": 200, "log": str(log)}}
    stages = [stage("same"), stage("double", workers=2)]
    with Pipeline(pipeline(*stages, source=source, window=window)) as running:
        for number, _ in enumerate(running):
            if number < 20:
                time.sleep(0.01)
                assert count_reads(log) <= number + 1 + window
            elif number == 20:
                time.sleep(0.5)
                assert number + 1 <= count_reads(log) <= number + 1 + window
            elif number == 40:
                break


def test_an_automatic_window_is_bounded(tmp_path):
    log = tmp_path / "log"
    source = {"uses": f"{STAGES}.Logging", "with": {"count": 5000, "log": str(log)}}
    with Pipeline(pipeline(stage("same"), batch(10), source=source)) as running:
        items = iter(running)
        next(items)
        time.sleep(0.5)
        assert count_reads(log) <= 10 + 2 * 256 + 256 * 10


@pytest.mark.parametrize("limit_mb", [8, 32])
def test_memory_in_use_stays_near_the_limit_while_the_caller_is_slow(limit_mb):
    config = pipeline(stage("megabyte"), stage("touched", workers=2), source=80, memory=limit_mb << 20)
    peak_bytes = 0
    with Pipeline(config) as running:
        board = running.start()._run._supervisor.board
        for _ in running:
            time.sleep(0.01)
            peak_bytes = max(peak_bytes, board.live_bytes())
    assert peak_bytes <= (limit_mb << 20) + 4 * 1_310_720
