"""How a run went over time, and how large its messages were: parts of the report. Pure.

The types are a part of the schema `stagepipe.report/2`. Durations are integer ns, sizes are bytes.
"""

from __future__ import annotations

import msgspec


class StageSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One process over time, named after its first stage: a value for each interval of `Series.times_ns`.

    `items_per_s` are the items that its workers finished. `busy`, `starved` and `blocked` are shares of the time of its
    workers, 0 to 1; the rest is overhead and start-up.
    """

    name: str
    items_per_s: tuple[float, ...] = ()
    busy: tuple[float, ...] = ()
    starved: tuple[float, ...] = ()
    blocked: tuple[float, ...] = ()


class HopSeries(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """One hop between processes over time: the mean number of messages that waited to be received, in each interval.

    By Little's law (Operations Research 9, 1961) it is the sum of the waits of the received messages, divided by the
    time.
    """

    source: str
    target: str
    queued: tuple[float, ...] = ()


class MemoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of all workers together at one time, ns after the start of the run."""

    time_ns: int
    bytes: int


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The run over time. `times_ns` are the ends of the intervals, ns after the start; at most 240, evenly spaced.

    `shared_memory_bytes` is the shared memory in use at the end of each interval. `rss_bytes` is sampled about every
    second, `pss_bytes` every ten: the resident and the proportional memory of the workers.
    """

    times_ns: tuple[int, ...] = ()
    stages: tuple[StageSeries, ...] = ()
    hops: tuple[HopSeries, ...] = ()
    shared_memory_bytes: tuple[int, ...] = ()
    rss_bytes: tuple[MemoryPoint, ...] = ()
    pss_bytes: tuple[MemoryPoint, ...] = ()


class SizeCount(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a hop whose payload has `min_bytes` and more, and less than `max_bytes`."""

    min_bytes: int
    max_bytes: int
    messages: int
