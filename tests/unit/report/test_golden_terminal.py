"""Golden files of what a run prints: the report at two widths and in ASCII, and the summary of a failed run."""

from __future__ import annotations

import importlib.metadata
import io

import msgspec
import pytest
from rich.console import Console

from stagepipe.report import (
    ConsumerReport,
    CostPrediction,
    HopThresholdChange,
    SlowItem,
    StoreHopReport,
    StoreNodeReport,
    build_report,
    render_brief,
    render_report,
    render_summary,
)

pytestmark = pytest.mark.skipif(
    int(importlib.metadata.version("rich").partition(".")[0]) < 15,
    reason="the files hold the column widths of rich 15; earlier versions choose others",
)


def printed(renderable, width, encoding="utf-8"):
    target = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    Console(file=target, width=width, force_terminal=False).print(renderable)
    return "".join(f"{line.rstrip()}\n" for line in target.buffer.getvalue().decode(encoding).splitlines())


@pytest.fixture
def full_report(make, rich_record):
    """The report with everything in it: a training loop, a threshold change, slow items."""
    change = HopThresholdChange(1000, 65_536, 16_384, "66 kB messages took 110 µs by pipe (predicted 4.5 µs)")
    first, *hops = rich_record.hops
    first = make.replace(
        first,
        transport=msgspec.structs.replace(first.transport, mode="auto", changes=(change,)),
        predicted=CostPrediction(median_ns=16_000, measured_median_ns=20_000, measured_ratio=1.25),
    )
    record = make.replace(
        rich_record,
        hops=(first, *hops),
        slowest=(SlowItem(item="1234", stage="decode", run_ns=310_000_000, queue_ns=2_000_000),),
        consumer=ConsumerReport(
            name="training step",
            wait_ns=3 * make.second,
            first_wait_ns=make.second,
            busy_ns=6 * make.second,
            outside_loop_ns=make.second,
        ),
    )
    return build_report(record)


@pytest.mark.parametrize("width", [80, 160])
def test_the_report(full_report, golden, width):
    golden(f"report_{width}.txt", printed(render_report(full_report), width))


@pytest.mark.parametrize("width", [80, 120])
def test_the_brief_report(full_report, golden, width):
    text = printed(render_brief(full_report, more="More: -v"), width)
    assert len(text.splitlines()) <= 25
    golden(f"brief_{width}.txt", text)


def test_the_report_in_ascii(full_report, golden):
    golden("report_ascii.txt", printed(render_report(full_report), 100, "ascii"))


def test_the_report_of_a_failed_run(make, golden):
    record = make.record(make.stage("source"), status="failed", error="stage decode, worker 0, item 5: ValueError: bad")
    golden("report_failed.txt", printed(render_report(build_report(record)), 80))


def test_the_summary_of_a_failed_run(make, golden):
    record = make.record(make.stage("source"), status="failed", error="ValueError: bad", items_skipped=2)
    golden("summary.txt", printed(render_summary(build_report(record)), 100))


@pytest.mark.parametrize("width", [80, 160])
def test_the_object_store_of_a_run_on_ray(make, golden, width):
    stores = (
        StoreHopReport(
            blocks=1200,
            block_bytes=9_600_000_000,
            put_ns=4_200_000_000,
            wait_ns=31_000_000_000,
            held_ns=2_000_000_000,
            moved_bytes=4_700_000_000,
            spilled_bytes=0,
        ),
        StoreHopReport(
            blocks=1200, block_bytes=600_000_000, get_ns=900_000_000, moved_bytes=0, spilled_bytes=80_000_000
        ),
    )
    hops = [make.hop(a, b, mode="object_store", reason="") for a, b in (("source", "decode"), ("decode", "sink"))]
    node = StoreNodeReport(node="3f2a9c01", cpus=16, store_bytes=10**10, spilled_bytes=80_000_000, spill_ns=10**8)
    record = make.record(
        make.stage("source", busy=0.1),
        make.stage("decode", busy=0.9),
        hops=tuple(make.replace(hop, store=store) for hop, store in zip(hops, stores, strict=True)),
        store_nodes=(node, StoreNodeReport(node="8d10e4b7", cpus=7.5, store_bytes=10**10)),
    )
    golden(f"report_ray_{width}.txt", printed(render_report(build_report(record)), width))


def test_the_changes_of_workers(scaled_record, golden):
    report = build_report(scaled_record)
    text = f"{printed(render_brief(report), 100)}\n{printed(render_report(report), 100)}"
    golden("report_workers_100.txt", text)
    assert "decode 1 -> 5, at most 6" in printed(render_brief(report), 100, "ascii")
