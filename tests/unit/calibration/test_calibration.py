"""The machine is measured once, quickly, and the curves are cached if possible."""

import datetime as dt
import gc
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from stagepipe.calibration import cache as curve_cache
from stagepipe.calibration import load_curves, measurement, round_trip
from stagepipe.calibration.measurement import measure_curves
from stagepipe.core import RunError
from stagepipe.costs import CostCurves


@pytest.fixture
def cache_dir(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "stagepipe"


def test_a_measurement_takes_little_work_and_leaves_nothing_open():
    measure_curves(rounds=2)
    gc.collect()
    fds_before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    children_before = psutil.Process().children()  # Python's own resource tracker, if another test needed it
    start_s = time.process_time()
    curves = measure_curves()
    assert time.process_time() - start_s < 3
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= fds_before  # noqa: PTH208
    assert psutil.Process().children() == children_before
    assert curves.copied.sizes[-1] >= 4 << 20
    for name in ("pipe", "copied", "cold", "loaned", "passed_on"):
        assert min(getattr(curves, name).ns) > 0
    assert curves.pipe(1 << 20) > curves.copied(1 << 20), "a large buffer is cheaper in shared memory"
    assert curves.cold(4 << 20) > curves.copied(4 << 20), "the first touch of a page is expensive"
    assert curves.copied(4 << 20) > curves.passed_on(4 << 20), "a passed-on block is not copied"
    assert 0 < curves.timing_ns_per_hop < 100_000


def test_an_echo_process_that_cannot_start_is_reported(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(RunError, match="cannot start the echo process"):
        measure_curves()


def test_an_echo_process_that_exits_is_reported(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(round_trip, "RESPONSE_TIMEOUT_S", 0.5)
    with pytest.raises(RunError, match="exit code 1"):
        measure_curves()


def test_curves_are_cached_and_read_again(cache_dir, monkeypatch):
    first = load_curves("1.0")
    assert [path.suffix for path in cache_dir.iterdir()] == [".json"]
    monkeypatch.setattr(measurement, "measure_curves", lambda: pytest.fail("measured again"))
    assert load_curves("1.0") == first


def test_another_version_measures_again(cache_dir, monkeypatch):
    curves = CostCurves.from_points((1, 2), (1, 2), (1, 2))
    monkeypatch.setattr(measurement, "measure_curves", lambda: curves)
    assert load_curves("1.0") == load_curves("2.0") == curves
    assert len(list(cache_dir.iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"pipe": 1}', b"null", b"[" * 99_999])
def test_a_bad_cache_file_is_ignored_and_replaced(cache_dir, monkeypatch, content):
    curves = CostCurves.from_points((1, 2), (1, 2), (1, 2))
    monkeypatch.setattr(measurement, "measure_curves", lambda: curves)
    load_curves("1.0")
    (path,) = cache_dir.iterdir()
    path.write_bytes(content)
    assert load_curves("1.0") == curves
    monkeypatch.setattr(measurement, "measure_curves", lambda: pytest.fail("it was not replaced"))
    assert load_curves("1.0") == curves


def test_a_cache_folder_that_cannot_be_created_is_not_needed(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(measurement, "measure_curves", lambda: CostCurves.from_points((1, 2), (1, 2), (1, 2)))
    assert load_curves("1.0").pipe.sizes == (1, 2)


@pytest.mark.parametrize(
    "relative_iqr,age_s,is_measured_again",
    [(0.1, 10**6, False), (2.0, 60, False), (2.0, 10**6, True), (2.0, -60, True)],
)
def test_noisy_curves_are_measured_again_after_an_hour(cache_dir, monkeypatch, relative_iqr, age_s, is_measured_again):
    measured_at = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age_s)).isoformat()
    cached = replace(CostCurves.from_points((1, 2), (100, 200), (100, 200)), measured_at=measured_at)
    high_ns = tuple(int(ns * (1 + relative_iqr)) for ns in cached.pipe.ns)
    cached = replace(cached, pipe=replace(cached.pipe, high_ns=high_ns))
    curve_cache.save_curves(cached, "1.0")
    quiet = replace(CostCurves.from_points((1, 2), (3, 4), (5, 6)), measured_at="2026-01-01")
    monkeypatch.setattr(measurement, "measure_curves", lambda: quiet)
    assert load_curves("1.0") == (quiet if is_measured_again else cached)
