"""The kinds of limits: each function looks for one in the evidence of a run and returns its verdict, or None. Pure.

evidence      the process with the highest utilization, its neighbours' waits, and how the sentences are worded
lost_time     too few items, restarts, start-up
one_process   an inline run: what takes the time, and what processes could give
object_store  blocks that an object store spills to disk
machine       the CPU quota, other programs, a full machine
flow          items held back between processes: by memory, a slow worker, the order, the window
processes     one process is busy: the consumer, a sink, the source, a stage, one of its hops, or two in turn
"""

from stagepipe.report.limits.evidence import MIN_LIMITING_UTILIZATION, Evidence, gather_evidence
from stagepipe.report.limits.flow import judge_flow, judge_straggler, make_rule_change
from stagepipe.report.limits.lost_time import judge_drain, judge_restarts, judge_startup, judge_too_few_items
from stagepipe.report.limits.machine import judge_machine, judge_quota
from stagepipe.report.limits.object_store import judge_spilling
from stagepipe.report.limits.one_process import judge_one_process
from stagepipe.report.limits.processes import (
    SMALL_STAGES,
    judge_change,
    judge_most_used,
    judge_retries,
    judge_slow_calls,
    judge_small_stages,
    judge_wasteful_hop,
)

__all__ = [
    "MIN_LIMITING_UTILIZATION",
    "SMALL_STAGES",
    "Evidence",
    "gather_evidence",
    "judge_change",
    "judge_drain",
    "judge_flow",
    "judge_machine",
    "judge_most_used",
    "judge_one_process",
    "judge_quota",
    "judge_restarts",
    "judge_retries",
    "judge_slow_calls",
    "judge_small_stages",
    "judge_spilling",
    "judge_startup",
    "judge_straggler",
    "judge_too_few_items",
    "judge_wasteful_hop",
    "make_rule_change",
]
