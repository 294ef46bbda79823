"""Two runs compared: a large difference is beyond their noise, a small one within, and without series none can tell."""

from __future__ import annotations

import msgspec
import pytest

from stagepipe.report import WorkerChangeRecord, compare_runs
from tests.support.reports import make_report


def with_rate(report, rate):
    return msgspec.structs.replace(report, run=msgspec.structs.replace(report.run, items_per_s=rate))


@pytest.mark.parametrize("rate, expected", [(640.0, False), (645.0, False), (2000.0, True), (100.0, True)])
def test_difference_is_judged_by_the_noise_of_the_runs(rate, expected):
    comparison = compare_runs(make_report(), with_rate(make_report(seed=1), rate))
    assert comparison.rate.is_beyond_noise is expected
    assert ("beyond" if expected else "within") in comparison.sentence


@pytest.mark.parametrize("points", [0, 12])
def test_short_or_missing_series_cannot_tell(points):
    comparison = compare_runs(make_report(points=points), with_rate(make_report(), 900.0))
    assert comparison.rate.is_beyond_noise is None
    assert "cannot tell" in comparison.sentence


def test_stages_that_only_one_run_has_are_named():
    comparison = compare_runs(make_report(stages=3), make_report(stages=4))
    assert "only in the second run: detect" in comparison.notes
    assert [stage.name for stage in comparison.stages] == ["files", "decode", "augment", "normalise"]


def test_changes_of_workers_are_noted():
    change = WorkerChangeRecord(at_ns=0, stage="decode", workers=3, delta=1)
    scaled = msgspec.structs.replace(make_report(), worker_changes=(change,))
    assert "decode had 2 → 3 workers in the second run" in compare_runs(make_report(), scaled).notes
