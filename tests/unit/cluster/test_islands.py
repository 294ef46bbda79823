"""What islands refuse, and how one ends: without a cluster."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from stagepipe.cli.islands import _raise_errors
from stagepipe.cluster import IslandOptions, IslandResult, run_islands
from stagepipe.cluster.islands import (
    Island,
    IslandFolder,
    IslandRequest,
    _Sources,
    _StartedIsland,
    assign_islands,
    list_island_folders,
    make_island_folders,
    place_sinks,
    remove_empty_folders,
)
from stagepipe.config import load
from stagepipe.core import RunError, SourceIdentity, UsageError, describe_files
from stagepipe.engine import ClusterNode

CONFIG = {"source": {"uses": [1, 2]}, "sink": {"uses": "stagepipe.sinks.jsonl", "with": {"path": "out"}}}


def folders(*names: str) -> frozenset[IslandFolder]:
    return frozenset(IslandFolder(*map(int, name.split("-of-"))) for name in names)


def seen(*names: str) -> list[frozenset[IslandFolder]]:
    """What a node sees of a config with one sink."""
    return [folders(*names)]


def test_each_island_writes_to_its_own_folder():
    spec = load(CONFIG, [])
    paths = [place_sinks(spec, rank, 2).sinks[0].target.arguments["path"] for rank in (0, 1)]
    assert paths == ["out/island-0-of-2", "out/island-1-of-2"]
    assert spec.sinks[0].target.arguments["path"] == "out", "the spec of the whole job is as it was"


def test_a_sink_without_a_path_is_refused_by_name():
    spec = load({**CONFIG, "sink": {"uses": print}}, [])
    with pytest.raises(UsageError, match=r"the sink print needs a `path` in its `with`"):
        place_sinks(spec, 0, 2)


def test_folders_are_found_by_name(tmp_path: Path):
    for name in ("island-0-of-2", "island-1-of-2", "island-1-of-2.old", "shard-0"):
        (tmp_path / "out" / name).mkdir(parents=True)
    (tmp_path / "a file").touch()
    assert list_island_folders(["out"], str(tmp_path)) == seen("0-of-2", "1-of-2")
    assert list_island_folders([str(tmp_path / "out")], "/") == seen("0-of-2", "1-of-2")
    assert list_island_folders(["nothing"], str(tmp_path)) == seen()
    assert list_island_folders(["a file"], str(tmp_path)) == seen()


def test_a_node_owns_an_island_if_it_sees_the_folders_of_all_sinks(tmp_path: Path):
    make_island_folders(["first", "second"], 0, 2, str(tmp_path))
    make_island_folders(["first"], 1, 2, str(tmp_path))
    by_sink = list_island_folders(["first", "second"], str(tmp_path))
    assert by_sink == [folders("0-of-2", "1-of-2"), folders("0-of-2")]
    with pytest.raises(UsageError, match="none of the 1 nodes sees island-1-of-2"):
        assign_islands([by_sink], "first", resume=True)
    (tmp_path / "first/island-1-of-2").rmdir()
    with pytest.raises(UsageError, match="folders of a run on 2 islands, and now there are 1"):
        assign_islands([[frozenset(), by_sink[1]]], "first", resume=False)
    make_island_folders(["first", "second"], 0, 2, str(tmp_path))  # those of an earlier run stay
    (tmp_path / "first/island-0-of-2/rows").touch()
    remove_empty_folders(["first", "second"], 0, 2, str(tmp_path))
    assert list_island_folders(["first", "second"], str(tmp_path)) == [folders("0-of-2"), folders()]


@pytest.mark.parametrize(
    "folders_by_node, nodes",
    [
        ([seen(), seen(), seen()], [0, 1, 2]),  # nothing to go on with: a new job
        ([seen("1-of-2"), seen("0-of-2")], [1, 0]),  # on disks of their own
        ([seen("0-of-2", "1-of-2")], [0, 0]),  # a shared folder, and one node is gone
        ([seen("0-of-3", "1-of-3", "2-of-3")] * 2, [0, 1, 0]),
        ([seen("0-of-2", "1-of-2")] * 3, [0, 1]),  # one node more than before
    ],
)
def test_a_resumed_island_runs_where_its_folder_is(folders_by_node, nodes):
    assert assign_islands(folders_by_node, "out", resume=True) == nodes


def test_a_new_job_has_an_island_on_each_node():
    assert assign_islands([seen(), seen()], "out", resume=False) == [0, 1]
    earlier = [seen("0-of-2"), seen("1-of-2")]
    assert assign_islands(earlier, "out", resume=False) == [0, 1], "the sinks judge what is there"


@pytest.mark.parametrize(
    "folders_by_node, resume, message",
    [
        ([seen("0-of-2", "1-of-2")] * 3, False, r"out has .* of a run on 2 islands, and now there are 3; add --resume"),
        ([seen("0-of-2", "1-of-2", "0-of-3")], True, r"it has folders of runs on 2 and 3 islands; delete"),
        (
            [seen("0-of-2")],
            True,
            r"--resume out: none of the 1 nodes sees island-1-of-2, so the node that wrote it is gone",
        ),
    ],
)
def test_folders_that_do_not_fit_are_refused(folders_by_node, resume, message):
    with pytest.raises(UsageError, match=message):
        assign_islands(folders_by_node, "out", resume=resume)


LOST = IslandResult(rank=1, node="10.0.0.2:1", error="island 1 on node 10.0.0.2:1 was lost", is_lost=True)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config with a sink that keeps no journal."""
    path = tmp_path / "job.yaml"
    sink = {"uses": "tests.support.sink_stages.ListSink", "with": {"path": "out"}}
    source = {"uses": "stagepipe.sources.numbers", "with": {"count": 2}}
    path.write_text(yaml.safe_dump({"source": source, "sink": sink, "engine": {"ray": {"inside": "local"}}}))
    return path


