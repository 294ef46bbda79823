"""The state of a current run as one struct: `LiveRun`, which `Pipeline.progress()` returns.

The progress bar, the plain line, `stagepipe top`, its JSON (schema `stagepipe.top/1`), the metrics and the series all
use it. `COLUMNS` defines the columns of the tables. Within a schema version, fields may be added (with a default) but
are never renamed or removed. Durations are integer ns, sizes are bytes, shares are 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from stagepipe.core import format_bytes, format_ns, format_percent, format_rate, make_html_table
from stagepipe.report.record import StageTally, WorkerLoad
from stagepipe.report.utilization import MIN_LIMITING_UTILIZATION, format_count

LIVE_SCHEMA = "stagepipe.top/1"


class LiveWorkerChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a row's number of workers from `before` to `after`, seen `at_ns` after the start of the run."""

    stage: str
    before: int
    after: int
    at_ns: int


class LivePercentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in ns, accurate to 2 %: of the last seconds, or of the whole run if the last seconds had none."""

    p50: int = 0
    p99: int = 0


class LiveStage(StageTally, frozen=True, kw_only=True):
    """One row of a run: the source, a stage with its `fused` stages, a sink, or the consumer.

    Fields that end in `_ns` are in ns, `rss_bytes` is in bytes, and shares are from 0 to 1. `workers` is the current
    number, of which `ready_workers` are ready; `min_workers` and `max_workers` are its bounds, or 0 if it is fixed.

    Figures of the last seconds:

    - `items_per_s`: source items per second.
    - `busy`, `starved`, `blocked`: shares of the workers' time in the stages' functions, waiting for input, and waiting
      for room downstream. A row of several processes (a dataset's readers, a sink's writers) has those of the busiest.
    - `work`: the share of `busy` plus the time on both hops. The row with the largest share limits the run.
    - `queued`: the mean number of waiting messages. `run_ns`: the time of the row's first stage per item.

    Figures since the start, summed over all workers, including those that have ended:

    - `items`: the source items that the row has finished. The other counts are sums over the row's stages.
    - `wall_ns`: the time since each worker's start. The counters cover `covered_ns` of it. Starts and restarts took
      `starting_ns`, waiting for input `starved_ns`, waiting for room `blocked_ns`, and work on both hops `hop_ns`.
    - `cpu_ns`: the CPU time. `received` messages waited for `queue_ns` in total. `worker_loads` has each worker's work.
    - `restarts`: the number of workers that died and were replaced. `stages`: the counts of each stage in the row.

    `rss_bytes` is the resident memory of the workers, including shared memory. For the consumer and for a sink in the
    run's own process, it is the memory of that process.
    """

    kind: Literal["source", "stage", "sink", "consumer"] = "stage"
    workers: int = 1
    min_workers: int = 0
    max_workers: int = 0
    fused: tuple[str, ...] = ()
    is_starting: bool = False
    items_per_s: float = 0.0
    busy: float = 0.0
    starved: float = 0.0
    blocked: float = 0.0
    work: float = 0.0
    queued: float = 0.0
    run_ns: LivePercentiles = LivePercentiles()
    rss_bytes: int = 0
    restarts: int = 0
    ready_workers: int = 0
    covered_ns: int = 0
    wall_ns: int = 0
    starting_ns: int = 0
    starved_ns: int = 0
    blocked_ns: int = 0
    cpu_ns: int = 0
    hop_ns: int = 0
    received: int = 0
    queue_ns: int = 0
    worker_loads: tuple[WorkerLoad, ...] = ()
    stages: tuple[StageTally, ...] = ()


class LiveHop(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """One hop between two rows: counts and sizes in bytes since the start of the run.

    `cost_ns` is the work on both sides per message, `queue_ns` the time that a message waits to be received, in ns.
    """

    source: str
    target: str
    messages: int = 0
    cost_ns: LivePercentiles = LivePercentiles()
    queue_ns: LivePercentiles = LivePercentiles()
    pipe_messages: int = 0
    shared_memory_messages: int = 0
    mixed_messages: int = 0
    inline_bytes: int = 0
    copied_bytes: int = 0
    zero_copy_bytes: int = 0


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment.

    `state` is `starting` until all workers are ready. The source has drawn `items_in` items of the epoch; `items_done`
    of `items_total` (None if unknown) have reached the first barrier or the output. `items_out`, `samples_out` and
    `files_out` count the output since the start: an item may be a batch of samples. `items_per_s` counts source items.
    `source_end_ns` is the time at which the source had sent its last item; 0 before. `limited_by` is the row that
    limits the run now, or "" if none works most of its time. `last_change` is the last change of a number of workers
    since the first call. Durations are in ns, sizes in bytes. An inline run has no `stages` and `hops`.

    >>> LiveRun(elapsed_ns=20 * 10**9, items_done=1234, items_total=2000, items_per_s=345.2).items_per_s
    345.2
    """

    name: str = ""
    run_id: str = ""
    pid: int = 0
    state: Literal["starting", "running", "ended"] = "running"
    elapsed_ns: int = 0
    items_in: int = 0
    items_done: int = 0
    items_total: int | None = None
    items_out: int = 0
    samples_out: int = 0
    files_out: int = 0
    items_per_s: float = 0.0
    samples_per_s: float = 0.0
    limited_by: str = ""
    last_change: LiveWorkerChange | None = None
    shared_memory_bytes: int = 0
    shared_memory_peak_bytes: int = 0
    shared_memory_limit_bytes: int = 0
    copied_out_items: int = 0
    source_end_ns: int = 0
    stages: tuple[LiveStage, ...] = ()
    hops: tuple[LiveHop, ...] = ()
    consumer_wait_ns: int = 0  # since the start: waiting for an item, and working on one
    consumer_busy_ns: int = 0
    items_sent: int = 0  # sent by the source in all epochs; an item that is read again counts once
    taken_at_ns: int = 0  # of CLOCK_MONOTONIC
    schema: str = LIVE_SCHEMA

    @property
    def starting(self) -> tuple[str, ...]:
        """The rows with workers that are not ready yet."""
        return tuple(stage.name for stage in self.stages if stage.is_starting)

    def format_items(self, total: int | None = None) -> str:
        """Format the progress of the run; `total` is the number of source items if the run does not know it.

        >>> LiveRun(items_done=1234, items_total=2000, items_out=19, samples_out=1216).format_items()
        '1,234 of 2,000 items in, 19 batches out'
        """
        total = total if self.items_total is None else self.items_total
        of_total = "" if total is None else f" of {total:,}"
        is_batches = self.samples_out != self.items_out and not any(stage.kind == "sink" for stage in self.stages)
        out = f"{self.items_out:,} batches" if is_batches else ""
        out = f"{self.files_out:,} file{'' if self.files_out == 1 else 's'}" if self.files_out else out
        return f"{self.items_done:,}{of_total} items in" + (f", {out} out" if out else "")

    def format_last_change(self, arrow: str = "→") -> str:
        """Format the last change of a number of workers; "" without one.

        >>> change = LiveWorkerChange(stage="decode", before=3, after=4, at_ns=8 * 10**9)
        >>> LiveRun(elapsed_ns=20 * 10**9, last_change=change).format_last_change()
        'decode 3 → 4 workers, 12 s ago'
        """
        change = self.last_change
        if change is None:
            return ""
        ago = format_ns(max(self.elapsed_ns - change.at_ns, 0))
        return f"{change.stage} {change.before} {arrow} {format_count(change.after, 'workers')}, {ago} ago"

    def pair_rows(self) -> list[tuple[LiveStage, LiveHop]]:
        """Return each row with the hop that leads to it; for the first row, that hop has no target."""
        no_hop = LiveHop(source="", target="")
        return list(zip(self.stages, [no_hop, *self.hops] if self.hops else [no_hop] * len(self.stages), strict=True))

    def _repr_html_(self) -> str:
        """Return a table of the rows, for notebooks."""
        columns = [column for column in COLUMNS if column.heading != BAR_HEADING]
        rows = [[row.name, *(column.cell(row, hop) for column in columns)] for row, hop in self.pair_rows()]
        limit = f"limited by {self.limited_by}" if self.limited_by else "no limit: no stage works most of its time"
        heading = ["stage", *(column.heading for column in columns)]
        notes = [limit, *filter(None, [self.format_last_change()])]
        return make_html_table(f"{self.name}: {self.format_items()}, {self.state}", heading, rows, notes)


