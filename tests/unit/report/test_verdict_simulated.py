"""The verdict names the limit of simulated pipelines, where it is known.

The simulation is a tandem of queues with blocking after service: a worker takes the next item, works on it, and holds
it until the queue after it has room (Perros, Queueing Networks with Blocking, 1994).
"""

from __future__ import annotations

import heapq
import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from stagepipe.report.verdict import judge
from stagepipe.timing import Histogram

ITEMS = 400
MEAN_NS = 1_000_000
QUEUE_SIZE = 8  # items in a queue between two stages


def simulate(services, workers):
    """Return (busy, starved, blocked) of each stage, and the end of the run, in ns."""
    idle_since = [[0.0] * count for count in workers]
    totals = [[0.0, 0.0, 0.0] for _ in workers]
    starts = [[] for _ in workers]
    end = 0.0
    for item in range(ITEMS):
        ready = 0.0
        for stage, service in enumerate(services):
            free_at = heapq.heappop(idle_since[stage])
            start = max(ready, free_at)
            finish = start + service[item]
            next_starts = starts[stage + 1] if stage + 1 < len(workers) else []
            is_queue_full = next_starts and item >= QUEUE_SIZE
            ready = max(finish, next_starts[item - QUEUE_SIZE]) if is_queue_full else finish
            heapq.heappush(idle_since[stage], ready)
            starts[stage].append(start)
            for part, spent in enumerate((service[item], start - free_at, ready - finish)):
                totals[stage][part] += spent
        end = max(end, ready)
    for stage, times in enumerate(idle_since):  # a worker waits for input from its last item to the end of the run
        totals[stage][1] += sum(end - time for time in times)
    return totals, end


@st.composite
def pipelines(draw):
    """Service times of a source, one to three stages and a consumer. One of them is the slowest by a third."""
    length = draw(st.integers(3, 5))
    workers = [1, *(draw(st.integers(1, 3)) for _ in range(length - 2)), 1]
    limit = draw(st.integers(0, length - 1))
    rng = random.Random(draw(st.integers(0, 2**32)))
    loads = [1.0 if stage == limit else draw(st.floats(0.05, 0.65)) for stage in range(length)]
    services = [
        [load * count * MEAN_NS * rng.uniform(0.7, 1.3) for _ in range(ITEMS)]
        for load, count in zip(loads, workers, strict=True)
    ]
    return services, workers, limit


@given(pipelines())
@settings(max_examples=60, deadline=None)
def test_the_limit_of_a_simulated_pipeline_is_named(make, pipeline):
    services, workers, limit = pipeline
    totals, end = simulate(services, workers)
    names = ["source", *(f"stage{i}" for i in range(1, len(workers) - 1)), "consumer"]
    stages = [
        make.stage(
            names[index],
            workers=workers[index],
            items=ITEMS,
            wall_ns=int(end * workers[index]),
            busy_ns=int(totals[index][0]),
            starved_ns=int(totals[index][1]),
            blocked_ns=int(totals[index][2]),
            run_histogram=Histogram.from_values_ns([int(ns) for ns in services[index]]),
            cpu_ns=0,
        )
        for index in range(len(workers) - 1)
    ]
    record = make.record(
        *stages,
        wall_ns=int(end),
        consumer={"busy_ns": int(totals[-1][0]), "wait_ns": int(totals[-1][1])},
        first_item_ns=int(sum(service[0] for service in services[:-1])),
        source_end_ns=int(end),
        hops=tuple(make.hop(a, b, cost_ns=1000) for a, b in itertools.pairwise(names)),
        cpus=64,
    )
    verdict = judge(record)
    assert verdict.limited_by == names[limit]
    assert verdict.kind == {"source": "source", "consumer": "consumer"}.get(names[limit], "stage")
    assert verdict.confidence >= 0.5
