"""The report of a run, from the engine's counters to the verdict. Pure: nothing here starts or talks to a process.

    RunRecord -> build_report -> Report -> to_json, render_report
              -> judge -> Verdict          from_json

record         what an engine counted: the input of this layer
build          RunRecord -> Report
model          the report: the schema `stagepipe.report/2`
shared_types   the parts of records and reports that are the same
series         the run over time, and the sizes of messages: more types of the report
store_tables   the tables of an object store
serialization  the report as JSON
utilization    how busy each process was: the evidence for the verdict
verdict        what limits the run, and how sure that is
advice         the config change to try
comparison     two runs: what differs, and whether beyond their noise
live           a run while it goes: one struct for progress, `stagepipe top`, metrics and series
trace/         what each process did when, as a file for Perfetto
render/        the report for the terminal and as HTML; imports rich, so it is loaded only when something is drawn
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.report.build import build_report, compute_steady_items_per_s
    from stagepipe.report.comparison import Comparison, Difference, compare_runs
    from stagepipe.report.live import (
        COLUMNS,
        LIVE_SCHEMA,
        LiveColumn,
        LiveCounts,
        LiveHop,
        LivePercentiles,
        LiveRun,
        LiveStage,
        add_live_runs,
        find_limiting_stage,
        format_progress_line,
        live_run_to_json,
    )
    from stagepipe.report.model import Report
    from stagepipe.report.record import (
        PHASES,
        HopRecord,
        MemoryPressure,
        RunRecord,
        StageRecord,
        WorkerLoad,
    )
    from stagepipe.report.render import (
        FoldingTable,
        TableColumn,
        TerminalView,
        TitledBox,
        print_to_stdout,
        render_brief,
        render_comparison,
        render_html,
        render_live_run,
        render_notebook,
        render_report,
        render_summary,
    )
    from stagepipe.report.serialization import from_json, to_json
    from stagepipe.report.series import HopSeries, MemoryPoint, Series, SizeCount, StageSeries
    from stagepipe.report.shared_types import (
        ByteCounts,
        ConsumerReport,
        CostPrediction,
        DeadLetter,
        HopThresholdChange,
        HopTransport,
        HostReport,
        MessageCounts,
        SharedMemoryReport,
        SlowItem,
        StoreHopReport,
        StoreNodeReport,
        TimingOverhead,
        WhatIf,
        WorkerRestartReport,
    )
    from stagepipe.report.trace import ClockReading, TraceData, TraceDeath, TraceSummary, TraceTrack, write_trace
    from stagepipe.report.utilization import (
        CONSUMER,
        FULL_MACHINE_CPU_SHARE,
        MIN_MULTITHREADED_CPU_RATIO,
        ProcessLoad,
        compute_process_loads,
    )
    from stagepipe.report.verdict import is_comparable

__all__ = [
    "COLUMNS",
    "CONSUMER",
    "FULL_MACHINE_CPU_SHARE",
    "LIVE_SCHEMA",
    "MIN_MULTITHREADED_CPU_RATIO",
    "PHASES",
    "ByteCounts",
    "ClockReading",
    "Comparison",
    "ConsumerReport",
    "CostPrediction",
    "DeadLetter",
    "Difference",
    "FoldingTable",
    "HopRecord",
    "HopSeries",
    "HopThresholdChange",
    "HopTransport",
    "HostReport",
    "LiveColumn",
    "LiveCounts",
    "LiveHop",
    "LivePercentiles",
    "LiveRun",
    "LiveStage",
    "MemoryPoint",
    "MemoryPressure",
    "MessageCounts",
    "ProcessLoad",
    "Report",
    "RunRecord",
    "Series",
    "SharedMemoryReport",
    "SizeCount",
    "SlowItem",
    "StageRecord",
    "StageSeries",
    "StoreHopReport",
    "StoreNodeReport",
    "TableColumn",
    "TerminalView",
    "TimingOverhead",
    "TitledBox",
    "TraceData",
    "TraceDeath",
    "TraceSummary",
    "TraceTrack",
    "WhatIf",
    "WorkerLoad",
    "WorkerRestartReport",
    "add_live_runs",
    "build_report",
    "compare_runs",
    "compute_process_loads",
    "compute_steady_items_per_s",
    "find_limiting_stage",
    "format_progress_line",
    "from_json",
    "is_comparable",
    "live_run_to_json",
    "print_to_stdout",
    "render_brief",
    "render_comparison",
    "render_html",
    "render_live_run",
    "render_notebook",
    "render_report",
    "render_summary",
    "to_json",
    "write_trace",
]

__getattr__ = lazy_names(
    __name__,
    {
        "LIVE_SCHEMA": "live",
        "COLUMNS": "live",
        "LiveColumn": "live",
        "LiveCounts": "live",
        "add_live_runs": "live",
        "format_progress_line": "live",
        "render_live_run": "render",
        "LiveHop": "live",
        "LivePercentiles": "live",
        "LiveRun": "live",
        "LiveStage": "live",
        "find_limiting_stage": "live",
        "live_run_to_json": "live",
        "ByteCounts": "shared_types",
        "CONSUMER": "utilization",
        "Comparison": "comparison",
        "ConsumerReport": "shared_types",
        "CostPrediction": "shared_types",
        "DeadLetter": "shared_types",
        "Difference": "comparison",
        "FULL_MACHINE_CPU_SHARE": "utilization",
        "FoldingTable": "render",
        "HopRecord": "record",
        "HopSeries": "series",
        "HopThresholdChange": "shared_types",
        "HopTransport": "shared_types",
        "HostReport": "shared_types",
        "MIN_MULTITHREADED_CPU_RATIO": "utilization",
        "MemoryPoint": "series",
        "MemoryPressure": "record",
        "MessageCounts": "shared_types",
        "PHASES": "record",
        "ProcessLoad": "utilization",
        "Report": "model",
        "RunRecord": "record",
        "Series": "series",
        "SharedMemoryReport": "shared_types",
        "SizeCount": "series",
        "SlowItem": "shared_types",
        "StageRecord": "record",
        "StageSeries": "series",
        "StoreHopReport": "shared_types",
        "StoreNodeReport": "shared_types",
        "TableColumn": "render",
        "TerminalView": "render",
        "TitledBox": "render",
        "TimingOverhead": "shared_types",
        "ClockReading": "trace",
        "TraceData": "trace",
        "TraceDeath": "trace",
        "TraceSummary": "trace",
        "TraceTrack": "trace",
        "write_trace": "trace",
        "WhatIf": "shared_types",
        "WorkerLoad": "record",
        "WorkerRestartReport": "shared_types",
        "build_report": "build",
        "compare_runs": "comparison",
        "compute_process_loads": "utilization",
        "compute_steady_items_per_s": "build",
        "from_json": "serialization",
        "is_comparable": "verdict",
        "print_to_stdout": "render",
        "render_comparison": "render",
        "render_brief": "render",
        "render_html": "render",
        "render_notebook": "render",
        "render_report": "render",
        "render_summary": "render",
        "to_json": "serialization",
    },
)