def test_a_resume_without_a_journal_is_refused_before_anything_starts(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it fails
    with pytest.raises(UsageError, match="no sink of this config keeps a journal"):
        run_islands(config, IslandOptions(resume=True))


@pytest.mark.parametrize(
    "can_resume, way_out", [(True, "--resume continues the lost islands"), (False, "can only run again")]
)
def test_the_error_of_a_lost_node_offers_a_resume_where_there_is_one(can_resume, way_out):
    results = [IslandResult(rank=0, node="10.0.0.1:1"), LOST]
    with pytest.raises(RunError, match=rf"was lost\nthe other islands \(1\) have finished; .*{way_out}"):
        _raise_errors(results, can_resume=can_resume)


def test_any_error_of_an_island_is_in_its_result_with_its_cause(config, monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    request = IslandRequest(
        config=str(config), options=IslandOptions(), rank=0, count=1, working_folder=str(tmp_path), sys_path=()
    )
    island = Island(request, "10.0.0.1:1")

    def fail() -> bool:
        message = "no space left"
        raise OSError(message)

    monkeypatch.setattr(island, "_run", fail)
    result = island.run()
    assert (result.error, result.is_lost, result.is_usage_error) == ("OSError: no space left", False, False)
    assert re.search(r"Traceback.*OSError: no space left", capfd.readouterr().err, re.DOTALL)


class _Answers:
    """A cluster whose actors have answered already: a reference returns its answer."""

    def wait(self, references, count, timeout_s):
        return references, []

    def get(self, reference):
        return reference()


def island(rank: int, source: SourceIdentity | None) -> _StartedIsland:
    node = ClusterNode(str(rank), f"10.0.0.{rank}:1", 1.0, 0.0)
    asked = SimpleNamespace(remote=lambda: lambda: source)
    return _StartedIsland(rank, node, SimpleNamespace(identify_source=asked))


def test_islands_that_read_other_data_are_named():
    files = describe_files(["a", "b"], [1, 2], [0, 0])
    same = [island(0, SourceIdentity(2, files)), island(1, None), island(2, SourceIdentity(2, files))]
    _Sources(same).compare(_Answers(), same)
    for other, difference in [(SourceIdentity(3), "2 items .*, 3 on"), (SourceIdentity(2, None), None)]:
        islands = [same[0], island(1, other)]
        if difference is None:  # one that does not know its files is not compared by them
            _Sources(islands).compare(_Answers(), islands)
            continue
        with pytest.raises(RunError, match=rf"different data on each node: {difference} 10.0.0.1:1"):
            _Sources(islands).compare(_Answers(), islands)
    islands = [same[0], island(1, SourceIdentity(2, describe_files(["a", "c"], [1, 2], [0, 0])))]
    with pytest.raises(RunError, match=r"files with different names or sizes on nodes 10.0.0.0:1 and 10.0.0.1:1"):
        _Sources(islands).compare(_Answers(), islands)
