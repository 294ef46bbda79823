"""Counters and durations of a run, in memory that all its processes share. All use the clock `perf_counter_ns`.

board         the shared memory of counters, histograms and ledgers, and the names of all counters
histogram     histograms of durations, the cost of messages by kind and size, and what fills both in batches
trace_buffer  what a process did when, record by record; only in a run that is traced
"""

from stagepipe.timing.board import (
    LAYOUT_VERSION,
    QUEUE_COUNT_WORDS,
    QUEUE_SUM_WORD,
    RECEIVE_PHASES,
    SEND_PHASES,
    STAGE_WORDS,
    Board,
    BoardLayout,
    DeliveryCounter,
    ProcessCounter,
    ProcessRegion,
    ProcessState,
    SlowItemRow,
    StageCounter,
    StageRegion,
    make_board_fd,
    read_layout_version,
)
from stagepipe.timing.histogram import (
    BUCKET_COUNT,
    HISTOGRAM_WORDS,
    LEDGER_WORDS,
    CostLedger,
    DurationRecorder,
    Histogram,
    LedgerEntry,
    TransferKind,
    bucket_index,
)
from stagepipe.timing.trace_buffer import (
    TraceBuffer,
    TraceKind,
    TraceRecord,
    TraceRing,
    make_trace_fd,
    pack_durations,
    read_trace,
    unpack_durations,
)

__all__ = [
    "BUCKET_COUNT",
    "HISTOGRAM_WORDS",
    "LAYOUT_VERSION",
    "LEDGER_WORDS",
    "QUEUE_COUNT_WORDS",
    "QUEUE_SUM_WORD",
    "RECEIVE_PHASES",
    "SEND_PHASES",
    "STAGE_WORDS",
    "Board",
    "BoardLayout",
    "CostLedger",
    "DeliveryCounter",
    "DurationRecorder",
    "Histogram",
    "LedgerEntry",
    "ProcessCounter",
    "ProcessRegion",
    "ProcessState",
    "SlowItemRow",
    "StageCounter",
    "StageRegion",
    "TraceBuffer",
    "TraceKind",
    "TraceRecord",
    "TraceRing",
    "TransferKind",
    "bucket_index",
    "make_board_fd",
    "make_trace_fd",
    "pack_durations",
    "read_layout_version",
    "read_trace",
    "unpack_durations",
]
