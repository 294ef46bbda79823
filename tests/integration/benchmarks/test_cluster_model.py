"""benchmarks.cluster_model prints its tables, draws its plot, and says what is wrong with its options."""

import json
from dataclasses import asdict
from xml.etree import ElementTree as ET

import pytest

from benchmarks.cluster_model import (
    COSTS_FILE,
    CpuPoint,
    ModelEngine,
    get_total_cpu_s,
    load_costs,
    make_measured_job,
)
from benchmarks.cluster_model.__main__ import main, make_page
from benchmarks.common.turn import FIGURES
from tests.support.paths import ROOT


def test_all_engines_are_simulated_and_drawn(tmp_path, capsys):
    network = 10.0
    path, plot = tmp_path / "model.json", tmp_path / "new" / "model.svg"
    options = ["--nodes", "1", "4", "--cpus", "2", "--network", f"{network}", "--json", str(path), "--plot", str(plot)]
    main(options)
    document = json.loads(path.read_text())
    assert document["cluster"]["network_bytes_per_s"] == network * 125e6
    assert len(document["panels"]) == 6
    labels = " ".join("".join(element.itertext()) for element in ET.parse(plot).getroot().iter())
    for panel in document["panels"]:
        for curve in panel["curves"]:
            assert curve["rates"]["4"] > 0
            assert curve["name"] in labels
    printed = capsys.readouterr().out
    for text in (
        "| 38.5 MB, 10 ms |",
        "one lost half-way",
        "faster than one machine",
        "error",
        f"{network:g} Gbit/s a node",
    ):
        assert text in printed + labels


@pytest.mark.parametrize(
    "options, message",
    [
        (["--costs", "nowhere.json"], "--costs nowhere.json: no such file; write one with --measure nowhere.json"),
        (["--network", "0"], "argument --network: 0 is not above 0"),
        (["--cpus", "0"], "argument --cpus: invalid choice: 0"),
        (["--nodes", "0"], "argument --nodes: invalid choice: 0"),
    ],
)
def test_a_wrong_option_is_named(options, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text, message", [("{", "JSONDecodeError"), ("{}", "KeyError('held_out_bytes')")])
def test_damaged_costs_are_named(text, message, tmp_path, capsys):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["--costs", str(path)])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert f"--measure {path}" in error


def test_the_page_has_the_tables_of_the_stored_costs_and_rates():
    page = (ROOT / "docs/scaling.md").read_text()
    assert make_page(page) == page
    assert json.loads((FIGURES / "cluster_model.json").read_text())["ray"] == asdict(load_costs().ray)


def test_the_held_out_size_is_predicted():
    """The CPU of an item of 1.2 MB, which the fit has not seen: as far off as the page states."""
    costs, document = load_costs(), json.loads(COSTS_FILE.read_text())
    for engine, error in ((ModelEngine.LOCAL, 0.16), (ModelEngine.RAY, 0.44)):
        (point,) = [
            CpuPoint(**point) for point in document["points"][engine] if point["nbytes"] == document["held_out_bytes"]
        ]
        assert get_total_cpu_s(engine, make_measured_job(point), costs) == pytest.approx(point.cpu_s, rel=error)


def test_the_costs_say_where_they_come_from():
    document = json.loads(COSTS_FILE.read_text())
    assert document["machine"]["versions"]["ray"]
    assert document["command"].startswith("python -m benchmarks.cluster_model --measure")
