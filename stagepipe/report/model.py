"""The report: the schema `stagepipe.report/2`. Pure. Durations are integer ns, sizes are bytes.

Field names are a public contract. Within a schema version, fields may be added (with a default) but are never renamed
or removed. What an engine counts in this form already (`record`) is of these types too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stagepipe.core import format_ns, make_html_table

SCHEMA = "stagepipe.report/2"


class Percentiles(msgspec.Struct, frozen=True):
    """A distribution of durations in ns. Percentiles are accurate to 2 %; `max` and `mean` are exact."""

    p50: int = 0
    p90: int = 0
    p99: int = 0
    max: int = 0
    mean: int = 0


class HostReport(msgspec.Struct, frozen=True):
    """The machine of the run. `versions` maps package names to versions."""

    cpus: int = 0
    memory_bytes: int = 0
    kernel: str = ""
    python: str = ""
    versions: dict[str, str] = msgspec.field(default_factory=dict)


class TimingOverhead(msgspec.Struct, frozen=True):
    """The cost of the timing itself, in ns per hop, and how it was determined."""

    ns_per_hop: int = 0
    how: str = ""


class RunReport(msgspec.Struct, frozen=True):
    """The run as a whole. `status` is `finished`, `failed` or `interrupted`; `error` is the reason of a failure.

    `items_per_s` is samples out per second in the steady state, without start-up and drain (see
    `build.compute_steady_samples_per_s`).
    """

    status: str
    items_in: int
    items_out: int
    samples_out: int
    items_skipped: int
    wall_ns: int
    items_per_s: float
    first_item_ns: int
    timing_overhead: TimingOverhead
    error: str | None = None


class StageReport(msgspec.Struct, frozen=True):
    """One stage; the first is the source. `starting` to `overhead` are shares of its workers' time; their sum is 1.

    A fused stage runs in the process of another: `fused_into` names the first stage of that process. It never waits,
    so its `busy` is 1.
    """

    name: str
    workers: int
    items: int
    starting: float
    busy: float
    starved: float
    blocked: float
    overhead: float
    run_ns: Percentiles
    cpu_ns: int = 0
    rss_bytes: int = 0
    pss_bytes: int = 0
    errors: int = 0
    skipped: int = 0
    retries: int = 0
    crashes: int = 0
    fused_into: str | None = None


class HopThresholdChange(msgspec.Struct, frozen=True):
    """A change of a hop's threshold during the run, after `messages` messages, based on their measured cost."""

    messages: int
    from_bytes: int
    to_bytes: int
    reason: str


class HopTransport(msgspec.Struct, frozen=True):
    """How the messages of a hop travel, and why. `mode` is `local`, `pipe`, `shared_memory` or `auto`.

    Buffers of `threshold_bytes` and more go to shared memory. This is the value at the end of the run; `changes` lists
    how it got there.
    """

    mode: str
    threshold_bytes: int
    reason: str
    changes: tuple[HopThresholdChange, ...] = ()


class MessageCounts(msgspec.Struct, frozen=True):
    """Messages of a hop by transport. A `mixed` message had buffers in the pipe and in shared memory."""

    local: int = 0
    pipe: int = 0
    shared_memory: int = 0
    mixed: int = 0

    @property
    def total(self) -> int:
        """The messages of all transports."""
        return self.local + self.pipe + self.shared_memory + self.mixed


class ByteCounts(msgspec.Struct, frozen=True):
    """Bytes of a hop: sent in the pipe, copied into shared memory, or already there and passed by reference."""

    inline: int = 0
    copied: int = 0
    zero_copy: int = 0

    @property
    def total(self) -> int:
        """All bytes."""
        return self.inline + self.copied + self.zero_copy


class PhasePercentiles(msgspec.Struct, frozen=True):
    """The phases of a hop, in the order in which an item passes through them.

    `send_wait_ns` and `queue_ns` are waits: they do not count as cost.
    """

    encode_ns: Percentiles = Percentiles()
    copy_ns: Percentiles = Percentiles()
    send_ns: Percentiles = Percentiles()
    send_wait_ns: Percentiles = Percentiles()
    queue_ns: Percentiles = Percentiles()
    receive_ns: Percentiles = Percentiles()
    decode_ns: Percentiles = Percentiles()


class CostPrediction(msgspec.Struct, frozen=True):
    """What a message costs by this machine's calibration, in ns (0: unknown), next to what it did cost.

    `pipe_ns` and `shared_memory_ns` are means, as if all messages had used that transport. `median_ns` is the median
    for the transport that each message used, and `measured_median_ns` is its measured counterpart. Pickling costs the
    same in both modes; all four include it as measured. `measured_ratio` is `measured_median_ns / median_ns`.
    """

    pipe_ns: int = 0
    shared_memory_ns: int = 0
    median_ns: int = 0
    measured_median_ns: int = 0
    measured_ratio: float = 0.0


