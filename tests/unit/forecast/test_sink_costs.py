"""The cost of a sink per row: the parts of a run are larger than those of a probe."""

import pytest

from stagepipe.forecast.costs import PartSample, compute_sink_cost

US = 1000


def make_sample(*, items=8, rows=8, part_us=800, row_us=10, collect_us=500, copy_us=80):
    return PartSample(
        items=items,
        rows=rows,
        write_ns=(part_us + row_us * rows) * US,
        half_rows=rows // 2,
        half_write_ns=(part_us + row_us * (rows // 2)) * US if rows > 1 else 0,
        item_bytes=1000 * items,
        collect_ns=collect_us * US,
        copy_ns=copy_us * US,
    )


def test_the_cost_of_a_part_is_shared_by_the_rows_of_a_run():
    cost = compute_sink_cost([make_sample()] * 3, max_items=800, max_bytes=10**9)
    assert cost.write_ns == pytest.approx(11 * US)
    assert cost.collect_ns == pytest.approx(10 * US + 420 * US / 800)
    assert (cost.items, cost.rows) == (24, 1.0)


def test_large_items_make_small_parts():
    cost = compute_sink_cost([make_sample()] * 3, max_items=800, max_bytes=4000)
    assert cost.write_ns == pytest.approx(210 * US)


def test_a_row_that_few_items_become_costs_more_than_an_item():
    samples = [make_sample(rows=2), make_sample(rows=0), make_sample(rows=2), make_sample(rows=2)]
    cost = compute_sink_cost(samples, max_items=800, max_bytes=10**9)
    assert cost.rows == 6 / 32
    assert cost.row_ns == pytest.approx((10 * 6 / 32 + 800 / 800) * US / (6 / 32))


def test_a_part_of_one_row_is_all_row():
    cost = compute_sink_cost([make_sample(items=1, rows=1)], max_items=800, max_bytes=10**9)
    assert cost.write_ns == pytest.approx(810 * US)


def test_no_row_costs_nothing():
    assert compute_sink_cost([make_sample(rows=0)], max_items=8, max_bytes=10**9).row_ns == 0
    assert compute_sink_cost([], max_items=8, max_bytes=10**9).items == 0
