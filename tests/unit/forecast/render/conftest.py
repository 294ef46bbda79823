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
    return PieceForecast(name, nbytes, nbytes, nbytes, "float32", (3, 224, 224), is_in_arena=False, mode=mode)


@pytest.fixture
def forecast():
    stages = (
        StageForecast("source", "stagepipe.sources.files", "source", 1, 1, 200_000, 1.0, 250_000, 30 * MB),
        StageForecast("decode", "ops.decode", "decode", 2, 2, 1_200_000, 1.0, 1_300_000, 40 * MB),
        StageForecast("crop", "ops.crop", "decode", 2, 2, 300_000, 1.0),
        StageForecast(
            'a "quoted" <name> & more', "ops.batch", 'a "quoted" <name> & more', 1, 1, 10_000, 1.0, 20_000, 50 * MB
        ),
    )
    hops = (
        HopForecast(
            "source", "decode", "auto", 3500, "why", 1.0, 90, "pipe", (), MessageCost(20_000, 20_000, 30_000, 9_000)
        ),
        HopForecast("decode", "crop", "local", 0, "fused: a call"),
        HopForecast("crop", stages[-1].name, "auto", 3500, "why", 1.0, 90, "pipe", (piece(),), MessageCost(9, 9, 9, 9)),
        HopForecast(stages[-1].name, "sink", "auto", 3500, "why"),
    )
    memory = MemoryForecast(160 * MB, 1000 * MB)
    return Forecast("demo", "", MachineSummary(2, 8000 * MB), 48, stages, hops, memory, 600.0, "decode", "why", (), ())
