"""The progress of several islands as one."""

from dataclasses import replace

from stagepipe.cluster import add_progress
from stagepipe.report import Progress

ONE = Progress(
    elapsed_ns=5,
    items_in=10,
    items_done=8,
    items_total=20,
    items_out=7,
    samples_out=14,
    samples_per_s=3.0,
    starting=("decode",),
    busiest="",
    items_per_s=2.0,
)


def test_amounts_are_added_and_times_are_not():
    total = add_progress([ONE, replace(ONE, elapsed_ns=9, items_in=1, busiest="resize", starting=("decode", "crop"))])
    assert total == Progress(
        elapsed_ns=9,
        items_in=11,
        items_done=16,
        items_total=40,
        items_out=14,
        samples_out=28,
        samples_per_s=6.0,
        starting=("decode", "crop"),
        busiest="resize",
        items_per_s=4.0,
    )


def test_a_total_that_one_does_not_know_is_not_known():
    assert add_progress([ONE, replace(ONE, items_total=None)]).items_total is None


def test_before_any_island_has_started_there_is_nothing():
    assert add_progress([]).items_in == 0
