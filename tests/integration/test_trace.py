"""The trace of a run, checked by `tests.support.trace_check`: also with killed workers, and off unless asked for."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from stagepipe import Pipeline, UsageError, from_source
from stagepipe.torch import Loader
from tests.support.kills import kill
from tests.support.pipelines import batch, outputs, pipeline, plain, shuffle, stage
from tests.support.trace_check import check_trace, load_trace

pytestmark = pytest.mark.timeout(90)

CHAIN = pipeline(
    stage("image", with_={"size": 200}, workers=2),
    stage("same", fuse=True),
    batch(4),
    stage("same", name="last"),
    source=120,
)
GENERATORS = pipeline(
    stage("parts", workers=2),
    stage("first", fuse=True),
    stage("halves_of_all", batch={"size": 4, "max_wait": "1ms"}),
    shuffle(5),
    stage("plus"),
    source=60,
)
CHAINS = {"images": CHAIN, "parts and lists": GENERATORS, "small items": pipeline(stage("plus"), source=2000)}


def run_traced(config, path: Path, **options):
    with Pipeline(config, trace=path, **options) as running:
        found = [plain(item) for item in running]
    return found, check_trace(load_trace(path))


@pytest.mark.parametrize("name", CHAINS)
def test_trace_of_a_run_holds(name, tmp_path):
    found, check = run_traced(CHAINS[name], tmp_path / "t.json.gz")
    assert found == outputs(CHAINS[name], inline=True)
    assert not check.problems
    assert (check.other["sent_without_receipt"], check.other["received_without_sending"]) == (0, 0)
    assert 0 < check.flows == check.slices["receive"] == check.slices["send"]
    assert not check.other["dropped_records"]
    assert not check.instants
    assert [path.name for path in tmp_path.iterdir()] == ["t.json.gz"]


def test_slices_show_items_stages_and_phases(tmp_path):
    _, check = run_traced(CHAIN, tmp_path / "t.json.gz")
    assert [name for _, name in sorted((place, name) for place, name in check.tracks.items() if "sink" in name)]
    assert sorted(check.tracks.values()) == [
        "batch/0",
        "image/0",
        "image/1",
        "last/0",
        "sink (your process)",
        "source/0",
    ]
    assert check.slices["image"] == check.slices["same"] == 120
    assert check.slices["last"] == 30
    assert check.slices["start"] == 5
    assert {"encode", "copy", "write", "receive", "decode", "wait for input", "item 17"} <= set(check.slices)
    assert {"queued before image", "rate of batch", "shared memory"} <= check.counters


def test_trace_of_a_killed_worker_is_complete(tmp_path):
    path, found = tmp_path / "t.json", []
    with Pipeline(CHAIN, trace=path) as running:
        for index, item in enumerate(running):
            found.append(plain(item))
            del item
            if index in {5, 15}:
                kill(running, 1)
        pids = {restart.death.pid for restart in running._run._supervisor.recovery.restarts}
    check = check_trace(load_trace(path))
    assert found == outputs(CHAIN, inline=True)
    assert not check.problems
    assert [event["pid"] in pids for event in check.instants] == [True, True]
    assert all("SIGKILL" in event["args"]["cause"] for event in check.instants)
    assert {name for (pid, _), name in check.tracks.items() if pid in pids} == {"image/0", "image/0, restart 1"}
    assert "image/0, restart 2" in check.tracks.values()
    assert check.slices["start"] == 7


def test_loop_of_a_loader_is_a_track(tmp_path):
    path = tmp_path / "deep" / "t.json"
    with Loader(Pipeline(pipeline(stage("image"), batch(4), source=40), trace=path)) as loader:
        for _ in range(2):
            assert len([item for item in loader]) == 10  # noqa: C416 - the loader has a length, which `list` asks for
    check = check_trace(load_trace(path))
    assert not check.problems
    assert check.other["pipeline"] == "test"
    assert any(name == "sink (your process)" and pid == os.getpid() for (pid, _), name in check.tracks.items())


def test_trace_is_off_by_default():
    with Pipeline(CHAIN) as running:
        resources = running._run._supervisor.resources
        assert (resources.trace_fds, resources.consumer_trace) == ({}, None)
        assert len(list(running)) == 30


def test_config_and_builder_ask_for_a_trace(tmp_path):
    in_config = pipeline(stage("plus"), report={"trace": str(tmp_path / "a.json.gz")})
    with Pipeline(in_config) as running:
        list(running)
    from_source(range(20)).run(trace=tmp_path / "b.json.gz")
    for name in ("a", "b"):
        check = check_trace(load_trace(tmp_path / f"{name}.json.gz"))
        assert not check.problems
        assert check.flows > 0


def test_wall_clock_offset_is_recorded_at_both_ends(tmp_path):
    path = tmp_path / "t.json"
    from_source(range(20)).run(trace=path)
    trace = load_trace(path)
    other = trace["otherData"]
    offsets = [other["clock_offset_at_start_ns"], other["clock_offset_at_end_ns"]]
    assert abs(offsets[0] - offsets[1]) < 1e9
    begin_ns = min(event["ts"] for event in trace["traceEvents"] if "ts" in event) * 1000 + trace["baseTimeNanoseconds"]
    assert 0 < path.stat().st_mtime_ns - begin_ns < 60e9


def test_wrong_paths_are_refused_before_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    for path, message in (
        ("t.txt", "a trace is a .json or .json.gz file"),
        (tmp_path / "file" / "t.json", "its folder cannot be created"),
    ):
        with pytest.raises(UsageError, match=message):
            Pipeline(CHAIN, trace=path).start()
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(UsageError, match="this is a folder"):
        Pipeline(CHAIN, trace=tmp_path / "folder.json").start()
    with pytest.raises(UsageError, match="remove `inline`"):
        Pipeline(CHAIN, trace="t.json", inline=True)


def test_failed_run_has_its_trace(tmp_path):
    path = tmp_path / "t.json"
    with pytest.raises(Exception, match="bad"), Pipeline(
        pipeline(stage("tests.support.bad_stages.raises", "bad")), trace=path
    ) as running:  # fmt: skip
        list(running)
    check = check_trace(load_trace(path))
    assert not check.problems
    assert check.slices["bad"]


@pytest.mark.slow
def test_torch_profiler_has_the_same_time_axis(tmp_path):
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        from_source(range(20)).run(trace=tmp_path / "ours.json")
        with torch.profiler.record_function("after the run"):
            torch.ones(8).sum()
    profiler.export_chrome_trace(str(tmp_path / "torch.json"))
    ours, theirs = (load_trace(tmp_path / name) for name in ("ours.json", "torch.json"))
    assert ours["baseTimeNanoseconds"] == theirs["baseTimeNanoseconds"]
    last_us = max(event["ts"] + event["dur"] for event in ours["traceEvents"] if event["ph"] == "X")
    (mark,) = [event for event in theirs["traceEvents"] if event.get("name") == "after the run" and "dur" in event]
    assert last_us < mark["ts"] < last_us + 60e6


@pytest.mark.slow
def test_perfetto_reads_the_trace(tmp_path):
    """Perfetto's own importer finds no error, and as many slices and flows as the file has."""
    binary = os.environ.get("TRACE_PROCESSOR_BIN")
    if not binary:
        pytest.skip("$TRACE_PROCESSOR_BIN does not name Perfetto's trace_processor_shell")
    _, check = run_traced(CHAIN, tmp_path / "t.json")
    query = tmp_path / "q.sql"
    query.write_text(
        "select (select count(*) from slice) s, (select count(*) from flow) f, "
        "(select sum(value) from stats where severity in ('error', 'data_loss')) e;"
    )
    command = [binary, "-q", str(query), str(tmp_path / "t.json")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert json.loads(f"[{found.splitlines()[-1]}]") == [sum(check.slices.values()), check.flows, 0]