@dataclass(frozen=True, kw_only=True)
class LiveColumn:
    """A column of the tables of a run. `cell` formats it from a row and the hop that leads to the row.

    The hop of the first row has no target.

    Views: `progress` is the progress bar of `stagepipe run`, `top` is `stagepipe top` and a notebook. On a narrow
    terminal, columns with a larger `rank` are left out first. `width` is the maximum width of a cell in characters. A
    column with `only_if_any` is left out while all of its cells are empty; a column with `is_count` also has figures
    for a row that is starting.
    """

    heading: str
    width: int
    rank: int
    cell: Callable[[LiveStage, LiveHop], str]
    views: tuple[str, ...] = ("top",)
    only_if_any: bool = False
    is_count: bool = False


BAR_HEADING = "time"
"""The heading of the bar of shares, which is drawn instead of text."""


def _if_any(format_value: Callable[[int], str], value: int) -> str:
    return format_value(value) if value else ""


_COUNT = "{:,}".format
_BOTH = ("progress", "top")
COLUMNS = (
    LiveColumn(heading="workers", width=7, rank=5, cell=lambda row, _: _COUNT(row.workers), is_count=True),
    LiveColumn(heading=BAR_HEADING, width=14, rank=1, cell=lambda *_: "", views=_BOTH),
    LiveColumn(heading="busy", width=5, rank=0, cell=lambda row, _: format_percent(row.busy), views=_BOTH),
    LiveColumn(heading="starved", width=7, rank=9, cell=lambda row, _: format_percent(row.starved)),
    LiveColumn(heading="blocked", width=7, rank=9, cell=lambda row, _: format_percent(row.blocked)),
    LiveColumn(heading="rate", width=8, rank=2, cell=lambda row, _: f"{format_rate(row.items_per_s)}/s", views=_BOTH),
    LiveColumn(
        heading="queue", width=6, rank=3, cell=lambda row, hop: f"{row.queued:,.1f}" if hop.target else "", views=_BOTH
    ),
    LiveColumn(heading="run p50", width=7, rank=4, cell=lambda row, _: _if_any(format_ns, row.run_ns.p50)),
    LiveColumn(heading="hop p50", width=7, rank=7, cell=lambda _, hop: _if_any(format_ns, hop.cost_ns.p50)),
    LiveColumn(heading="hop p99", width=7, rank=8, cell=lambda _, hop: _if_any(format_ns, hop.cost_ns.p99)),
    LiveColumn(heading="RSS", width=6, rank=6, cell=lambda row, _: _if_any(format_bytes, row.rss_bytes), is_count=True),
    LiveColumn(heading="errors", width=6, rank=2, cell=lambda row, _: _if_any(_COUNT, row.errors), only_if_any=True),
    LiveColumn(
        heading="restarts", width=8, rank=2, cell=lambda row, _: _if_any(_COUNT, row.restarts), only_if_any=True
    ),
)
"""All columns, from left to right. To add a figure of a row, add a field to `LiveStage` and a line here."""


