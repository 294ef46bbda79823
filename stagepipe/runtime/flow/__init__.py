"""Flow control between processes: what may enter a segment, and what still holds old shared memory.

admission         backpressure: a feeder admits items by window and memory
traced_admission  the same, in a run that is traced
progress          an order point publishes its progress, and wakes its feeder
windows           how many items each segment admits; halved where memory is too small
held_memory       decides when a process must copy what it receives
stale_leases      reports which blocks of older eras a process still leases
"""

from stagepipe.runtime.flow.admission import (
    IN_FLIGHT_MEMORY_FRACTION,
    SMALL_ITEM_BUDGET_BYTES,
    AdmissionController,
    FedSegment,
)
from stagepipe.runtime.flow.held_memory import EXPECTED_LEASES, MAX_HELD_FRACTION, HeldMemoryLimit
from stagepipe.runtime.flow.progress import ProgressPublisher
from stagepipe.runtime.flow.stale_leases import StaleLeaseReporter
from stagepipe.runtime.flow.traced_admission import make_admission
from stagepipe.runtime.flow.windows import SegmentWindows

__all__ = [
    "EXPECTED_LEASES",
    "IN_FLIGHT_MEMORY_FRACTION",
    "MAX_HELD_FRACTION",
    "SMALL_ITEM_BUDGET_BYTES",
    "AdmissionController",
    "FedSegment",
    "HeldMemoryLimit",
    "ProgressPublisher",
    "SegmentWindows",
    "StaleLeaseReporter",
    "make_admission",
]
