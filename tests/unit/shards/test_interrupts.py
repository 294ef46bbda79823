"""A job that Ctrl-C or a full disk ends at any moment, and that is resumed, writes each item exactly once."""

import errno
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import psutil
import pytest

from stagepipe import Pipeline, RunError
from stagepipe.api import StateFile, run_to_sink, shard_output
from stagepipe.engine import EpochIterator
from stagepipe.shards import ShardFolder, ShardPosition, journal
from stagepipe.sinks import JsonlSink, PartPlace
from tests.support.sink_output import list_leftovers, make_config, read_bytes, read_rows, write
from tests.unit.shards.test_kill_at_each_step import STEPS


@pytest.fixture(autouse=True)
def _commit_after_each_part(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shard_output, "_INTERVAL_COMMITS", 0)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


def make_small_config(out: Path, kind: str = "parquet") -> dict[str, Any]:
    return make_config(out, kind, 5, shard_items=4, part_items=2)


def interrupt_at(monkeypatch: pytest.MonkeyPatch, last_moment: int):
    """Raise KeyboardInterrupt before or after a call of a function of STEPS: each is two moments."""
    moments = itertools.count()

    def pass_moment():
        if next(moments) == last_moment:
            raise KeyboardInterrupt

    def wrap(function):
        def call(*args, **options):
            pass_moment()
            result = function(*args, **options)
            pass_moment()
            return result

        return call

    for owner, name in STEPS:
        monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))


def test_interrupted_at_each_moment_of_the_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "out"
    write(make_small_config(out))
    expected = read_bytes(out)
    is_interrupted = True
    for moment in itertools.count():
        shutil.rmtree(out)
        with monkeypatch.context() as patches:
            interrupt_at(patches, moment)
            try:
                write(make_small_config(out))
                is_interrupted = False
            except KeyboardInterrupt:
                pass
        if is_interrupted:
            write(make_small_config(out), resume=True)
        assert read_bytes(out) == expected, moment
        assert list_leftovers(out) == []
        if not is_interrupted:
            break
    assert moment > 40


def test_a_part_that_is_recorded_twice_counts_once():
    parts = [PartPlace(0, 10, 2), PartPlace(10, 5, 2), PartPlace(15, 5, 1)]
    recorded = ShardPosition(rows=4, size_bytes=15, parts=parts[:2])
    again = ShardPosition(rows=5, size_bytes=20, parts=parts[1:])
    assert recorded.merge(again).parts == parts
    assert recorded.merge(ShardPosition(shard=1, parts=parts[:1])).parts == parts[:1]


def interrupt_after_item(monkeypatch: pytest.MonkeyPatch, count: int):
    """Interrupt when the pipeline has counted an item as delivered, and its caller has not got it yet."""
    take_next = EpochIterator.__next__
    items = itertools.count(1)

    def take_next_or_interrupt(iterator: EpochIterator) -> Any:
        item = take_next(iterator)
        if next(items) == count:
            raise KeyboardInterrupt
        return item

    monkeypatch.setattr(EpochIterator, "__next__", take_next_or_interrupt)


def test_an_interrupt_before_the_sink_gets_a_part_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = make_small_config(tmp_path, "jsonl")
    with monkeypatch.context() as patches:
        interrupt_after_item(patches, 2)
        with pytest.raises(KeyboardInterrupt):
            write(config)
    write(config, resume=True)
    assert [row[0] for row in read_rows(tmp_path, "jsonl")] == list(range(5))


def test_an_interrupt_before_the_sink_gets_an_item_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []

    def run():
        pipeline: Pipeline[Any] = Pipeline({"source": {"uses": range(5)}, "sink": {"uses": seen.append}}, inline=True)
        state_file = StateFile(tmp_path / "state.json")
        state_file.load(pipeline)
        with pipeline:
            run_to_sink(pipeline, lambda progress: None, state_file)

    with monkeypatch.context() as patches:
        interrupt_after_item(patches, 3)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert seen == [0, 1]
    run()
    assert sorted(set(seen)) == list(range(5))
    assert json.loads(json.loads((tmp_path / "state.json").read_text())["rank0"])["epoch"] == 1


def test_a_full_disk_at_the_journal_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = make_small_config(tmp_path, "jsonl")
    write_whole = journal._write_whole
    writes = itertools.count(1)

    def write_half(fd: int, data: bytes) -> int:
        if next(writes) == 3:
            write_whole(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_whole(fd, data)

    with monkeypatch.context() as patches:
        patches.setattr(journal, "_write_whole", write_half)
        with pytest.raises(RunError, match="No space left on device; free disk space, then --resume"):
            write(config)
    write(config, resume=True)
    assert [row[0] for row in read_rows(tmp_path, "jsonl")] == list(range(5))


def test_a_full_disk_at_a_part_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = make_small_config(tmp_path, "jsonl")
    copy, copies = shutil.copyfileobj, itertools.count(1)

    def copy_half(source: BinaryIO, target: BinaryIO, length: int) -> None:
        if next(copies) == 2:
            target.write(source.read(3))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        copy(source, target, length)

    with monkeypatch.context() as patches:
        patches.setattr(shutil, "copyfileobj", copy_half)
        with pytest.raises(
            RunError, match="cannot be written: No space left on device; free disk space, then --resume"
        ):
            write(config)
    write(config, resume=True)
    assert [row[0] for row in read_rows(tmp_path, "jsonl")] == list(range(5))


def test_closing_a_shard_on_a_full_disk_raises_nothing(tmp_path: Path):
    shards = ShardFolder(JsonlSink(tmp_path), "jsonl")
    shards._file = Path("/dev/full").open("w+b", buffering=64)  # noqa: SIM115 - the folder closes it
    shards._file.write(b"not flushed")
    shards.close()


def test_the_names_of_new_folders_are_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[Path] = []
    monkeypatch.setattr(journal, "sync_folder", synced.append)
    journal.make_folder(tmp_path / "a" / "b")
    assert sorted(synced) == [tmp_path, tmp_path / "a"]
    journal.make_folder(tmp_path / "a" / "b")
    assert len(synced) == 2
    out = tmp_path / "a" / "out"
    write(make_small_config(out, "jsonl"))
    assert [folder for folder in synced[2:] if folder != out] == [tmp_path / "a"]  # the journal syncs its own


def test_a_run_leaves_no_open_descriptor(tmp_path: Path):
    write(make_small_config(tmp_path / "out"))
    assert not [file for file in psutil.Process().open_files() if Path(file.path).is_relative_to(tmp_path)]