class HopReport(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """One hop. In JSON its ends are `from` and `to`.

    `saved_ns` is the time saved in the whole run against the mode not chosen, by this machine's calibration.
    """

    source: str
    target: str
    transport: HopTransport
    messages: MessageCounts
    bytes: ByteCounts
    cost_ns: Percentiles
    phases: PhasePercentiles
    predicted: CostPrediction
    saved_ns: int = 0


class SharedMemoryReport(msgspec.Struct, frozen=True):
    """The shared memory of the run.

    `copied_out_items` reached the consumer as copies, because other processes still held them.
    """

    arena_peak_bytes: int = 0
    arena_limit_bytes: int = 0
    copied_out_items: int = 0


class SlowItem(msgspec.Struct, frozen=True):
    """One of the slowest items: the time in the stage's function, and in the queue before it."""

    item: str
    stage: str
    run_ns: int
    queue_ns: int


class DeadLetter(msgspec.Struct, frozen=True):
    """An item that failed and was skipped (`on_error: skip`).

    `source_items` are the numbers of the source items that it was made from. They are valid for the source with the
    fingerprint `source_sha256` (of its config and seed). `trace` is the original traceback.

    >>> DeadLetter("3", "decode", "ValueError: bad header", attempts=3, source_items=(3,)).source_items
    (3,)
    """

    item: str
    stage: str
    error: str
    attempts: int
    epoch: int = 0
    source_items: tuple[int, ...] = ()
    source_sha256: str = ""
    trace: str = ""


class WorkerRestartReport(msgspec.Struct, frozen=True):
    """A worker that died and was restarted. `lost_ns` is the time until the pipeline was back where it had been."""

    stage: str
    worker: int
    cause: str
    item: str
    lost_ns: int


class ConsumerReport(msgspec.Struct, frozen=True):
    """The training loop, the sink or `run`: how long it waited for items and how long it worked on them.

    `first_wait_ns` is the part of the wait before the first item. `outside_loop_ns` is the time without iteration,
    between two epochs and after the last; it counts as neither waiting nor work.
    """

    wait_ns: int = 0
    busy_ns: int = 0
    name: str = "consumer"
    first_wait_ns: int = 0
    outside_loop_ns: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """What limits the run. `kind` is `stage`, `hop`, `source`, `consumer` or `none`; `confidence` is 0 to 1.

    `sentence` gives the evidence. `fix` is the one config change to try, as an override for the command line
    (`stages.decode.workers=3`); it is empty if no change will help. `advice` explains it in words either way.
    """

    limited_by: str
    kind: str
    confidence: float
    sentence: str
    fix: str = ""
    advice: str = ""


class Report(msgspec.Struct, frozen=True):
    """The report of a run: what `Pipeline.report()` returns and `stagepipe run --report FILE.json` writes.

    >>> report = from_json(Path("runs/report.json").read_bytes())  # doctest: +SKIP
    >>> report.verdict.fix  # doctest: +SKIP
    'stages.decode.workers=3'
    """

    name: str
    config_sha256: str
    host: HostReport
    calibration: dict[str, Any]
    run: RunReport
    stages: tuple[StageReport, ...]
    hops: tuple[HopReport, ...]
    memory: SharedMemoryReport
    slowest: tuple[SlowItem, ...]
    dead_letters: tuple[DeadLetter, ...]
    restarts: tuple[WorkerRestartReport, ...]
    verdict: Verdict
    consumer: ConsumerReport = ConsumerReport()
    schema: str = SCHEMA

    def show(self) -> None:
        """Print the report as `stagepipe run` does: tables, events and the verdict. A notebook displays it."""
        from rich.console import Console

        from stagepipe.report import render_report

        Console().print(render_report(self))

    def __repr__(self) -> str:
        return f"<Report {self.name}: {'; '.join(self._make_notes())}>"

    def _repr_html_(self) -> str:
        """A small table of the stages, for notebooks."""
        rows = [
            (
                f"+ {stage.name}" if stage.fused_into else stage.name,
                "fused" if stage.fused_into else f"{stage.workers:,}",
                f"{stage.items:,}",
                "" if stage.fused_into else f"{stage.busy * 100:.0f} %",
                format_ns(stage.run_ns.p50) if stage.run_ns.max else "",
            )
            for stage in self.stages
        ]
        heading = ("stage", "workers", "items", "busy", "run p50")
        return make_html_table(self.name, heading, rows, [*self._make_notes(), self.verdict.advice])

    def _make_notes(self) -> list[str]:
        run = self.run
        counts = f"{run.status}, {run.items_in:,} items in, {run.items_out:,} out, {format_ns(run.wall_ns)}"
        return [counts, self.verdict.sentence]
