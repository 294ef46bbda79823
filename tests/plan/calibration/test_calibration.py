"""The machine is measured once, quickly, and the result is kept where it can be."""

import datetime as dt
import gc
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from stagepipe.core import RunError
from stagepipe.plan import Curves, load, measure
from stagepipe.plan.calibration import kept, trip


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "stagepipe"


def test_a_measurement_takes_little_work_and_leaves_nothing_open():
    measure(rounds=2)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    others = psutil.Process().children()  # Python's own resource tracker, if another test needed it
    begin = time.process_time()
    curves = measure()
    assert time.process_time() - begin < 1.5
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208
    assert psutil.Process().children() == others
    assert curves.copied.sizes[-1] >= 4 << 20
    for name in ("pipe", "copied", "cold", "loaned", "passed_on"):
        assert min(getattr(curves, name).ns) > 0
    assert curves.pipe(1 << 20) > curves.copied(1 << 20), "a large buffer is cheaper in shared memory"
    assert curves.cold(4 << 20) > curves.copied(4 << 20), "the first touch of a page is dear"
    assert curves.copied(4 << 20) > curves.passed_on(4 << 20), "what is passed on is not copied"
    assert 0 < curves.timing_ns_per_hop < 100_000


def test_a_partner_that_cannot_start_is_named(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(RunError, match="no process can be started"):
        measure()


def test_a_partner_that_ends_is_named(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(trip, "DEADLINE_S", 0.5)
    with pytest.raises(RunError, match="exit code 1"):
        measure()


def test_it_is_kept_and_read_again(cache, monkeypatch):
    first = load("1.0")
    assert [path.suffix for path in cache.iterdir()] == [".json"]
    monkeypatch.setattr(kept, "measure", lambda: pytest.fail("measured again"))
    assert load("1.0") == first


def test_another_version_measures_anew(cache, monkeypatch):
    found = Curves.simple((1, 2), (1, 2), (1, 2))
    monkeypatch.setattr(kept, "measure", lambda: found)
    assert load("1.0") == load("2.0") == found
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"pipe": 1}', b"null"])
def test_a_bad_cache_file_is_ignored_and_replaced(cache, monkeypatch, content):
    found = Curves.simple((1, 2), (1, 2), (1, 2))
    monkeypatch.setattr(kept, "measure", lambda: found)
    load("1.0")
    (path,) = cache.iterdir()
    path.write_bytes(content)
    assert load("1.0") == found
    monkeypatch.setattr(kept, "measure", lambda: pytest.fail("it was not replaced"))
    assert load("1.0") == found


def test_a_cache_folder_that_cannot_be_made_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(kept, "measure", lambda: Curves.simple((1, 2), (1, 2), (1, 2)))
    assert load("1.0").pipe.sizes == (1, 2)


@pytest.mark.parametrize(
    "spread,age_s,again", [(0.1, 10**6, False), (2.0, 60, False), (2.0, 10**6, True), (2.0, -60, True)]
)
def test_curves_of_a_busy_machine_are_measured_again_after_an_hour(cache, monkeypatch, spread, age_s, again):
    when = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age_s)).isoformat()
    wide = replace(Curves.simple((1, 2), (100, 200), (100, 200)), when=when)
    wide = replace(wide, pipe=replace(wide.pipe, high_ns=tuple(int(ns * (1 + spread)) for ns in wide.pipe.ns)))
    kept.keep(wide, "1.0")
    quiet = replace(Curves.simple((1, 2), (3, 4), (5, 6)), when="2026-01-01")
    monkeypatch.setattr(kept, "measure", lambda: quiet)
    assert load("1.0") == (quiet if again else wide)