def find_limiting_stage(stages: Sequence[LiveStage]) -> str:
    """Return the row with the most work, by the same limit as the verdict of a report; "" if none is above the limit.

    >>> find_limiting_stage([LiveStage(name="decode", workers=2, work=0.93), LiveStage(name="sink")])
    'decode'
    """
    most_used = max((stage for stage in stages if not stage.is_starting), key=lambda stage: stage.work, default=None)
    return most_used.name if most_used is not None and most_used.work >= MIN_LIMITING_UTILIZATION else ""


def format_progress_line(run: LiveRun, total: int | None = None) -> str:
    """Format the plain line of a run: its progress, its rate, and the row that limits it.

    >>> format_progress_line(LiveRun(elapsed_ns=20 * 10**9, items_done=12, items_per_s=345.2, limited_by="decode"))
    'stagepipe: 20.0 s  12 items in  345/s  limited by decode'
    """
    parts = [f"{run.elapsed_ns / 1e9:.1f} s", run.format_items(total)]
    if run.items_per_s:
        parts.append(f"{format_rate(run.items_per_s)}/s")
    if run.starting:
        parts.append(f"starting {', '.join(run.starting)}")
    if run.limited_by:
        parts.append(f"limited by {run.limited_by}")
    return "stagepipe: " + "  ".join(parts)


_SUMMED_FIELDS = (
    *("items_in", "items_done", "items_out", "samples_out", "files_out", "items_sent"),
    *("items_per_s", "samples_per_s"),
)


def add_live_runs(parts: Iterable[LiveRun]) -> LiveRun:
    """Return the islands of a cluster as one run: sums. The total is known if all islands know theirs."""
    runs = list(parts)
    totals = [run.items_total for run in runs]
    sums = {name: sum(getattr(run, name) for run in runs) for name in _SUMMED_FIELDS}
    return LiveRun(
        elapsed_ns=max((run.elapsed_ns for run in runs), default=0),
        state="starting" if any(run.state == "starting" for run in runs) else "running",
        items_total=sum(total for total in totals if total is not None) if None not in totals else None,
        limited_by=next((run.limited_by for run in runs if run.limited_by), ""),
        stages=tuple(
            LiveStage(name=name, is_starting=True) for name in dict.fromkeys(n for run in runs for n in run.starting)
        ),
        **sums,
    )


def live_run_to_json(run: LiveRun) -> bytes:
    """Return a live run as one line of JSON, `schema` first."""
    return msgspec.json.encode({"schema": run.schema, **msgspec.to_builtins(run)}) + b"\n"
