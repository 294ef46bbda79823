"""The report of a run, from the engine's counters to the verdict. Pure: nothing here starts or talks to a process.

    RunRecord -> build_report -> Report -> to_json, render_report
              -> judge -> Verdict          from_json

record       what an engine counted: the input of this layer
build        RunRecord -> Report
model        the report and its JSON: the schema `stagepipe.report/2`
utilization  how busy each process was: the evidence for the verdict
verdict      what limits the run, and how sure that is
advice       the config change to try
render/      the report as tables for the terminal; imports rich, so it is loaded only when something is printed
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.report.build import build_dead_letter, build_report
    from stagepipe.report.model import DeadLetter, Report, from_json, to_json
    from stagepipe.report.record import (
        PHASES,
        HopRecord,
        HopThresholdChange,
        Progress,
        RunRecord,
        SlowItem,
        StageRecord,
    )
    from stagepipe.report.render import FoldingTable, TableColumn, TerminalView, render_report, render_summary
    from stagepipe.report.utilization import CONSUMER, FULL_MACHINE_CPU_SHARE, MIN_MULTITHREADED_CPU_RATIO

__all__ = [
    "CONSUMER",
    "FULL_MACHINE_CPU_SHARE",
    "MIN_MULTITHREADED_CPU_RATIO",
    "PHASES",
    "DeadLetter",
    "FoldingTable",
    "HopRecord",
    "HopThresholdChange",
    "Progress",
    "Report",
    "RunRecord",
    "SlowItem",
    "StageRecord",
    "TableColumn",
    "TerminalView",
    "build_dead_letter",
    "build_report",
    "from_json",
    "render_report",
    "render_summary",
    "to_json",
]

__getattr__ = lazy_names(
    __name__,
    {
        "CONSUMER": "utilization",
        "DeadLetter": "model",
        "FULL_MACHINE_CPU_SHARE": "utilization",
        "FoldingTable": "render",
        "HopRecord": "record",
        "HopThresholdChange": "record",
        "MIN_MULTITHREADED_CPU_RATIO": "utilization",
        "PHASES": "record",
        "Progress": "record",
        "Report": "model",
        "RunRecord": "record",
        "SlowItem": "record",
        "StageRecord": "record",
        "TableColumn": "render",
        "TerminalView": "render",
        "build_dead_letter": "build",
        "build_report": "build",
        "from_json": "model",
        "render_report": "render",
        "render_summary": "render",
        "to_json": "model",
    },
)
