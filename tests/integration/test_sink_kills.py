"""`stagepipe run --resume` after SIGKILL: the shards are those of an undisturbed run, row for row."""

import json
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
from tests.support.sink_output import (
    fit_arguments,
    list_leftovers,
    list_shards,
    make_config,
    read_bytes,
    read_rows,
    write,
)
from tests.support.sink_stages import HOLD

COMMAND = str(Path(sys.executable).parent / "stagepipe")


def write_config(
    folder: Path,
    kind: str,
    count: int,
    *,
    workers: int,
    shard_items: int,
    part_items: int,
    order: str = "source",
):
    stage = "extract_image_slowly" if kind == "images" else "extract_slowly"
    stage = stage if order == "source" else "extract_unevenly"
    arguments = {"path": "out", **fit_arguments(kind, shard_items=shard_items, part_items=part_items)}
    (folder / "features.yaml").write_text(f"""
name: features
order: {order}
source: {{uses: tests.support.sink_stages.Numbers, with: {{count: {count}}}}}
stages:
  - {{name: extract, uses: tests.support.sink_stages.{stage}, workers: {workers}}}
sink:
  uses: stagepipe.sinks.{kind}
  workers: {workers}
  with: {json.dumps(arguments)}
""")


def start(folder: Path, *more: str, hold: int = sys.maxsize) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [COMMAND, "run", "features.yaml", "--quiet", *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), HOLD: str(hold)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(folder: Path, *more: str) -> tuple[int, str]:
    process = start(folder, *more)
    _, error = process.communicate(timeout=110)
    return process.returncode, error


def kill_when(folder: Path, is_time: Callable[[], bool], *, hold: int = sys.maxsize) -> bool:
    """Start or go on, and kill the whole group as soon as `is_time`. Return whether the run was still going on.

    The stage holds the items from number `hold` on, so that a run that is quicker than this process cannot end.
    """
    process = start(folder, "--resume", hold=hold)
    deadline = time.monotonic() + 60
    while not is_time() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    is_killed = process.poll() is None
    if is_killed:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
    return is_killed


@pytest.mark.parametrize("kind", ["jsonl", pytest.param("huggingface", marks=pytest.mark.slow), "images", "zarr"])
def test_a_run_that_is_killed_twice_writes_the_same_bytes(tmp_path: Path, kind: str):
    write(make_config(tmp_path / "plain", kind, 600, **fit_arguments(kind, shard_items=100, part_items=20)))
    expected = read_bytes(tmp_path / "plain")
    write_config(tmp_path, kind, 600, workers=1, shard_items=100, part_items=20)
    out = tmp_path / "out"
    for share in (1 / 6, 4 / 6):
        count = int(share * len(expected))
        is_time = lambda count=count: out.exists() and len(list_shards(out)) >= count  # noqa: E731
        assert kill_when(tmp_path, is_time, hold=590)
    record = Journal(out).load(1)
    assert record is not None
    names = {shard.name for shard in record.finished_shards[0]}
    written = {get_identity(file) for file in list_shards(out) if file.name in names or is_of(file, record.items)}
    assert written
    assert finish(tmp_path, "--resume") == (0, "")
    assert read_bytes(out) == expected
    assert written <= {get_identity(file) for file in list_shards(out)}  # none is written again
    assert list_leftovers(out) == []
    code, error = finish(tmp_path, "--resume")
    assert code == 0
    assert "finished" in error


def test_resuming_with_changed_code_warns_of_the_stage(tmp_path: Path):
    code = """
import time

def check(number):
    if number == {limit}:
        time.sleep(2)  # the parts before it are committed
    assert number < {limit}
    return number
"""
    (tmp_path / "checks.py").write_text(code.format(limit=50))
    (tmp_path / "features.yaml").write_text("""
source: {uses: stagepipe.sources.numbers, with: {count: 60}}
stages: [{name: check, uses: checks.check}]
sink: {uses: stagepipe.sinks.jsonl, with: {path: out, part_items: 10}}
""")
    assert finish(tmp_path)[0] == 1
    (tmp_path / "checks.py").write_text(code.format(limit=60))
    exit_code, error = finish(tmp_path, "--resume")
    assert exit_code == 0
    assert f"the code has changed since the last run of this job: stage check ({tmp_path / 'checks.py'});" in error
    assert list(map(int, (tmp_path / "out/000000.jsonl").read_text().split())) == list(range(60))


