"""A job that is killed before any of its steps on the disk, and resumed, writes what an undisturbed one writes."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from stagepipe.api import shard_output
from stagepipe.shards import folder, journal
from tests.support import sink_stages
from tests.support.sink_output import list_leftovers, make_config, read_bytes, write

COUNT = 5
KILLED = 77
STEPS = [
    (folder, "sync_file"),
    (folder, "sync_folder"),
    (folder, "sync_files"),
    (folder.os, "truncate"),
    (folder.shutil, "copyfileobj"),
    (journal, "_write_whole"),
    (journal, "sync_folder"),
    (Path, "replace"),
    (Path, "unlink"),
]


def make_two_sinks(tmp_path: Path, first_kind: str, second_kind: str) -> dict[str, Any]:
    """Return a pipeline into two sinks, whose parts have two items."""
    config = make_config(tmp_path / "first", first_kind, COUNT, shard_items=4, part_items=2)
    second = make_config(tmp_path / "second", second_kind, COUNT, shard_items=2, part_items=2)["sink"]
    stage = {"name": "extract", "uses": sink_stages.extract_image}
    return {**config, "stages": [stage], "sink": [config["sink"], second]}


def run_until_step(config: dict[str, Any], last_step: int, *, resume: bool) -> bool:
    """Run in a child that ends like a killed process before a step. Return whether it came to that step."""
    pid = os.fork()
    if pid == 0:
        try:
            die_at_step(last_step)
            shard_output._INTERVAL_COMMITS = 0
            write(config, resume=resume)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in {0, KILLED}
    return code == KILLED


def die_at_step(last_step: int):
    """Make every function of STEPS end the process when `last_step` of them have been called."""
    calls = 0

    def wrap(function):
        def call(*args, **options):
            nonlocal calls
            calls += 1
            if calls > last_step:
                os._exit(KILLED)
            return function(*args, **options)

        return call

    for owner, name in STEPS:
        setattr(owner, name, wrap(getattr(owner, name)))


def read_all(tmp_path: Path) -> dict[str, bytes]:
    return {f"{out}/{name}": data for out in ("first", "second") for name, data in read_bytes(tmp_path / out).items()}


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch):
    """A kill loses nothing that the kernel has; only a power cut does."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    "first_kind,second_kind,files,stride",
    [
        ("parquet", "npz_shards", 2 + 3, 1),
        ("images", "huggingface", 5 + 3 + 2, 9),
        pytest.param("images", "huggingface", 5 + 3 + 2, 1, marks=pytest.mark.slow),
    ],
)
def test_killed_at_each_step(tmp_path: Path, first_kind: str, second_kind: str, files: int, stride: int):
    config = make_two_sinks(tmp_path, first_kind, second_kind)
    write(config)
    expected = read_all(tmp_path)
    assert len(expected) == files
    step = 0
    is_killed = True
    while is_killed:
        for out in ("first", "second"):
            shutil.rmtree(tmp_path / out)
        is_killed = run_until_step(config, step, resume=False)
        if is_killed and step % 5 == 0:
            run_until_step(config, step // 3, resume=True)  # killed in the resume too
        if is_killed:
            run_until_step(config, 1000, resume=True)
        assert read_all(tmp_path) == expected, step
        assert list_leftovers(tmp_path / "first") + list_leftovers(tmp_path / "second") == []
        step += stride
    assert step > 20
