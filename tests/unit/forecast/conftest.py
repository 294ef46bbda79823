"""A forecast with a fused stage, a piece in shared memory and names that need escaping."""

import pytest

from stagepipe.forecast import Forecast
from stagepipe.forecast.model import (
    HopForecast,
    MachineSummary,
    MemoryForecast,
    MessageCost,
    PieceForecast,
    StageForecast,
)

MB = 10**6


def piece(name="image", nbytes=602_112, mode="shared_memory"):
    return PieceForecast(
        name=name,
        mean_bytes=nbytes,
        min_bytes=nbytes,
        max_bytes=nbytes,
        dtype="float32",
        shape=(3, 224, 224),
        is_in_arena=False,
        mode=mode,
    )


@pytest.fixture
def forecast():
    stages = (
        StageForecast(
            name="source",
            uses="stagepipe.sources.files",
            process="source",
            workers=1,
            suggested_workers=1,
            run_ns=200_000,
            items_per_source_item=1.0,
            cpu_ns=250_000,
            memory_bytes=30 * MB,
        ),
        StageForecast(
            name="decode",
            uses="ops.decode",
            process="decode",
            workers=2,
            suggested_workers=2,
            run_ns=1_200_000,
            items_per_source_item=1.0,
            cpu_ns=1_300_000,
            memory_bytes=40 * MB,
        ),
        StageForecast(
            name="crop",
            uses="ops.crop",
            process="decode",
            workers=2,
            suggested_workers=2,
            run_ns=300_000,
            items_per_source_item=1.0,
        ),
        StageForecast(
            name='a "quoted" <name> & more',
            uses="ops.batch",
            process='a "quoted" <name> & more',
            workers=1,
            suggested_workers=1,
            run_ns=10_000,
            items_per_source_item=1.0,
            cpu_ns=20_000,
            memory_bytes=50 * MB,
        ),
    )
    hops = (
        HopForecast(
            source="source",
            target="decode",
            mode="auto",
            threshold_bytes=3500,
            reason="why",
            messages_per_source_item=1.0,
            pickle_bytes=90,
            pickle_mode="pipe",
            pieces=(),
            cost=MessageCost(20_000, 20_000, 30_000, 9_000),
        ),
        HopForecast(source="decode", target="crop", mode="local", threshold_bytes=0, reason="fused: a call"),
        HopForecast(
            source="crop",
            target=stages[-1].name,
            mode="auto",
            threshold_bytes=3500,
            reason="why",
            messages_per_source_item=1.0,
            pickle_bytes=90,
            pickle_mode="pipe",
            pieces=(piece(),),
            cost=MessageCost(9, 9, 9, 9),
        ),
        HopForecast(source=stages[-1].name, target="sink", mode="auto", threshold_bytes=3500, reason="why"),
    )
    memory = MemoryForecast(160 * MB, 1000 * MB)
    return Forecast(
        name="demo",
        config_sha256="",
        machine=MachineSummary(2, 8000 * MB),
        items_probed=48,
        stages=stages,
        hops=hops,
        memory=memory,
        items_per_s=600.0,
        limited_by="decode",
        bottleneck="why",
        fusions=(),
        advice=(),
    )
