"""The cost of a sink with workers, per row, from the small parts that a probe has written.

Pure; runs in the caller's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from stagepipe.plan import Plan, ProcessPlan


@dataclass(frozen=True, kw_only=True)
class PartSample:
    """A part that a sink has written in a probe: `rows` in `write_ns`, and the first `half_rows` of them alone.

    The calling process took `collect_ns` to add it to a shard, `copy_ns` of it for the bytes. `item_bytes` is the size
    of all `items` of the part in memory, of which `rows` were for this sink.
    """

    items: int
    rows: int
    write_ns: int
    half_rows: int
    half_write_ns: int
    item_bytes: int
    collect_ns: int = 0
    copy_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class SinkCost:
    """What an item costs that reaches a sink, with parts as large as those of a run.

    `write_ns` is the work of a writer, `collect_ns` that of the calling process. `rows` are written per item. A probe
    has brought `items` to the sink.
    """

    items: int
    write_ns: float
    collect_ns: float
    rows: float

    @property
    def row_ns(self) -> float:
        """The work of a writer per row."""
        return self.write_ns / self.rows if self.rows else 0.0


def compute_sink_cost(samples: Sequence[PartSample], max_items: int, max_bytes: int) -> SinkCost:
    """Compute the cost of a sink from the parts of a probe. Parts of a run have at most `max_items` and `max_bytes`.

    The time of two sizes of a part, the one half of the other, tells what a row costs and what a part: to open a file,
    to write a footer. A part of a run has more rows.

    >>> part = PartSample(items=8, rows=8, write_ns=1_080, half_rows=4, half_write_ns=1_040, item_bytes=800)
    >>> compute_sink_cost([part], max_items=1000, max_bytes=1_000_000).write_ns
    11.0
    """
    items = sum(sample.items for sample in samples)
    rows = sum(sample.rows for sample in samples)
    if not rows:
        return SinkCost(items=items, write_ns=0.0, collect_ns=0.0, rows=0.0)
    item_bytes = sum(sample.item_bytes for sample in samples) / items
    items_per_part = max(min(float(max_items), max_bytes / max(item_bytes, 1.0)), 1.0)
    written = [sample for sample in samples if sample.rows]
    row_ns = median(map(_estimate_row_ns, written))
    part_ns = max(fmean(s.write_ns for s in written) - row_ns * rows / len(written), 0.0)
    copy_ns = sum(sample.copy_ns for sample in samples) / items
    shard_ns = fmean(max(sample.collect_ns - sample.copy_ns, 0) for sample in written)
    share = rows / items
    return SinkCost(
        items=items,
        write_ns=row_ns * share + part_ns / items_per_part,
        collect_ns=copy_ns + shard_ns / items_per_part,
        rows=share,
    )


def _estimate_row_ns(sample: PartSample) -> float:
    """Return the time of a row; of a part that could not be halved, with its share of what the part costs."""
    if not sample.half_rows:
        return sample.write_ns / sample.rows
    return max(sample.write_ns - sample.half_write_ns, 0) / (sample.rows - sample.half_rows)


def compute_sink_costs(plan: Plan, samples: Sequence[Sequence[PartSample]]) -> dict[str, SinkCost]:
    """Compute the costs of a plan's sinks with workers, by process name. `samples` are in the order of the sinks."""
    processes = list_sink_processes(plan)
    if not processes:
        return {}
    parts, *writers = processes
    bounds = parts.first_stage.target.arguments
    return {
        writer.name: compute_sink_cost(parts_of_sink, bounds["max_items"], bounds["max_bytes"])
        for writer, parts_of_sink in zip(writers, samples, strict=True)
    }


def list_sink_processes(plan: Plan) -> list[ProcessPlan]:
    """Return the processes of the sinks with workers: the order point that makes parts, then a writer for each sink."""
    return [process for process in plan.processes if process.first_stage.sink_path]
