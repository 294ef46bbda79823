"""Hand-made records of runs. The defaults describe a healthy run of ten seconds on eight CPUs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stagepipe.report import (
    ByteCounts,
    ConsumerReport,
    CostPrediction,
    DeadLetter,
    HopRecord,
    HopTransport,
    HostReport,
    MessageCounts,
    RunRecord,
    Series,
    SharedMemoryReport,
    StageRecord,
    StageSeries,
    TimingOverhead,
    WorkerChangeRecord,
    WorkerRestartReport,
)
from stagepipe.timing import Histogram

SECOND = 1_000_000_000


def stage(name="decode", *, busy=0.1, starved=0.0, blocked=0.0, starting=0.0, workers=1, items=1000, cpu=0.1, **more):
    """A stage with shares of ten seconds per worker; `run_histogram` holds its busy time, spread evenly."""
    wall_ns = workers * 10 * SECOND
    run_ns = int(busy * wall_ns / max(items, 1))
    shares = {"busy_ns": busy, "starved_ns": starved, "blocked_ns": blocked, "starting_ns": starting, "cpu_ns": cpu}
    values = {
        "wall_ns": wall_ns,
        "run_histogram": Histogram.from_values_ns([run_ns] * items),
        **{key: int(share * wall_ns) for key, share in shares.items()},
        **more,
    }
    return StageRecord(name=name, workers=workers, items=items, **values)


REASON = "1.2 MB per message: predicted 46 µs by shared memory, 2.1 ms by pipe"


def hop(source, target, *, cost_ns=20_000, messages=1000, mode="shared_memory", reason=REASON, **more):
    """A hop. Half of its cost is the sender's copy, half the receiver's decode."""
    half = Histogram.from_values_ns([cost_ns // 2] * messages)
    values = {
        "transport": HopTransport(mode, 65_536, reason, more.pop("changes", ())),
        "messages": MessageCounts(**({} if mode == "auto" else {mode: messages})),
        "bytes": ByteCounts(copied=messages * 1_200_000),
        "cost_histogram": Histogram.from_values_ns([cost_ns] * messages),
        "phase_histograms": {"copy_ns": half, "decode_ns": half},
        "predicted": CostPrediction(**more.pop("predicted", {})),
        **more,
    }
    return HopRecord(source=source, target=target, **values)


def record(*stages, consumer=None, **more):
    """A run of these stages. The hops between neighbours are cheap unless given; so is the `consumer`'s work."""
    names = [s.name for s in stages if s.fused_into is None]
    values = {
        "name": "thumbnails",
        "config_sha256": "0" * 64,
        "status": "finished",
        "error": None,
        "items_in": 1000,
        "items_out": 1000,
        "samples_out": 1000,
        "items_skipped": 0,
        "wall_ns": 10 * SECOND,
        "first_item_ns": SECOND // 10,
        "source_end_ns": 9 * SECOND,
        "delivery_points": tuple((i * SECOND, 100 * i) for i in range(1, 11)),
        "consumer": ConsumerReport(**{"wait_ns": 9 * SECOND, "busy_ns": SECOND // 2, **(consumer or {})}),
        "hops": tuple(hop(a, b) for a, b in zip(names, [*names[1:], "consumer"], strict=False)),
        "timing_overhead": TimingOverhead(900, "measured"),
        "host": HostReport(cpus=8, memory_bytes=2**34, kernel="6.1", python="3.11", versions={"numpy": "2.0"}),
        "memory": SharedMemoryReport(),
        "calibration": {"pipe": [[4096, 5000]]},
        "cpus": 8,
        **more,
    }
    return RunRecord(stages=tuple(stages), **values)


@pytest.fixture(scope="session")
def make():
    """The three factories: `make.stage`, `make.hop`, `make.record`; and `make.replace`."""
    return type("Make", (), {"stage": stage, "hop": hop, "record": record, "replace": replace, "second": SECOND})


@pytest.fixture(scope="session")
def rich_record():
    """A run with fused stages, skips, restarts, dead letters and long names."""
    fused = stage("augment_with_a_long_name", busy=0.2, fused_into="decode")
    stages = (
        stage("source", busy=0.1, blocked=0.8, items=2000),
        stage("decode", busy=0.7, starved=0.05, starting=0.03, workers=4, items=2000, cpu=0.6, rss_bytes=150_000_000),
        replace(fused, wall_ns=fused.busy_ns),
        stage("detect", busy=0.2, starved=0.6, starting=0.1, items=1990, errors=12, skipped=10, retries=2, crashes=1),
        stage("batch", busy=0.1, starved=0.85, items=1990),
    )
    return record(
        *stages,
        hops=(
            hop("source", "decode", mode="pipe", messages=2000, bytes=ByteCounts(inline=90_000), saved_ns=3_000_000),
            hop(
                "decode",
                "augment_with_a_long_name",
                mode="local",
                cost_ns=0,
                phase_histograms={},
                messages=2000,
                reason="fused",
            ),
            hop(
                "augment_with_a_long_name",
                "detect",
                messages=2000,
                saved_ns=4_100_000_000,
                predicted={"pipe_ns": 2_100_000},
            ),
            replace(hop("detect", "batch", mode="auto", messages=1990), messages=MessageCounts(pipe=1500, mixed=490)),
            hop(
                "batch", "consumer", reason="154 MB per message: predicted 21 ms by shared memory, 310 ms by pipe. " * 3
            ),
        ),
        order_point_names=("batch",),
        items_skipped=10,
        samples_out=509_440,
        memory=SharedMemoryReport(640_000_000, 4 * 2**30, 3),
        dead_letters=tuple(
            DeadLetter(item=f"{i}", stage="detect", error="ValueError: bad [bold]box[/bold]", attempts=3)
            for i in range(10)
        ),
        restarts=(WorkerRestartReport(stage="detect", worker=0, cause="killed by SIGKILL", item="17", lost_ns=10**9),),
    )


@pytest.fixture(scope="session")
def scaled_record(make):
    """A run that gave a stage more and more workers, and took the last one away; one could not be started."""
    decode = stage(
        "decode", busy=0.9, cpu=0.05, workers=5, mean_workers=4.1, min_workers=1, max_workers=6, wall_ns=41 * SECOND
    )
    changes = [
        WorkerChangeRecord(
            at_ns=(workers - 1) * SECOND,
            stage="decode",
            workers=workers,
            delta=1,
            reason="it limits the run, busy 98 % of the time",
            expected_gain=round(1 / (workers - 1), 2),
            measured_gain=round(0.9 / (workers - 1), 2),
            took_ns=25_000_000,
        )
        for workers in range(2, 7)
    ]
    changes += [
        WorkerChangeRecord(at_ns=7 * SECOND, stage="decode", workers=5, delta=-1, reason="it waits", took_ns=SECOND),
        WorkerChangeRecord(at_ns=8 * SECOND, stage="decode", workers=6, delta=1, failure="ValueError: no model"),
    ]
    times_ns = tuple(number * SECOND for number in range(1, 11))
    over_time = Series(
        times_ns=times_ns,
        stages=(
            StageSeries(
                name="source", items_per_s=(100.0,) * 10, busy=(0.1,) * 10, starved=(0,) * 10, blocked=(0.9,) * 10
            ),
            StageSeries(
                name="decode",
                items_per_s=(100.0,) * 10,
                busy=(0.9,) * 10,
                starved=(0.1,) * 10,
                blocked=(0.0,) * 10,
                workers=(1, 2, 3, 4, 5, 6, 6, 5, 5, 5),
            ),
        ),
    )
    return record(stage("source", busy=0.1, blocked=0.8), decode, worker_changes=tuple(changes), series=over_time)
