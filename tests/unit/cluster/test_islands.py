"""What islands refuse, and how one ends: without a cluster."""

import re
import sys
from pathlib import Path

import pytest
import yaml

from stagepipe.cli.islands import _raise_errors
from stagepipe.cluster import IslandOptions, IslandResult, run_islands
from stagepipe.cluster.island import Island, IslandRequest
from stagepipe.core import RunError, UsageError

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
    "can_resume, way_out", [(True, "--resume goes on with what was lost"), (False, "can only be run again")]
)
def test_the_error_of_a_lost_node_offers_a_resume_where_there_is_one(can_resume, way_out):
    results = [IslandResult(rank=0, node="10.0.0.1:1"), LOST]
    with pytest.raises(RunError, match=rf"was lost\nthe other islands \(1\) went on to their end; .*{way_out}"):
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
