"""The figures for experiment trackers: their names, and where each value comes from."""

import re

import pytest
from msgspec.structs import replace

from stagepipe.report import (
    LiveHop,
    LivePercentiles,
    LiveRun,
    LiveStage,
    SharedMemoryReport,
    WorkerRestartReport,
    build_report,
    to_scalars,
)

MS = 1_000_000
RUN = LiveRun(
    items_per_s=345.2,
    samples_per_s=344.0,
    items_out=4,
    samples_out=128,
    shared_memory_bytes=3_500_000,
    stages=(
        LiveStage(name="source", kind="source"),
        LiveStage(
            name="decode",
            workers=2,
            busy=0.9,
            starved=0.06,
            blocked=0.01,
            run_ns=LivePercentiles(p50=12 * MS),
            rss_bytes=87_000_000,
            restarts=1,
            errors=2,
            skipped=3,
        ),
        LiveStage(name="training step", kind="consumer", starved=0.25),
    ),
    hops=(
        LiveHop(source="source", target="decode"),
        LiveHop(
            source="decode",
            target="training step",
            cost_ns=LivePercentiles(p50=MS // 4),
            queue_ns=LivePercentiles(p50=3 * MS),
        ),
    ),
)


def test_the_names_of_a_run_while_it_goes():
    assert to_scalars(RUN) == {
        "stagepipe/items_per_s": 345.2,
        "stagepipe/samples_per_s": 344.0,
        "stagepipe/items_out": 4,
        "stagepipe/samples_out": 128,
        "stagepipe/skipped": 3,
        "stagepipe/errors": 2,
        "stagepipe/restarts": 1,
        "stagepipe/shared_memory_mb": 3.5,
        "stagepipe/input_wait": 0.25,
        "stagepipe_busy/source": 0,
        "stagepipe_starved/source": 0,
        "stagepipe_blocked/source": 0,
        "stagepipe_workers/source": 1,
        "stagepipe_busy/decode": 0.9,
        "stagepipe_starved/decode": 0.06,
        "stagepipe_blocked/decode": 0.01,
        "stagepipe_workers/decode": 2,
        "stagepipe_item_ms/decode": 12,
        "stagepipe_rss_mb/decode": 87,
        "stagepipe_hop_ms/decode_to_consumer": 0.25,
        "stagepipe_queue_ms/decode_to_consumer": 3,
    }


def test_a_report_has_the_values_of_the_whole_run(make):
    restart = WorkerRestartReport(stage="decode", worker=0, cause="killed", item="3", lost_ns=5)
    consumer = {"wait_ns": 5 * MS, "first_wait_ns": 2 * MS, "busy_ns": MS}
    memory = SharedMemoryReport(arena_peak_bytes=9_000_000, arena_limit_bytes=10_000_000)
    restarts = (restart, replace(restart, kind="stall", worker=-1))
    report = build_report(make.record(make.stage(), consumer=consumer, memory=memory, restarts=restarts))
    scalars = to_scalars(report, "val")
    assert scalars["val/items_per_s"] == report.run.items_per_s
    assert scalars["val/input_wait"] == 0.75  # the wait for the first item is start-up
    assert scalars["val/shared_memory_mb"] == 9
    assert scalars["val/restarts"] == 1
    assert scalars["val/wall_s"] == report.run.wall_ns / 1e9
    for stage in report.stages:
        assert scalars[f"val_busy/{stage.name}"] == stage.busy
        assert scalars[f"val_item_ms/{stage.name}"] == stage.run_ns.p50 / 1e6


@pytest.mark.parametrize("name", to_scalars(RUN))
def test_names_have_only_characters_that_all_trackers_take(name):
    assert re.fullmatch(r"[\w/-]+", name)
