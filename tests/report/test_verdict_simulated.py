"""On simulated pipelines whose limit is known, the verdict names it.

The simulation is a tandem of queues with blocking after service: a worker takes the next item when it is there, works,
and keeps it until there is room in the queue behind (Perros, Queueing Networks with Blocking, 1994).
"""

from __future__ import annotations

import heapq
import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from stagepipe.report import judge
from stagepipe.timing import Histogram

ITEMS = 400
MEAN_NS = 1_000_000
ROOM = 8  # items that a queue between two stages holds


def simulate(services, workers):
    """The time that each stage worked, starved and blocked, in ns: lists of (busy, starved, blocked), and the end."""
    free = [[0.0] * count for count in workers]
    totals = [[0.0, 0.0, 0.0] for _ in workers]
    starts = [[] for _ in workers]
    end = 0.0
    for item in range(ITEMS):
        ready = 0.0
        for at, service in enumerate(services):
            idle_since = heapq.heappop(free[at])
            start = max(ready, idle_since)
            finish = start + service[item]
            follower = starts[at + 1] if at + 1 < len(workers) else []
            ready = max(finish, follower[item - ROOM]) if follower and item >= ROOM else finish
            heapq.heappush(free[at], ready)
            starts[at].append(start)
            for part, spent in enumerate((service[item], start - idle_since, ready - finish)):
                totals[at][part] += spent
        end = max(end, ready)
    for at, idle in enumerate(free):  # from its last item to the end of the run, a worker waits for input
        totals[at][1] += sum(end - since for since in idle)
    return totals, end


@st.composite
def pipelines(draw):
    """Service times of a source, one to three stages and a consumer, one of which is by a third the slowest."""
    length = draw(st.integers(3, 5))
    workers = [1, *(draw(st.integers(1, 3)) for _ in range(length - 2)), 1]
    limit = draw(st.integers(0, length - 1))
    rng = random.Random(draw(st.integers(0, 2**32)))
    load = [1.0 if at == limit else draw(st.floats(0.05, 0.65)) for at in range(length)]
    services = [
        [load[at] * workers[at] * MEAN_NS * rng.uniform(0.7, 1.3) for _ in range(ITEMS)] for at in range(length)
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
            names[at],
            workers=workers[at],
            items=ITEMS,
            wall_ns=int(end * workers[at]),
            busy_ns=int(totals[at][0]),
            starved_ns=int(totals[at][1]),
            blocked_ns=int(totals[at][2]),
            run=Histogram.of([int(ns) for ns in services[at]]),
            cpu_ns=0,
        )
        for at in range(len(workers) - 1)
    ]
    record = make.record(
        *stages,
        wall_ns=int(end),
        consumer_busy_ns=int(totals[-1][0]),
        consumer_wait_ns=int(totals[-1][1]),
        first_item_ns=int(sum(service[0] for service in services[:-1])),
        source_end_ns=int(end),
        hops=tuple(make.hop(a, b, cost_ns=1000) for a, b in itertools.pairwise(names)),
        cpus=64,
    )
    verdict = judge(record)
    assert verdict.limited_by == names[limit]
    assert verdict.kind == {"source": "source", "consumer": "consumer"}.get(names[limit], "stage")
    assert verdict.confidence >= 0.5
