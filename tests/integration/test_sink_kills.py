"""`stagepipe run --resume` after SIGKILL: the shards are those of an undisturbed run, row for row."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stagepipe.shards.journal import Journal
from tests.support.paths import ROOT
from tests.support.sink_output import list_leftovers, list_shards, make_config, read_rows, write

COMMAND = str(Path(sys.executable).parent / "stagepipe")


def write_config(folder: Path, kind: str, count: int, stage: str, *, workers: int, shard_items: int, part_items: int):
    (folder / "features.yaml").write_text(f"""
name: features
source: {{uses: tests.support.sink_stages.Numbers, with: {{count: {count}}}}}
stages:
  - {{name: extract, uses: tests.support.sink_stages.{stage}, workers: {workers}}}
sink:
  uses: stagepipe.sinks.{kind}
  workers: {workers}
  with: {{path: out, shard_items: {shard_items}, part_items: {part_items}}}
""")


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [COMMAND, "run", "features.yaml", "--quiet", *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(folder: Path, *more: str) -> tuple[int, str]:
    process = start(folder, *more)
    _, error = process.communicate(timeout=110)
    return process.returncode, error


def kill_when(folder: Path, is_time: Callable[[], bool]) -> bool:
    """Start or go on, and kill the whole group as soon as `is_time`. Return whether the run was still going on."""
    process = start(folder, "--resume")
    deadline = time.monotonic() + 60
    while not is_time() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    is_killed = process.poll() is None
    if is_killed:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
    return is_killed


def test_a_run_that_is_killed_twice_writes_the_same_bytes(tmp_path: Path):
    write_config(tmp_path, "jsonl", 600, "extract_slowly", workers=1, shard_items=100, part_items=20)
    out = tmp_path / "out"
    for shard_count in (1, 4):
        assert kill_when(tmp_path, lambda count=shard_count: out.exists() and len(list_shards(out)) >= count)
    record = Journal(out).load(1)
    assert record is not None
    finished = {out / shard.name: (out / shard.name).stat().st_mtime_ns for shard in record.finished_shards[0]}
    assert len(finished) >= 1
    assert finish(tmp_path, "--resume") == (0, "")
    write(make_config(tmp_path / "plain", "jsonl", 600, shard_items=100, part_items=20))
    expected = [shard.read_bytes() for shard in list_shards(tmp_path / "plain")]
    assert [shard.read_bytes() for shard in list_shards(out)] == expected
    assert {shard: shard.stat().st_mtime_ns for shard in finished} == finished  # none is written again
    assert list_leftovers(out) == []
    code, error = finish(tmp_path, "--resume")
    assert code == 0
    assert "finished" in error


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["parquet", "webdataset", "jsonl"])
def test_ten_kills_at_random_moments(tmp_path: Path, kind: str):
    count = 20_000
    write_config(tmp_path, kind, count, "extract_slowly", workers=2, shard_items=1000, part_items=100)
    out = tmp_path / "out"
    write(make_config(tmp_path / "plain", kind, count, shard_items=1000, part_items=100))
    expected = read_rows(tmp_path / "plain", kind)
    moments = random.Random(kind)
    kills = 0
    while kills < 10:
        moment = time.monotonic() + moments.uniform(0.2, 3.0)
        if not kill_when(tmp_path, lambda moment=moment: time.monotonic() > moment):
            break
        kills += 1
    assert kills == 10
    assert finish(tmp_path, "--resume")[0] == 0
    assert len(expected) == count
    assert read_rows(out, kind) == expected
    assert list_leftovers(out) == []
