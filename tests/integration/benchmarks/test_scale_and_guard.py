"""benchmarks.scale measures each line; benchmarks.guard notices that a hop has become dearer."""

import json
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from benchmarks.common.figures import Estimate
from benchmarks.scale.__main__ import fit_growth
from tests.support.paths import ROOT

PLANTED = """
from stagepipe.transport.hop import sender as _sender
import time as _time
def _slower(plain):
    def send(self, *arguments, **keys):
        begin = _time.perf_counter_ns()
        try:
            return plain(self, *arguments, **keys)
        finally:
            end = _time.perf_counter_ns() + {burn_ns}
            while _time.perf_counter_ns() < end:
                pass
    return send
_sender.Sender.send = _slower(_sender.Sender.send)
"""


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_the_growth_is_the_exponent_of_the_upper_half(power):
    figures = {x: Estimate(7.0 * max(x, 32) ** power, 0, 0, 0) for x in (1, 8, 32, 64, 128, 256)}
    assert fit_growth(figures) == pytest.approx(power)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_line_is_measured_and_drawn(tmp_path):
    path, plot = tmp_path / "scale.json", tmp_path / "scale.svg"
    command = [sys.executable, "-m", "benchmarks.scale", "--quick", "--json", str(path), "--plot", str(plot)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=580)
    lines = json.loads(path.read_text())["lines"]
    assert {line["panel"] for line in lines} == {"stages", "workers", "bytes", "window"}
    for line in lines:
        assert len(line["points"]) >= 3
        assert all(point["value"] > 0 for point in line["points"].values())
    labels = " ".join("".join(element.itertext()) for element in ET.parse(plot).getroot().iter())
    for line in lines:
        assert line["name"] in labels
