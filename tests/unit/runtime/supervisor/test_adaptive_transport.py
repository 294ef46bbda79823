"""A run with a wrong calibration corrects its transport rules, and its report says when and why."""

import dataclasses

import pytest

from stagepipe import Pipeline
from stagepipe.calibration import cache
from stagepipe.core import VERSION
from stagepipe.costs import CostCurves
from tests.support.pipelines import pipeline, stage

TRUE_CURVES = CostCurves.from_points(
    (64, 3500, 4096, 16_384, 65_536, 262_144, 4 << 20),
    (10_000, 11_000, 90_000, 90_000, 160_000, 500_000, 8_000_000),
    (25_000, 30_000, 45_000, 45_000, 45_000, 50_000, 400_000),
    20_000,
)
"""Costs as measured on a machine with other load."""


def save_calibration(monkeypatch, folder, curves: CostCurves) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    cache.save_curves(curves, VERSION)


def with_cheaper_pipe(factor: float) -> CostCurves:
    return dataclasses.replace(
        TRUE_CURVES,
        pipe=dataclasses.replace(TRUE_CURVES.pipe, ns=tuple(int(ns / factor) for ns in TRUE_CURVES.pipe.ns)),
    )


def run_and_get_hop(config, hop: int = 1):
    with Pipeline(config) as running:
        for _ in running:
            pass
    return running.report().hops[hop]


def array_pipeline(count: int, nbytes: int, **keys):
    return pipeline(stage("filled", with_={"nbytes": nbytes}), stage("touched"), source=count, **keys)


def test_a_pipe_calibrated_ten_times_too_cheap_is_abandoned_within_a_thousand_items(tmp_path, monkeypatch):
    save_calibration(monkeypatch, tmp_path, with_cheaper_pipe(10))
    hop = run_and_get_hop(array_pipeline(3000, 65_536))
    assert hop.transport.changes, "the run did not notice"
    (first, *_) = hop.transport.changes
    assert first.messages <= 1000
    assert first.from_bytes > 65_536 > first.to_bytes
    assert "predicted 16 µs" in first.reason
    assert hop.messages.pipe <= 1000
    assert hop.messages.shared_memory >= 2000
    assert hop.transport.threshold_bytes < 65_536
    assert hop.predicted.measured_ratio > 0


def test_a_true_calibration_changes_no_rule(tmp_path, monkeypatch):
    save_calibration(monkeypatch, tmp_path, TRUE_CURVES)
    for nbytes in (100, 1_200_000):
        assert not run_and_get_hop(array_pipeline(600, nbytes)).transport.changes


@pytest.mark.parametrize("transport", [{"mode": "pipe"}, {"threshold": "1MB"}], ids=str)
def test_a_transport_that_the_config_sets_is_never_changed(tmp_path, monkeypatch, transport):
    save_calibration(monkeypatch, tmp_path, with_cheaper_pipe(10))
    hop = run_and_get_hop(array_pipeline(600, 65_536, transport=transport))
    assert not hop.transport.changes
