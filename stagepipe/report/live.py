"""A run while it goes, as `stagepipe top` shows it: the schema `stagepipe.top/1`. Pure.

Within a schema version, fields may be added (with a default) but are never renamed or removed. Durations are integer
ns, sizes are bytes, shares are 0 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from stagepipe.report.limits import MIN_LIMITING_UTILIZATION

LIVE_SCHEMA = "stagepipe.top/1"


class LivePercentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in ns, accurate to 2 %: of the last seconds, or of the whole run if there was none in them."""

    p50: int = 0
    p99: int = 0


class LiveStage(msgspec.Struct, frozen=True, kw_only=True):
    """One process over the last seconds: a stage and the stages `fused` into it. The last one is the consumer, `sink`.

    `busy`, `starved` and `blocked` are shares of its workers' time: in the stages' functions, waiting for input, and
    for room downstream. `work` is `busy` and the time on its hops: the process with the most of it limits the run.
    `queued` is the mean number of messages that wait for it, `run_ns` the time of the first stage for an item. `errors`
    to `restarts` count since the start of the run; `errors` counts failed attempts, also those that were repeated.
    `rss_bytes` is the resident memory of its workers, shared memory included; for `sink` that of the run's own process.
    """

    name: str
    workers: int
    fused: tuple[str, ...] = ()
    is_starting: bool = False
    items: int = 0
    items_per_s: float = 0.0
    busy: float = 0.0
    starved: float = 0.0
    blocked: float = 0.0
    work: float = 0.0
    queued: float = 0.0
    run_ns: LivePercentiles = LivePercentiles()
    rss_bytes: int = 0
    errors: int = 0
    retries: int = 0
    skipped: int = 0
    restarts: int = 0


class LiveHop(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """One hop between processes. `messages` count since the start of the run; `cost_ns` is the work on both sides."""

    source: str
    target: str
    messages: int = 0
    cost_ns: LivePercentiles = LivePercentiles()
    queue_ns: LivePercentiles = LivePercentiles()


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment. `state` is `starting` until all workers are ready.

    `items_done` of `items_total` source items of the epoch are through; None: the length is unknown. `limited_by` is
    the stage that limits the run at the moment; empty if none works most of its time.
    """

    name: str
    run_id: str
    pid: int
    state: Literal["starting", "running", "ended"]
    elapsed_ns: int
    items_done: int
    items_total: int | None
    items_out: int
    samples_out: int
    items_per_s: float
    samples_per_s: float
    limited_by: str
    shared_memory_bytes: int
    shared_memory_limit_bytes: int
    stages: tuple[LiveStage, ...]
    hops: tuple[LiveHop, ...]
    schema: str = LIVE_SCHEMA


def find_limiting_stage(stages: Sequence[LiveStage]) -> str:
    """Return the stage that works most of its time, as the verdict of a report would; "" if none does.

    >>> find_limiting_stage([LiveStage(name="decode", workers=2, work=0.93), LiveStage(name="sink", workers=1)])
    'decode'
    """
    most_used = max((stage for stage in stages if not stage.is_starting), key=lambda stage: stage.work, default=None)
    return most_used.name if most_used is not None and most_used.work >= MIN_LIMITING_UTILIZATION else ""


def live_run_to_json(run: LiveRun) -> bytes:
    """Return a live run as one line of JSON, `schema` first."""
    return msgspec.json.encode({"schema": run.schema, **msgspec.to_builtins(run)}) + b"\n"
