"""The machine is measured once, quickly, and the result is kept where it can be."""

import gc
import os
import time
from pathlib import Path

import pytest

from stagepipe.plan import Curves, calibration, load, measure


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "stagepipe"


def test_a_measurement_takes_well_under_two_seconds_and_leaves_nothing_open():
    measure()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    begin = time.process_time()
    curves = measure()
    assert time.process_time() - begin < 1.5
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208
    assert curves.sizes[-1] >= 4 << 20
    assert min(curves.pipe_ns + curves.shared_memory_ns) > 0
    assert curves.pipe(1 << 20) > curves.shared_memory(1 << 20), "a large buffer is cheaper in shared memory"
    assert 0 < curves.timing_ns_per_hop < 100_000


def test_it_is_kept_and_read_again(cache, monkeypatch):
    first = load("1.0")
    assert [path.suffix for path in cache.iterdir()] == [".json"]
    monkeypatch.setattr(calibration, "measure", lambda: pytest.fail("measured again"))
    assert load("1.0") == first


def test_another_version_measures_anew(cache, monkeypatch):
    found = Curves((1, 2), (1, 2), (1, 2))
    monkeypatch.setattr(calibration, "measure", lambda: found)
    assert load("1.0") == load("2.0") == found
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"sizes": 1}', b"null"])
def test_a_bad_cache_file_is_ignored_and_replaced(cache, monkeypatch, content):
    found = Curves((1, 2), (1, 2), (1, 2), 5, "now")
    monkeypatch.setattr(calibration, "measure", lambda: found)
    load("1.0")
    (path,) = cache.iterdir()
    path.write_bytes(content)
    assert load("1.0") == found
    monkeypatch.setattr(calibration, "measure", lambda: pytest.fail("it was not replaced"))
    assert load("1.0") == found


def test_a_cache_folder_that_cannot_be_made_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(calibration, "measure", lambda: Curves((1, 2), (1, 2), (1, 2)))
    assert load("1.0").sizes == (1, 2)
