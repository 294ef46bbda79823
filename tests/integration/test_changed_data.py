"""Data files that change: between a run and its resume, and during a run. Both are errors that name the file."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stagepipe import Pipeline, RunError, UsageError

COMMAND = str(Path(sys.executable).parent / "stagepipe")
COUNT = 30


def write_jsonl(folder: Path, count: int = COUNT, first: int = 0) -> dict[str, Any]:
    lines = (json.dumps({"id": number}) for number in range(first, first + count))
    (folder / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return {"uses": "stagepipe.sources.jsonl", "with": {"path": str(folder / "*.jsonl")}}


def write_parquet(folder: Path, count: int = COUNT, first: int = 0) -> dict[str, Any]:
    table = pa.table({"id": list(range(first, first + count))})
    pq.write_table(table, folder / "a.parquet", row_group_size=4)
    return {"uses": "stagepipe.sources.parquet", "with": {"path": str(folder / "*.parquet")}}


def write_files(folder: Path, count: int = COUNT, first: int = 0) -> dict[str, Any]:
    del first
    for number in range(count):
        (folder / f"{number:03}.bin").write_bytes(b"old")
    return name_files(folder)


def name_files(folder: Path) -> dict[str, Any]:
    return {"uses": "stagepipe.sources.files", "with": {"glob": str(folder / "*.bin"), "read": True}}


WRITERS = {"jsonl": write_jsonl, "parquet": write_parquet, "files": write_files}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def make(source: dict[str, Any], *, inline: bool = True, **keys: Any) -> Pipeline[Any]:
    return Pipeline({"name": "test", "source": source}, inline=inline, **keys)


def save_after(source: dict[str, Any], count: int, **keys: Any) -> dict[str, Any]:
    with make(source, **keys) as pipeline:
        items = iter(pipeline)
        for _ in range(count):
            next(items)
        state: dict[str, Any] = json.loads(json.dumps(pipeline.state_dict()))
        return state


def resume(source: dict[str, Any], state: Any, *, allow_changed: bool = False, **keys: Any) -> list[Any]:
    with make(source, **keys) as pipeline:
        pipeline.load_state_dict(state, allow_changed=allow_changed)
        return list(pipeline)


@pytest.mark.parametrize("name, inline", [*((name, True) for name in WRITERS), ("jsonl", False)])
def test_another_number_of_items_is_refused(name: str, inline: bool, folder: Path):
    write = WRITERS[name]
    source = write(folder)
    state = save_after(source, 7, inline=inline)
    assert len(resume(source, state, inline=inline)) == COUNT - 7
    write(folder, COUNT + 5)
    with pytest.raises(UsageError, match="source: 30 items when saved, now 35"):
        resume(source, state, inline=inline)
    assert len(resume(source, state, inline=inline, allow_changed=True)) == COUNT + 5 - 7


def test_a_state_saved_after_the_refusal_is_refused_again(folder: Path):
    state = save_after(write_jsonl(folder), 7)
    source = write_jsonl(folder, COUNT + 5)
    with make(source) as pipeline:
        pipeline.load_state_dict(state)
        with pytest.raises(UsageError, match="now 35"):
            iter(pipeline)
        assert pipeline.state_dict() == state


def test_a_file_of_another_size_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (folder / "b.jsonl").write_text('{"id": 30}\n')
    source = write_jsonl(folder)
    state = save_after(source, 7)
    write_jsonl(folder, first=5)
    with pytest.raises(UsageError, match=r"source files changed since the state was saved: a\.jsonl\n") as caught:
        resume(source, state)
    assert "--allow-changed" in str(caught.value)
    assert "items when saved" not in str(caught.value)


def test_one_of_many_files_is_noticed(folder: Path):
    source = write_files(folder)
    state = save_after(source, 7)
    (folder / "020.bin").write_bytes(b"newer")
    with pytest.raises(UsageError, match="30 files when saved, now 30; names or sizes differ"):
        resume(source, state)


def test_a_change_of_only_the_time_gives_a_warning(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    source = write_jsonl(folder)
    state = save_after(source, 7)
    os.utime(folder / "a.jsonl", ns=(1, 1))
    assert [item["id"] for item in resume(source, state)] == list(range(7, COUNT))
    assert "the same sizes as when this state was saved, but other modification times: a.jsonl" in caplog.text
    assert tmp_path.name not in caplog.text


@pytest.mark.parametrize("name", ["jsonl", "files", "npy"])
def test_a_file_that_was_written_again_in_its_size_is_refused(name: str, folder: Path):
    if name == "npy":
        source = {"uses": "stagepipe.sources.npy", "with": {"path": str(folder / "a.npy")}}
        np.save(folder / "a.npy", np.arange(COUNT))
    else:
        source = WRITERS[name](folder)
    state = save_after(source, 7)
    victim = sorted(folder.iterdir())[1 if name == "files" else 0]
    content = victim.read_bytes()
    victim.write_bytes(content[:-2] + content[-2:].swapcase().replace(b"\0", b"\1").replace(b"}", b" "))
    assert victim.stat().st_size == len(content)
    with pytest.raises(UsageError, match="source files were written again since the state was saved") as caught:
        resume(source, state)
    assert "--allow-changed" in str(caught.value)
    times = victim.stat()
    victim.write_bytes(content)
    os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
    if name != "files":  # the same content with another time is a copy; of many files, only if most are copied
        assert len(resume(source, state)) == COUNT - 7


def test_copies_of_many_files_are_accepted(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    state = save_after(write_files(folder), 7)
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    folder.rename(tmp_path / "original")
    (tmp_path / "copy").rename(folder)
    assert len(resume(name_files(folder), state)) == COUNT - 7
    assert "the same sizes as when this state was saved" in caplog.text
    os.utime(tmp_path / "original/002.bin", ns=(1, 1))  # one that no sample has
    folder.rename(tmp_path / "copy")
    (tmp_path / "original").rename(folder)
    with pytest.raises(UsageError, match="were written again since the state was saved: some of 30"):
        resume(name_files(folder), state)


def test_the_start_of_an_epoch_takes_other_data(folder: Path):
    source = write_jsonl(folder)
    with make(source) as pipeline:
        list(pipeline)
        state = pipeline.state_dict()
    del pipeline  # it keeps the dataset in memory
    write_jsonl(folder, COUNT + 5)
    assert len(resume(source, state)) == COUNT + 5


def test_a_state_of_an_earlier_version_is_accepted(folder: Path):
    source = write_jsonl(folder)
    state = save_after(source, 7)
    position = json.loads(state["rank0"])
    assert position.pop("source")["items"] == COUNT
    assert len(resume(source, {**state, "rank0": json.dumps(position)})) == COUNT - 7


def test_ranks_compare_all_items(folder: Path):
    source = write_jsonl(folder)
    states = [save_after(source, 4, inline=False, rank=rank, world_size=2) for rank in range(2)]
    rests = [resume(source, states, inline=False, rank=rank, world_size=3) for rank in range(3)]
    assert sorted(item["id"] for rest in rests for item in rest) == list(range(8, COUNT))
    write_jsonl(folder, COUNT + 1)
    for world_size in (2, 3):
        with pytest.raises(UsageError, match="30 items when saved, now 31"):
            resume(source, states, inline=False, rank=1, world_size=world_size)


def test_parts_of_a_joined_source_count(folder: Path):
    source = {"uses": "stagepipe.sources.concat", "with": {"sources": [write_jsonl(folder), write_parquet(folder)]}}
    state = save_after(source, 7)
    write_parquet(folder, first=1000)
    with pytest.raises(UsageError, match=r"changed since the state was saved: a\.parquet"):
        resume(source, state)


@pytest.mark.parametrize("kind", ["folder", "zip", "large"])
def test_a_zarr_store_that_was_written_again_is_refused(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    import zarr

    if kind == "large":
        monkeypatch.setattr("stagepipe.sources.array_sources._MAX_DESCRIBED_FILES", 3)
    store = str(folder / ("x.zip" if kind == "zip" else "x.zarr"))

    def write(values: Any) -> None:
        with zarr.storage.ZipStore(store, mode="w") if kind == "zip" else contextlib.nullcontext(store) as target:
            group = zarr.open_group(target, mode="w")
            group.create_array("x", data=values, chunks=(4,))

    source = {"uses": "stagepipe.sources.zarr", "with": {"path": store, "keys": "x"}}
    write(np.arange(COUNT))
    state = save_after(source, 7)
    assert resume(source, state) == list(range(7, COUNT))
    random = np.random.default_rng(3).integers(0, 1 << 40, COUNT)
    write(random.astype(np.float64) if kind == "large" else random)
    with pytest.raises(UsageError, match=r"source files changed since the state was saved") as caught:
        resume(source, state)
    assert "items when saved" not in str(caught.value)


@pytest.mark.parametrize("is_mixed", [False, True])
def test_the_files_of_a_hugging_face_stream_count(is_mixed: bool, folder: Path):
    path = write_jsonl(folder)["with"]["path"]
    stream: dict[str, Any] = {"uses": "stagepipe.sources.huggingface", "with": {"path": path, "streaming": True}}
    mixed = {
        "uses": "stagepipe.sources.concat",
        "with": {"sources": [stream, {"uses": "stagepipe.sources.numbers", "with": {"count": 3}}]},
    }
    source = mixed if is_mixed else stream
    state = save_after(source, 7)
    assert len(resume(source, state)) == COUNT - 7 + 3 * is_mixed
    write_jsonl(folder, COUNT + 5)
    with pytest.raises(UsageError, match=r"source files changed since the state was saved: a\.jsonl"):
        resume(source, state)


OPS = """
import time
from pathlib import Path
def check(item):
    if item["id"] == 20 and not Path("repaired").exists():
        deadline = time.monotonic() + 20
        while Path("out").exists() and not list(Path("out").glob("*.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.01)
        raise ValueError("not yet")
    return item
def collect(item):
    with open("collected.txt", "a") as file:
        file.write(f"{item['id']}\\n")
"""


def run_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, "run", "config.yaml", "--quiet", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("has_journal", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_command_exits_2_and_then_goes_on_with_the_old_data(has_journal: bool, folder: Path, tmp_path: Path):
    (tmp_path / "ops.py").write_text(OPS)
    sink: dict[str, Any] = {"uses": "ops.collect"}
    if has_journal:
        sink = {"uses": "stagepipe.sinks.jsonl", "with": {"path": "out", "shard_items": 5}}
    stages = [{"name": "check", "uses": "ops.check"}]
    config = {"name": "test", "source": write_jsonl(folder), "stages": stages, "sink": sink}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    resume_arguments = ["--resume"] if has_journal else ["--resume", "state.json", "--inline"]
    failed = run_command(tmp_path, *(resume_arguments if not has_journal else []))
    assert "not yet" in failed.stderr
    (tmp_path / "repaired").touch()
    write_jsonl(folder, COUNT + 5)
    for _ in range(2):  # a run that is refused keeps the state
        refused = run_command(tmp_path, *resume_arguments)
        assert refused.returncode == 2, refused.stderr
        assert "source: 30 items when saved, now 35" in refused.stderr
        assert "Traceback" not in refused.stderr
    write_jsonl(folder)
    finished = run_command(tmp_path, *resume_arguments)
    assert finished.returncode == 0, finished.stderr
    assert "other modification times" in finished.stderr
    if has_journal:
        lines = [line for file in sorted((tmp_path / "out").glob("*.jsonl")) for line in file.read_text().splitlines()]
        assert [json.loads(line)["id"] for line in lines] == list(range(COUNT))
    else:
        assert [int(line) for line in (tmp_path / "collected.txt").read_text().split()] == list(range(COUNT))


CHANGES = {
    "jsonl": lambda folder: write_jsonl(folder, first=1000),
    "parquet": lambda folder: write_parquet(folder, first=1000),
    "files": lambda folder: [path.write_bytes(b"newer") for path in folder.iterdir()],
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_changes_before_it_is_read_is_named(name: str, folder: Path):
    source = WRITERS[name](folder)
    with make(source) as pipeline:
        len(pipeline)
        CHANGES[name](folder)
        with pytest.raises(RunError, match=r"changed since its index was built; do not change data files") as caught:
            list(pipeline)
    assert str(folder) in str(caught.value)


def test_an_open_file_that_is_rewritten_is_named(folder: Path):
    source = write_jsonl(folder)
    with make(source) as pipeline:
        items = iter(pipeline)
        assert next(items) == {"id": 0}
        write_jsonl(folder, first=1000)
        with pytest.raises(RunError, match=r"a\.jsonl changed since its index was built"):
            list(items)
