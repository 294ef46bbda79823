"""A run whose calibration is false corrects itself, and its report says when and why."""

import dataclasses

import pytest

from stagepipe import Pipeline
from stagepipe.core import VERSION
from stagepipe.plan import Curves
from stagepipe.plan.calibration import kept
from tests.zoo.pipelines import pipeline, stage

HONEST = Curves.simple(
    (64, 3500, 4096, 16_384, 65_536, 262_144, 4 << 20),
    (10_000, 11_000, 90_000, 90_000, 160_000, 500_000, 8_000_000),
    (25_000, 30_000, 45_000, 45_000, 45_000, 50_000, 400_000),
    20_000,
)
"""As a machine is that runs something else besides."""


def plant(monkeypatch, folder, curves: Curves) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    kept.keep(curves, VERSION)


def cheaper_pipe(times: float) -> Curves:
    return dataclasses.replace(
        HONEST, pipe=dataclasses.replace(HONEST.pipe, ns=tuple(int(ns / times) for ns in HONEST.pipe.ns))
    )


def hop_of(config, hop: int = 1):
    with Pipeline(config) as running:
        for _ in running:
            pass
    return running.report().hops[hop]


def arrays(count: int, nbytes: int, **keys):
    return pipeline(stage("filled", with_={"nbytes": nbytes}), stage("touched"), source=count, **keys)


def test_a_pipe_that_is_planted_ten_times_too_cheap_is_left_within_a_thousand_items(tmp_path, monkeypatch):
    plant(monkeypatch, tmp_path, cheaper_pipe(10))
    hop = hop_of(arrays(3000, 65_536))
    assert hop.transport.changes, "the run did not notice"
    (first, *_) = hop.transport.changes
    assert first.messages <= 1000
    assert first.from_bytes > 65_536 > first.to_bytes
    assert "predicted 16 us" in first.reason
    assert hop.messages.pipe <= 1000
    assert hop.messages.shared_memory >= 2000
    assert hop.transport.threshold_bytes < 65_536
    assert hop.predicted.error > 0


def test_a_true_calibration_is_left_alone(tmp_path, monkeypatch):
    plant(monkeypatch, tmp_path, HONEST)
    for nbytes in (100, 1_200_000):
        assert not hop_of(arrays(600, nbytes)).transport.changes


@pytest.mark.parametrize("transport", [{"mode": "pipe"}, {"threshold": "1MB"}], ids=str)
def test_what_the_user_has_decided_is_not_learnt_away(tmp_path, monkeypatch, transport):
    plant(monkeypatch, tmp_path, cheaper_pipe(10))
    hop = hop_of(arrays(600, 65_536, transport=transport))
    assert not hop.transport.changes
