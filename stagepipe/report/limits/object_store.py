"""Time that an object store takes to write blocks to disk, because it is full. Pure."""

from __future__ import annotations

from stagepipe.core import format_bytes, format_ns, format_percent
from stagepipe.report.advice import advise_on_spilling
from stagepipe.report.limits.evidence import MAX_CONFIDENCE, Evidence, make_verdict
from stagepipe.report.model import Verdict

_MIN_DISK_SHARE = 0.2
"""Share of the time after start-up from which the disk is the limit, as for restarts."""


def judge_spilling(evidence: Evidence) -> Verdict | None:
    """Judge a run in which a node spilled and restored blocks for much of the time."""
    record = evidence.record
    node = max(record.store_nodes, key=lambda node: node.disk_ns, default=None)
    active_ns = max(record.wall_ns - record.first_item_ns, 1)
    if node is None or node.disk_ns < _MIN_DISK_SHARE * active_ns:
        return None
    share = min(node.disk_ns / active_ns, 1.0)
    sentence = (
        f"The object store is too small: node {node.node} of {format_bytes(node.store_bytes)} spilled "
        f"{format_bytes(node.spilled_bytes)} to disk and restored {format_bytes(node.restored_bytes)}, and that took "
        f"{format_ns(node.disk_ns)}, {format_percent(share)} of the time after start-up."
    )
    confidence = round(MAX_CONFIDENCE * (0.5 + share / 2), 2)
    advice = advise_on_spilling(record, evidence.loads)
    return make_verdict("object store", "memory", confidence, sentence, advice)
