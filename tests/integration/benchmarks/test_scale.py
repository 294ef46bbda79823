"""benchmarks.scale measures each line, fits its growth and draws it."""

import json
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from benchmarks.common.figures import Estimate
from benchmarks.scale import LINES, draw, fit_growth
from tests.support.paths import ROOT


def read_labels(plot):
    return " ".join("".join(element.itertext()) for element in ET.parse(plot).getroot().iter())


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_the_growth_is_the_exponent_of_the_upper_half(power):
    figures = {x: Estimate(7.0 * max(x, 32) ** power, 0, 0, 0) for x in (1, 8, 32, 64, 128, 256)}
    assert fit_growth(figures) == pytest.approx(power)


def test_a_plot_names_each_line_and_the_machine(tmp_path):
    figures = {line: {x: Estimate(x + 1.0, x, x + 2.0, 1.0) for x in line.points} for line in LINES}
    draw(figures, "a machine", tmp_path / "scale.svg")
    labels = read_labels(tmp_path / "scale.svg")
    for text in ("a machine", *(line.name for line in LINES), *(line.panel for line in LINES)):
        assert text in labels


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
        assert line["name"] in read_labels(plot)
