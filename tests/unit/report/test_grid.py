"""The verdict is right on every combination of a sink, its parts, the number of items, the work, and trouble.

The records in `recorded_grid/` are of real runs on two CPUs; the other combinations are scaled from them
(`tests.support.grid_replay`). `python -m benchmarks.verdicts.grid --records FOLDER` writes them.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

from benchmarks.verdicts.grid import SINKS, Combination, find_faults, list_grid, list_live
from benchmarks.verdicts.turn import decode_record
from stagepipe.report import build_report
from tests.support.grid_replay import replay

_FOLDER = Path(__file__).parent / "recorded_grid"


@pytest.fixture(scope="module")
def records():
    live = {each.name: each for each in list_live()}
    return {live[path.stem]: decode_record(path.read_text()) for path in sorted(_FOLDER.iterdir())}


@pytest.fixture(scope="module")
def reports(records):
    replayed = {each: replay(each, records) for each in list_grid()}
    return {each: (record, build_report(record)) for each, record in replayed.items()}


@pytest.mark.parametrize("each", list_grid(), ids=lambda each: each.name)
def test_the_verdict_is_right(each, reports):
    record, report = reports[each]
    assert not find_faults(each, record, report), report.verdict


def test_each_run_has_its_record():
    assert sorted(path.stem for path in _FOLDER.iterdir()) == sorted(each.name for each in list_live())


def test_the_runs_cover_every_pair():
    def list_pairs(each):
        values = [("sink", each.sink), ("items", each.items), ("work", each.work), ("trouble", each.trouble)]
        return set(itertools.combinations([*values, ("parts", each.parts)], 2))

    live = list_live()
    assert len(live) <= 60
    assert set().union(*map(list_pairs, live)) == set().union(*map(list_pairs, list_grid()))


@pytest.mark.parametrize("sink", [sink for sink in SINKS if sink != "none"])
def test_a_sink_that_writes_one_part_at_the_end_is_not_blamed(sink, reports):
    """The stage works for seconds, the sink for a fraction of that, but it alone works at the end."""
    _, report = reports[Combination(sink=sink, items=1_000, work="naps", trouble="none")]
    assert (report.verdict.kind, report.verdict.limited_by) in {("stage", "work"), ("machine", "other programs")}


def test_a_verdict_that_blames_the_sink_is_found(reports):
    each = Combination(sink="jsonl", items=1_000, work="naps", trouble="none")
    record, report = reports[each]
    verdict = msgspec.structs.replace(report.verdict, kind="sink", limited_by="jsonl")
    assert "sink jsonl instead of" in " ".join(find_faults(each, record, _with(report, verdict)))


def test_a_hop_after_restarts_is_found(reports):
    each = Combination(sink="none", items=20, work="computes", trouble="kill")
    record, report = reports[each]
    verdict = msgspec.structs.replace(report.verdict, kind="hop", limited_by="before -> work")
    assert "hop before -> work instead of" in " ".join(find_faults(each, record, _with(report, verdict)))


def test_a_contradiction_is_found(reports):
    each = Combination(sink="none", items=20_000, work="trivial", trouble="none")
    record, report = reports[each]
    assert (report.verdict.limited_by, report.verdict.kind) == ("hops", "hop")
    assert "fuse=true" in report.verdict.fix
    verdict = msgspec.structs.replace(report.verdict, fix="", advice="No config change will help: do less.")
    found = " ".join(find_faults(each, record, _with(report, verdict)))
    assert "'No config change will help' beside" in found
    assert "and no fix" in found


def test_an_inner_process_is_found(reports):
    each = Combination(sink="jsonl", items=20, work="naps", trouble="none")
    record, report = reports[each]
    verdict = msgspec.structs.replace(report.verdict, limited_by="jsonl.collect")
    assert "`jsonl.collect` is nothing that the config has" in find_faults(each, record, _with(report, verdict))


def _with(report, verdict):
    return msgspec.structs.replace(report, verdict=verdict)
