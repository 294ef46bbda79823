"""From what the engine counted to the report and its verdict. Pure; nothing here starts or talks to a process.

    RunRecord (record) -> build -> Report (model) -> to_json, table.render
                       -> judge -> Verdict         from_json

`record` is what an engine hands over; `load` and `advice` are the verdict's two halves: the evidence and the fix.
`table` draws a report for the terminal; it imports rich and is therefore imported by the command line alone.
"""

from stagepipe.report.build import build, dead_letter
from stagepipe.report.model import SCHEMA, DeadLetter, Report, Verdict, from_json, to_json
from stagepipe.report.record import PHASES, HopRecord, Progress, RuleChange, RunRecord, SlowItem, StageRecord
from stagepipe.report.verdict import judge

__all__ = [
    "PHASES",
    "SCHEMA",
    "DeadLetter",
    "HopRecord",
    "Progress",
    "Report",
    "RuleChange",
    "RunRecord",
    "SlowItem",
    "StageRecord",
    "Verdict",
    "build",
    "dead_letter",
    "from_json",
    "judge",
    "to_json",
]
