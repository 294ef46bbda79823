"""Parts of sinks: what bounds them, and how many are in flight."""

from typing import Any

import pytest

from stagepipe.config import load
from stagepipe.costs import CostCurves
from stagepipe.machine import Machine, SystemLimits
from stagepipe.plan import Plan, lower_sinks, make_plan
from stagepipe.plan.system_requirements import find_shortages
from tests.support.pipelines import pipeline

CURVES = CostCurves.from_points((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))


def make(*, workers: int = 1, part_bytes: str | None = None, **keys: Any) -> Plan:
    arguments = {"path": "out"} if part_bytes is None else {"path": "out", "part_bytes": part_bytes}
    sink = {"uses": "stagepipe.sinks.npz_shards", "workers": workers, "with": arguments}
    return make_plan(lower_sinks(load(pipeline(sink=sink, **keys))), Machine(4, 8 << 30), CURVES)


@pytest.mark.parametrize("part_bytes", [None, "4MB"])
def test_neither_memory_nor_workers_change_a_part(part_bytes: str | None):
    plans = [make(workers=n, part_bytes=part_bytes, **keys) for n in (1, 9) for keys in ({}, {"memory": "64MiB"})]
    arguments = [process.first_stage.target.arguments for plan in plans for process in plan.processes[1:2]]
    assert all(each["max_bytes"] == (16_000_000 if part_bytes is None else 4_000_000) for each in arguments)


@pytest.mark.parametrize("memory,window", [("1GiB", 11), ("64MiB", 3), ("24MB", 1)])
def test_as_many_parts_are_in_flight_as_fit_into_the_memory(memory: str, window: int):
    assert make(workers=9, memory=memory).segments[1].window == window


def test_a_memory_without_room_for_a_part_is_refused():
    limits = SystemLimits(max_memory_bytes=1 << 40)
    assert list(find_shortages(make(memory="20MB"), limits)) == []
    (message,) = find_shortages(make(memory="18MB"), limits)
    assert "raise `memory` to 20MB, or set a smaller `part_bytes`" in message
