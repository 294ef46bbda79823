"""The report of a run, from the engine's counters to the verdict. No code here starts a process or talks to one.

    RunRecord -> build_report -> Report -> to_json, render_report
              -> judge -> Verdict          from_json

record       the figures that an engine counts: the input of this layer, and the types that a report shares with it
build        RunRecord -> Report
model        the report: the schema `stagepipe.report/2`, and its JSON
utilization  how busy each process was: the evidence for the verdict, and the words of its sentences
rules        the kinds of limits, in one ordered list
advice       the config change to try
verdict      the limit of the run and its confidence: the first rule that applies, and the best change
comparison   two runs: their differences, and whether these exceed the noise
live         a current run: one struct for progress, `stagepipe top`, metrics and series
scalars      the figures of a LiveRun or a Report as a flat dict, for experiment trackers
trace        the actions of each process over time, as a file for Perfetto
render/      the report for the terminal and as HTML; imports rich, so it is loaded only to draw
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.report.build import build_report, compute_steady_items_per_s
    from stagepipe.report.comparison import compare_runs
    from stagepipe.report.live import (
        COLUMNS,
        LIVE_SCHEMA,
        LiveHop,
        LivePercentiles,
        LiveRun,
        LiveStage,
        LiveWorkerChange,
        add_live_runs,
        find_limiting_stage,
        format_progress_line,
        live_run_to_json,
    )
    from stagepipe.report.model import Report, from_json, to_json
    from stagepipe.report.record import (
        COUNT_COLUMNS,
        PHASES,
        SUMMED_FIGURES,
        ByteCounts,
        ConsumerReport,
        CostPrediction,
        DeadLetter,
        HopRecord,
        HopSeries,
        HopThresholdChange,
        HopTransport,
        HostReport,
        MemoryPoint,
        MemoryPressure,
        MessageCounts,
        RunRecord,
        Series,
        SharedMemoryReport,
        SizeCount,
        SlowItem,
        StageRecord,
        StageSeries,
        StageTally,
        StoreHopReport,
        StoreNodeReport,
        TimingOverhead,
        WhatIf,
        WorkerChangeRecord,
        WorkerLoad,
        WorkerRestartReport,
        format_gain,
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
    from stagepipe.report.scalars import to_scalars
    from stagepipe.report.trace import ClockReading, TraceData, TraceDeath, TraceTrack, write_trace
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
    "COUNT_COLUMNS",
    "FULL_MACHINE_CPU_SHARE",
    "LIVE_SCHEMA",
    "MIN_MULTITHREADED_CPU_RATIO",
    "PHASES",
    "SUMMED_FIGURES",
    "ByteCounts",
    "ClockReading",
    "ConsumerReport",
    "CostPrediction",
    "DeadLetter",
    "FoldingTable",
    "HopRecord",
    "HopSeries",
    "HopThresholdChange",
    "HopTransport",
    "HostReport",
    "LiveHop",
    "LivePercentiles",
    "LiveRun",
    "LiveStage",
    "LiveWorkerChange",
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
    "StageTally",
    "StoreHopReport",
    "StoreNodeReport",
    "TableColumn",
    "TerminalView",
    "TimingOverhead",
    "TitledBox",
    "TraceData",
    "TraceDeath",
    "TraceTrack",
    "WhatIf",
    "WorkerChangeRecord",
    "WorkerLoad",
    "WorkerRestartReport",
    "add_live_runs",
    "build_report",
    "compare_runs",
    "compute_process_loads",
    "compute_steady_items_per_s",
    "find_limiting_stage",
    "format_gain",
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
    "to_scalars",
    "write_trace",
]

__getattr__ = lazy_names(__name__, __file__)
