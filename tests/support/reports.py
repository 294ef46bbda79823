"""Reports as long and as full as real ones, made without a run: for the HTML page, its tests and its pictures."""

from __future__ import annotations

import math
from random import Random

from stagepipe.report import (
    ByteCounts,
    ConsumerReport,
    CostPrediction,
    DeadLetter,
    HopSeries,
    HopThresholdChange,
    HopTransport,
    HostReport,
    MemoryPoint,
    MessageCounts,
    Report,
    Series,
    SharedMemoryReport,
    SizeCount,
    SlowItem,
    StageSeries,
    TimingOverhead,
    WhatIf,
    WorkerRestartReport,
)
from stagepipe.report.model import HopReport, Percentiles, PhasePercentiles, RunReport, StageReport, Verdict

MS, SECOND = 10**6, 10**9
NAMES = ("files", "decode", "augment", "detect", "classify", "embed", "filter", "caption", "pack", "batch")
NAMES += ("crop", "resize", "tokenize", "mask")
SIZES = [64 * 4**power for power in range(10)]


def spread(median: int) -> Percentiles:
    """A distribution with a tail."""
    return Percentiles(p50=median, p90=median * 2, p99=median * 5, max=median * 20, mean=int(median * 1.2))


def make_report(*, stages=4, points=240, limit="decode", prefix="", trace="Traceback: ValueError: bad header", seed=0):
    """A run of a minute. `prefix` comes before each name, and `trace` into each dead letter."""
    random = Random(seed)
    names = [prefix + name for name in NAMES[:stages]]
    limit = prefix + limit
    at = names.index(limit)
    rows = [_make_stage(name, index, at) for index, name in enumerate(names)]
    fused = StageReport(
        name=f"{prefix}normalise",
        workers=1,
        items=2000,
        starting=0,
        busy=1,
        starved=0,
        blocked=0,
        overhead=0,
        run_ns=spread(MS // 3),
        fused_into=names[min(2, stages - 1)],
    )
    rows.insert(min(3, stages), fused)
    hops = tuple(_make_hop(*ends, index) for index, ends in enumerate(zip(names, [*names[1:], "sink"], strict=True)))
    times = tuple((number + 1) * SECOND // 4 for number in range(points))
    rate = 640.0
    verdict = Verdict(
        limited_by=limit,
        kind="stage",
        confidence=0.92,
        fix=f"stages.{limit}.workers=3",
        sentence=f"{limit} limits the run: its 2 workers are busy for 94 % of the time; later stages starve.",
        advice="One more worker is estimated to give 1.4 times the rate.",
    )
    run = RunReport(
        status="finished",
        items_in=2000,
        items_out=31,
        samples_out=2000,
        items_skipped=3,
        wall_ns=60 * SECOND,
        items_per_s=rate,
        first_item_ns=450 * MS,
        timing_overhead=TimingOverhead(900, "measured on this machine"),
    )
    return Report(
        name=f"{prefix}quickstart",
        config_sha256="3f" * 32,
        run=run,
        stages=tuple(rows),
        hops=hops,
        verdict=verdict,
        host=HostReport(
            cpus=2,
            memory_bytes=8 * 10**9,
            kernel="6.1.0",
            python="3.11.4",
            versions={"numpy": "2.1.0", "torch": "2.6.0", "stagepipe": "0.1.0"},
        ),
        calibration=_make_calibration(),
        memory=SharedMemoryReport(640 * 10**6, 2 * 10**9, 1),
        slowest=tuple(
            SlowItem(item=f"{prefix}{n * 37}", stage=limit, run_ns=(80 - n) * MS, queue_ns=n * MS) for n in range(5)
        ),
        dead_letters=tuple(
            DeadLetter(
                item=f"{prefix}{n}", stage=limit, error=f"{prefix}ValueError: bad header", attempts=2, trace=trace
            )
            for n in range(3)
        ),
        restarts=(
            WorkerRestartReport(
                stage=limit, worker=1, cause=f"{prefix}killed by SIGKILL", item="812", lost_ns=300 * MS
            ),
        ),
        consumer=ConsumerReport(wait_ns=50 * SECOND, busy_ns=SECOND, name="sink"),
        series=_make_series(names, at, times, rate, random) if points else Series(),
        what_if=(
            WhatIf(
                kind="workers",
                change=f"{names[at]} with 3 workers",
                items_per_s=rate * 1.5,
                gain=0.5,
                overrides=(f"stages.{names[at]}.workers=3",),
            ),
            WhatIf(kind="without", change=f"without {names[at]}", items_per_s=rate * 2, gain=1.0),
        ),
    )


def _make_stage(name, index, at):
    busy, starved, blocked = (0.94, 0.01, 0.0) if index == at else (0.2, 0.0, 0.7) if index < at else (0.25, 0.66, 0.0)
    return StageReport(
        name=name,
        workers=2 if index == at else 1,
        items=2000,
        starting=0.02,
        busy=busy,
        starved=starved,
        blocked=blocked,
        overhead=1 - 0.02 - busy - starved - blocked,
        run_ns=spread((5 if index == at else 1) * MS - index * 50_000),
        cpu_ns=20 * SECOND,
        rss_bytes=310 * 10**6,
        pss_bytes=140 * 10**6,
        skipped=3 if index == at else 0,
        errors=3 if index == at else 0,
        crashes=int(index == at),
    )


def _make_hop(source, target, index):
    is_pipe = index == 0
    median = 46_000 + index * 20_000
    changes = (HopThresholdChange(500, 65_536, 32_768, "shared memory was cheaper"),) if index == 1 else ()
    reason = "602 kB per message: predicted 46 µs by shared memory, 2.1 ms by pipe"
    return HopReport(
        source=source,
        target=target,
        transport=HopTransport("auto", 65_536, "90 B per message: the pipe is cheaper" if is_pipe else reason, changes),
        messages=MessageCounts(pipe=2000) if is_pipe else MessageCounts(shared_memory=1980, mixed=20),
        bytes=ByteCounts(inline=180_000) if is_pipe else ByteCounts(copied=2000 * 602_000),
        cost_ns=spread(median),
        saved_ns=0 if is_pipe else 4 * SECOND,
        phases=PhasePercentiles(
            **{name: spread(median // 5) for name in ("encode_ns", "copy_ns", "send_ns", "receive_ns", "decode_ns")},
            queue_ns=spread(12 * MS),
        ),
        predicted=CostPrediction(
            pipe_ns=2 * MS,
            shared_memory_ns=46_000,
            median_ns=46_000,
            measured_median_ns=median,
            measured_ratio=median / 46_000,
        ),
        sizes=tuple(
            SizeCount(min_bytes=2**p, max_bytes=2 ** (p + 1), messages=n)
            for p, n in (((6, 1900), (7, 100)) if is_pipe else ((17, 60), (18, 240), (19, 1600), (20, 100)))
        ),
    )


def _make_calibration():
    pipe = [30_000 + int(size * 2.5) for size in SIZES]
    copied = [70_000 + int(size * 0.08) for size in SIZES]
    return {
        "pipe": {"sizes": SIZES, "ns": pipe},
        "copied": {"sizes": SIZES, "ns": copied},
        "measured_at": "2026-11-23T18:54:56+00:00",
    }


def _make_series(names, at, times, rate, random):
    def noise(scale):
        return [random.gauss(1, scale) for _ in times]

    stages = []
    for index, name in enumerate(names):
        rates = tuple(round(max(rate * (0.7 + 0.3 * math.sin(n / 30)) * x, 0), 1) for n, x in enumerate(noise(0.08)))
        busy = tuple(round(min(0.94 if index == at else 0.25 * x, 1), 3) for x in noise(0.2))
        waits = tuple(round((1 - share) * 0.9, 3) for share in busy)
        none = (0.0,) * len(times)
        stages.append(
            StageSeries(
                name=name,
                items_per_s=rates,
                busy=busy,
                starved=waits if index >= at else none,
                blocked=waits if index < at else none,
            )
        )
    ends = zip(names, [*names[1:], "sink"], strict=True)
    hops = [
        HopSeries(source=a, target=b, queued=tuple(random.randrange(8) + 8 * (i < at) for _ in times))
        for i, (a, b) in enumerate(ends)
    ]
    memory = [MemoryPoint(time_ns=time, bytes=10**9 + n * 10**6) for n, time in enumerate(times[::4])]
    return Series(
        times_ns=times,
        stages=tuple(stages),
        hops=tuple(hops),
        rss_bytes=tuple(memory),
        pss_bytes=tuple(memory[::10]),
        shared_memory_bytes=tuple(int(4e8 * x) for x in noise(0.1)),
    )