def test_ctrl_c_says_how_to_go_on(tmp_path: Path):
    write_config(tmp_path, "jsonl", 600, workers=1, shard_items=100, part_items=20)
    own = signal.signal(signal.SIGINT, signal.default_int_handler)  # the caller of the tests may ignore it
    try:
        process = start(tmp_path, hold=300)
    finally:
        signal.signal(signal.SIGINT, own)
    while not list(tmp_path.glob("out/*.jsonl")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "the same command with --resume continues from the last part" in error
    assert finish(tmp_path, "--resume") == (0, "")


def test_in_any_order_two_kills_lose_and_double_no_row(tmp_path: Path):
    count = 600
    write_config(tmp_path, "jsonl", count, workers=2, shard_items=100, part_items=20, order="any")
    out = tmp_path / "out"
    for shard_count in (1, 4):
        is_time = lambda shards=shard_count: out.exists() and len(list_shards(out)) >= shards  # noqa: E731
        assert kill_when(tmp_path, is_time, hold=590)
    assert finish(tmp_path, "--resume") == (0, "")
    write(make_config(tmp_path / "plain", "jsonl", count))
    rows = read_rows(out, "jsonl")
    assert rows != sorted(rows), "in another order than that of the source"
    assert sorted(rows) == read_rows(tmp_path / "plain", "jsonl")
    assert list_leftovers(out) == []


@pytest.mark.parametrize("order", ["source", "any"])
def test_dead_letters_outlive_two_kills(tmp_path: Path, order: str):
    count, out, letters = 600, tmp_path / "out", tmp_path / "dead.jsonl"
    write_config(tmp_path, "jsonl", count, workers=2, shard_items=100, part_items=20, order=order)
    config = (tmp_path / "features.yaml").read_text()
    failing = "  - {name: check, uses: tests.support.sink_stages.refuse_some, on_error: skip}\n"
    (tmp_path / "features.yaml").write_text(config.replace("stages:\n", f"stages:\n{failing}"))
    for shard_count in (1, 4):
        is_time = lambda shards=shard_count: out.exists() and len(list_shards(out)) >= shards  # noqa: E731
        assert kill_when(tmp_path, is_time, hold=590)
    for _ in range(2):  # the second finds a finished job, and writes the same file
        assert finish(tmp_path, "--resume", "--dead-letters", "dead.jsonl")[0] == 0
        found = [json.loads(line)["source_items"] for line in letters.read_text().splitlines()]
        assert found == [[number] for number in range(count) if number % 7 == 3]
        letters.unlink()
    assert len(read_rows(out, "jsonl")) + len(found) == count
    (out / ".stagepipe-dead-letters").unlink()
    code, error = finish(tmp_path, "--resume")
    assert code == 2
    assert "the dead letters of this job are gone" in error


def is_of(file: Path, items: int) -> bool:
    """Whether a file is an image of the first `items` items, or a chunk of 10 of them."""
    if file.suffix == ".png":
        return int(file.stem.removeprefix("item ")) < items
    return file.name.startswith("c.") and (int(file.name.split(".")[1]) + 1) * 10 <= items


def get_identity(file: Path) -> tuple[int, int]:
    """Return what identifies a file under another name, unless it is written again."""
    status = file.stat()
    return status.st_ino, status.st_mtime_ns


def after_a_commit(out: Path, delay_s: float) -> Callable[[], bool]:
    """Return whether `delay_s` have gone by since the run that goes on has added to the journal."""
    path = out / ".stagepipe-journal"
    sizes: list[int] = []
    moment = None

    def is_time() -> bool:
        nonlocal moment
        size = path.stat().st_size if path.exists() else 0
        if not sizes or size != sizes[-1]:
            sizes.append(size)
        if moment is None and len(sizes) > 3:  # as it was, as a resume writes it again, a record
            moment = time.monotonic() + delay_s
        return moment is not None and time.monotonic() > moment

    return is_time


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["parquet", "webdataset", "jsonl"])
def test_ten_kills_at_random_moments(tmp_path: Path, kind: str):
    count = 20_000
    write_config(tmp_path, kind, count, workers=2, shard_items=1000, part_items=100)
    out = tmp_path / "out"
    write(make_config(tmp_path / "plain", kind, count, shard_items=1000, part_items=100))
    expected = read_rows(tmp_path / "plain", kind)
    moments = random.Random(kind)
    committed = [0]
    for number in range(10):
        moment = time.monotonic() + moments.uniform(0.2, 3.0)
        if number % 2:  # the start of a busy machine may take as long: these come after a commit
            is_time = after_a_commit(out, moments.uniform(0, 0.5))
        else:
            is_time = lambda moment=moment: time.monotonic() > moment  # noqa: E731
        assert kill_when(tmp_path, is_time)
        record = Journal(out).load(1) if (out / ".stagepipe-journal").exists() else None
        committed.append(record.items if record else 0)
    assert committed == sorted(committed)
    assert len(set(committed)) >= 5, "each second run gets on"
    assert finish(tmp_path, "--resume")[0] == 0
    assert len(expected) == count
    assert read_rows(out, kind) == expected
    assert list_leftovers(out) == []
