"""The report: the schema `stagepipe.report/2`, and its JSON. Durations are integer ns, sizes are bytes.

Field names are a public contract. Within a schema version, fields may be added (with a default) but are never renamed
or removed. `record` has the types that an engine already counts in this form.
"""

from __future__ import annotations

import sys
from typing import Literal

import msgspec
import numpy as np

from stagepipe.core import UsageError, format_ns
from stagepipe.report.record import (
    HopFigures,
    RunFacts,
    StageFigures,
    TimingOverhead,
)

SCHEMA = "stagepipe.report/2"


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of durations in ns. Percentiles are accurate to 2 %; `max` and `mean` are exact."""

    p50: int = 0
    p90: int = 0
    p99: int = 0
    max: int = 0
    mean: int = 0


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """The run as a whole. `status` is `finished`, `failed` or `interrupted`; `error` is the reason of a failure.

    `items_per_s` is source items per second in the steady state, without start-up and drain; `samples_per_s` is the
    output in samples per second (see `build.compute_steady_samples_per_s`). `files_out` counts the files of the sinks.
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
    samples_per_s: float = 0.0
    files_out: int = 0

    @property
    def rate_unit(self) -> str:
        """The unit of the output: `items`, or `samples` if an output item holds several samples."""
        return "items" if self.samples_out == self.items_out else "samples"


class StageReport(StageFigures, frozen=True, kw_only=True):
    """One stage; the first is the source. `starting` to `overhead` are shares of its workers' time; their sum is 1.

    `source_items` are the distinct items of the source that reached it in this run. `source_item_ns` is the time in
    its function for one of them, over all workers: divided by `workers` (or by `mean_workers` if that is not 0), it is
    the stage's time per item of the pipeline. `outputs` counts the results of the stage in `output_unit` (`items`,
    `batches`, `files`).

    A fused stage never waits, so its `busy` is 1.
    """

    starting: float
    busy: float
    starved: float
    blocked: float
    overhead: float
    run_ns: Percentiles
    kind: Literal["source", "stage", "sink"] = "stage"
    source_items: int = 0
    source_item_ns: int = 0
    outputs: int = 0
    output_unit: str = ""


class PhasePercentiles(msgspec.Struct, frozen=True, kw_only=True):
    """The phases of a hop, in the order in which a message passes through them.

    `pack_wait_ns`, `send_wait_ns` and `queue_ns` are waits: they do not count as cost.
    """

    encode_ns: Percentiles = Percentiles()
    copy_ns: Percentiles = Percentiles()
    pack_wait_ns: Percentiles = Percentiles()
    send_ns: Percentiles = Percentiles()
    send_wait_ns: Percentiles = Percentiles()
    queue_ns: Percentiles = Percentiles()
    receive_ns: Percentiles = Percentiles()
    decode_ns: Percentiles = Percentiles()


class HopReport(HopFigures, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """One hop. In JSON, its ends are named `from` and `to`."""

    source: str
    target: str
    cost_ns: Percentiles
    phases: PhasePercentiles


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The limit of the run. `confidence` is 0 to 1.

    `kind` is `stage`, `hop`, `source`, `sink`, `consumer`, `window`, `memory`, `machine`, `restarts`, `startup` or
    `none`; `limited_by` is the name of the limit. `sentence` gives the evidence. `fix` is the one config change to try:
    overrides for the command line (`stages.decode.workers=3`), separated by spaces; it is empty if no change will help.
    `advice` explains the fix, or why there is none. `share` is the share of the run's time that the limit took, 0 to 1;
    0 without a limit.
    """

    limited_by: str
    kind: str
    confidence: float
    sentence: str
    fix: str = ""
    advice: str = ""
    share: float = 0.0


class Report(RunFacts, frozen=True, kw_only=True):
    """The report of a run, from `Pipeline.report()` or `stagepipe run --report FILE.json`.

    Durations are in ns, sizes in bytes. `config_path` is the path of the config as given; it is empty for an absolute
    path, which would reveal the machine and its user, and for a config from Python.

    >>> report = from_json(Path("runs/report.json").read_bytes())  # doctest: +SKIP
    >>> report.verdict.fix  # doctest: +SKIP
    'stages.decode.workers=3'
    """

    run: RunReport
    stages: tuple[StageReport, ...]
    hops: tuple[HopReport, ...]
    verdict: Verdict
    config_path: str = ""
    schema: str = SCHEMA

    def show(self, *, verbose: bool = False) -> None:
        """Print the stages and the verdict, as `stagepipe run` does; with `verbose` everything, as `run -v`.

        In a notebook, show the figures and the picture of the HTML page; with `verbose` the tables.
        """
        from stagepipe.report import print_to_stdout, render_brief, render_report

        if not verbose and _is_notebook():
            sys.modules["IPython"].display.display(self)
            return

        print_to_stdout(render_report(self) if verbose else render_brief(self, more="All: show(verbose=True)"))

    def __repr__(self) -> str:
        return f"<Report {self.name}: {'; '.join(self._make_notes())}>"

    def _repr_html_(self) -> str:
        """Return the figures, the verdict and the picture of the pipeline, for notebooks, with no external files."""
        from stagepipe.report import render_notebook

        return render_notebook(self)

    def make_unmatched_notes(self) -> list[str]:
        """Return a line for each stage whose `when` matched no item of the run."""
        return [
            f"`{stage.name}` ran on none of {stage.passed_by:,} items: its `when` matched none"
            for stage in self.stages
            if stage.passed_by and not stage.items
        ]

    def _make_notes(self) -> list[str]:
        run = self.run
        counts = f"{run.status}, {run.items_in:,} items in, {run.items_out:,} out, {format_ns(run.wall_ns)}"
        return [counts, *self.make_unmatched_notes(), self.verdict.sentence]


def _is_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which can show HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


# ------------------------------------------------------------------ JSON


class _SchemaHeader(msgspec.Struct):
    """The field that all versions of a report share."""

    schema: str = "none"


def to_json(report: Report) -> bytes:
    """Return the report as JSON in UTF-8, indented by two spaces, with the most used fields first.

    >>> from_json(to_json(report)) == report  # doctest: +SKIP
    True
    """
    plain = msgspec.to_builtins(report, enc_hook=_to_builtin)
    in_order = {key: plain[key] for key in ("schema", "name", "run", "verdict", "stages", "hops", *plain)}
    return msgspec.json.format(msgspec.json.encode(in_order), indent=2) + b"\n"


def from_json(text: bytes | str) -> Report:
    """Read a report written by `to_json`, and ignore unknown fields.

    Raises UsageError if the text is not JSON, has another schema, or lacks a field or has one of the wrong type.
    """
    try:
        schema = msgspec.json.decode(text, type=_SchemaHeader).schema
        if schema != SCHEMA:
            message = (
                f"cannot read this report: its schema is {schema!r}, expected {SCHEMA!r}; "
                "use the stagepipe that wrote it"
            )
            raise UsageError(message)
        return msgspec.json.decode(text, type=Report)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is not UTF-8
        message = f"not a {SCHEMA} file: {error}; pass a file that `stagepipe run --report FILE.json` wrote"
        raise UsageError(message) from error


def _to_builtin(value: object) -> object:
    """Convert a value that msgspec cannot encode: NumPy scalars and arrays to Python values, other values to text."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
