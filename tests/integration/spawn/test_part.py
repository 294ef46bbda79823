"""A part of the contract and of recovery, for `make test`; `test_whole` has all of both suites and of chaos."""

import os

from tests.integration.test_engine_contract import (
    test_an_item_too_large_for_a_forced_pipe_between_several_workers_is_refused,
    test_any_order_fills_batches_in_order_of_arrival,
)
from tests.integration.test_recovery import (
    test_a_worker_killed_before_the_first_item_and_between_two_epochs,
    test_generators_and_filters_survive_a_kill_between_their_outputs,
)
from tests.support.pipelines import outputs, pipeline, stage

__all__ = [
    "test_a_worker_killed_before_the_first_item_and_between_two_epochs",
    "test_an_item_too_large_for_a_forced_pipe_between_several_workers_is_refused",
    "test_any_order_fills_batches_in_order_of_arrival",
    "test_generators_and_filters_survive_a_kill_between_their_outputs",
]


def test_the_workers_of_these_suites_are_spawned():
    ((_, _, parent),) = outputs(pipeline(stage("tests.support.start_stages.tell_parent"), source=1))
    assert parent == os.getpid()
