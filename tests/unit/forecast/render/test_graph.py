"""The graph of a forecast shows every process and hop, and is well-formed for any names."""

from xml.etree import ElementTree as ET

import pytest

from stagepipe.forecast import Forecast, render_mermaid, render_svg
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


def test_mermaid_has_a_line_for_each_process_and_hop(forecast):
    first, *lines = render_mermaid(forecast).splitlines()
    assert first == "flowchart TD"
    assert lines[1] == '  p1["decode + crop<br/>2 workers, 1.5 ms per item<br/>80 MB"]'
    assert [line.split("|")[0].strip() for line in lines[4:]] == ["p0 -->", "p1 -->", "p2 -->"]
    assert "image 602 kB: shared memory" in lines[5]
    assert "no message seen" in lines[6]
    assert "#quot;quoted#quot; &lt;name> &amp; more" in lines[2]


def test_the_svg_is_well_formed_and_shows_every_process_and_hop(forecast):
    root = ET.fromstring(render_svg(forecast))
    texts = " ".join(element.text or "" for element in root.iter() if element.tag.endswith("text"))
    for word in ("source", "decode + crop", "2 workers", 'a "quoted" <name> & more', "sink", "image 602 kB"):
        assert word in texts
    assert root.get("viewBox")
