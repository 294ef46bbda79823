"""Rates of earlier runs: kept for a day by config, whatever its layout; a damaged record is none."""

import os
import time

import pytest

from stagepipe.config import load
from stagepipe.engine import RunHistory, config_cache
from stagepipe.plan import UNSHARDED
from stagepipe.report import PastRun
from tests.support.pipelines import pipeline, stage


@pytest.fixture(autouse=True)
def _own_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def history(limit=None, source=40, **keys):
    return RunHistory(load(pipeline(stage("double", **keys), source=source)), limit, UNSHARDED)


def run(workers=1, items_per_s=100.0):
    return PastRun(layout={"source": 1, "double": workers}, items_per_s=items_per_s, free_cpus=2.0)


def files(tmp_path):
    return list((tmp_path / "stagepipe" / "runs").iterdir())


def test_runs_of_all_layouts_of_a_config_are_kept_together(tmp_path):
    history().add(run(1))
    history(workers=2).add(run(2))
    history(workers=2).add(run(2, 90.0))
    history(fuse=True).add(run(0))
    assert history().load() == (run(1), run(2, 90.0), run(0))
    [file] = files(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("keys", [{"limit": 3}, {"source": 41}, {"threads": 2}, {"transport": "pipe"}], ids=str)
def test_another_config_has_runs_of_its_own(keys):
    history().add(run())
    assert history(**keys).load() == ()


@pytest.mark.parametrize("content", [b"", b"[", b"{}", b'[{"run": 1}]', b"[" * 100_000, b"\xff"])
def test_a_damaged_record_is_none_and_is_replaced(tmp_path, content):
    history().add(run())
    files(tmp_path)[0].write_bytes(content)
    assert history().load() == ()
    history().add(run())
    assert history().load() == (run(),)


def test_runs_are_forgotten_after_a_day_and_so_are_those_of_the_future(monkeypatch):
    history().add(run())
    now = time.time()
    for seconds, runs in ((23 * 3600, 1), (25 * 3600, 0), (-3600, 0)):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: now + seconds)
        assert len(history().load()) == runs


def test_records_are_bounded(monkeypatch, tmp_path):
    for workers in range(20):
        history().add(run(workers))
    assert [each.layout["double"] for each in history().load()] == list(range(4, 20))
    monkeypatch.setattr(config_cache, "_MAX_FILES", 3)
    os.utime(files(tmp_path)[0], (1, 1))
    for source in range(3):
        history(source=source + 1).add(run())
    assert len(files(tmp_path)) == 3
    assert history().load() == ()


@pytest.mark.parametrize("folder", ["/proc/no", "/dev/null"])
def test_a_folder_that_cannot_be_written_is_no_problem(monkeypatch, folder):
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    history().add(run())
    assert history().load() == ()
