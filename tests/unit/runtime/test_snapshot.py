"""The histograms of a run are those of all its workers."""

import pytest

from stagepipe import Pipeline
from stagepipe.runtime import take_run_timings
from stagepipe.timing import RECEIVE_PHASES, SEND_PHASES
from tests.support.pipelines import pipeline, stage

pytestmark = pytest.mark.timeout(60)


def test_timings_are_summed_over_the_workers_of_both_sides():
    with Pipeline(pipeline(stage("same", workers=2), source=40)) as running:
        list(running)
    timings = take_run_timings(running._run._supervisor)
    assert list(timings.stages) == ["source", "same"]
    assert timings.stages["same"].run_histogram.count == 40
    for hop in timings.hops:
        assert {name: histogram.count for name, histogram in hop.phase_histograms.items()} == dict.fromkeys(
            (*SEND_PHASES, *RECEIVE_PHASES), 40
        )
