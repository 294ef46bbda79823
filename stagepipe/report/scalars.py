"""The figures of a run as a flat dict of numbers, in the form that experiment trackers log: `to_scalars`.

The names are a public contract, like the fields of a report: names may be added but never change. They use only
characters that all trackers accept. Trackers group figures by the text before the slash, so each group has one figure
of all stages.
"""

from __future__ import annotations

from collections.abc import Iterable

from stagepipe.report.live import LiveHop, LiveRun, LiveStage
from stagepipe.report.model import HopReport, Report, StageReport


def to_scalars(figures: LiveRun | Report, prefix: str = "stagepipe") -> dict[str, float]:
    """Return the figures of a current run, or of a report, as a flat dict with stable names.

    Shares are 0 to 1; names give the units of durations (ms, s) and sizes (MB). The figures of a `LiveRun`, except
    counts, refer to the last seconds.

    - `stagepipe/`: `items_per_s`, `samples_per_s`, `items_out`, `samples_out`, `skipped`, `errors`, `restarts`,
      `shared_memory_mb` (of a report: at its peak), and `input_wait`, the share of its time in which a loop waits for
      input. Of a report also `wall_s` and `first_item_s`.
    - `stagepipe_busy/decode`, for each stage that has processes: also `starved`, `blocked`, `workers`, `item_ms` (the
      median time of its function) and `rss_mb`.
    - `stagepipe_hop_ms/decode_to_batch`, for each hop: the median cost of a message; `queue_ms` is how long it waited.
      The last hop leads `_to_consumer`.

    Unknown figures are left out: medians and `rss_mb` of a `LiveRun` that is not `detailed` (`Pipeline.progress`), and
    stages and hops of a run without processes. `prefix` replaces `stagepipe`.

    >>> to_scalars(LiveRun(items_per_s=345.2, stages=(LiveStage(name="decode", busy=0.93),)))["stagepipe_busy/decode"]
    0.93
    """
    run = _read_report(figures) if isinstance(figures, Report) else _read_live_run(figures)
    scalars = {f"{prefix}/{figure}": value for figure, value in run.items()}
    rows = [stage for stage in figures.stages if _has_processes(stage)]
    for stage in rows:
        scalars |= {f"{prefix}_{figure}/{stage.name}": value for figure, value in _read_stage(stage).items()}
    names = {stage.name for stage in rows}
    for hop in figures.hops:
        ends = f"{hop.source}_to_{hop.target if hop.target in names else 'consumer'}"
        scalars |= {f"{prefix}_{figure}/{ends}": value for figure, value in _read_hop(hop).items()}
    return {name: float(value) for name, value in scalars.items()}


def _has_processes(stage: LiveStage | StageReport) -> bool:
    return stage.kind != "consumer" if isinstance(stage, LiveStage) else stage.fused_into is None


def _read_live_run(run: LiveRun) -> dict[str, float]:
    loop = next((stage for stage in run.stages if stage.kind == "consumer"), None)
    return {
        "items_per_s": run.items_per_s,
        "samples_per_s": run.samples_per_s,
        "items_out": run.items_out,
        "samples_out": run.samples_out,
        **_count_failures(run.stages),
        "restarts": sum(stage.restarts for stage in run.stages),
        **({"shared_memory_mb": run.shared_memory_bytes / 1e6} if run.stages else {}),
        **({} if loop is None else {"input_wait": loop.starved}),
    }


def _read_report(report: Report) -> dict[str, float]:
    run, consumer, memory = report.run, report.consumer, report.memory
    wait_ns = max(consumer.wait_ns - consumer.first_wait_ns, 0)
    return {
        "items_per_s": run.items_per_s,
        "samples_per_s": run.samples_per_s,
        "items_out": run.items_out,
        "samples_out": run.samples_out,
        **_count_failures(report.stages),
        "restarts": sum(restart.kind == "death" for restart in report.restarts),
        **({"shared_memory_mb": memory.arena_peak_bytes / 1e6} if memory.arena_limit_bytes else {}),
        **({} if consumer.is_sink else {"input_wait": wait_ns / max(wait_ns + consumer.busy_ns, 1)}),
        "wall_s": run.wall_ns / 1e9,
        "first_item_s": run.first_item_ns / 1e9,
    }


def _count_failures(stages: Iterable[LiveStage | StageReport]) -> dict[str, float]:
    return {figure: sum(getattr(stage, figure) for stage in stages) for figure in ("skipped", "errors")}


def _read_stage(stage: LiveStage | StageReport) -> dict[str, float]:
    shares = {figure: getattr(stage, figure) for figure in ("busy", "starved", "blocked")}
    known = {"item_ms": stage.run_ns.p50 / 1e6, "rss_mb": stage.rss_bytes / 1e6}
    return shares | {"workers": stage.workers} | {figure: value for figure, value in known.items() if value}


def _read_hop(hop: LiveHop | HopReport) -> dict[str, float]:
    queue_ns = hop.queue_ns if isinstance(hop, LiveHop) else hop.phases.queue_ns
    medians = {"hop_ms": hop.cost_ns.p50 / 1e6, "queue_ms": queue_ns.p50 / 1e6}
    return {figure: value for figure, value in medians.items() if hop.cost_ns.p50}
