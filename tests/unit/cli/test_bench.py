"""`stagepipe bench` on a busy machine says so, and does not replace curves that were measured before."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from stagepipe.bench.result import BenchResult
from stagepipe.calibration import load_cached_curves, save_curves
from stagepipe.cli.app import app
from stagepipe.core import VERSION
from stagepipe.costs import CostCurves

EARLIER = CostCurves.from_points((64, 4096), (1, 2), (2, 3))
MEASURED = replace(EARLIER, measured_at="2026-01-01")


@pytest.mark.parametrize(
    "load_average, has_earlier, words",
    [
        (0.5, True, "saved the curves"),
        (12.0, True, "kept the curves of an earlier measurement"),
        (12.0, False, "saved the curves"),
    ],
)
def test_a_busy_machine_keeps_earlier_curves(monkeypatch, tmp_path, load_average, has_earlier, words):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = BenchResult(
        points={},
        curves=MEASURED,
        serialization_ns=1,
        duration_s=1.0,
        rounds=1,
        host={"cpus": 2},
        load_average=load_average,
    )
    monkeypatch.setattr("stagepipe.bench.run_bench", lambda *_: result)
    monkeypatch.setattr("stagepipe.bench.render_bench", lambda _: "")
    if has_earlier:
        save_curves(EARLIER, VERSION)
    output = CliRunner().invoke(app, ["bench", "--quick"]).output
    assert words in output
    assert ("other processes used the machine (load average 12.0 on 2 CPUs)" in output) == (load_average > 2)
    assert load_cached_curves(VERSION) == (EARLIER if "kept" in words else MEASURED)
