"""Counters and durations of a run, in memory that all its processes share. All use the clock `perf_counter_ns`.

counters        the names of the counters on the board, and of the timed phases
board           the shared memory of counters, histograms and ledgers
process_region  the part of a process on the board, and of its stages
histogram       log-linear histograms of durations
ledger          the cost of messages, by transfer kind and size
recorder        collects rows of durations and adds them to the board in batches
trace_buffer    what a process did when, record by record; only in a run that is traced
"""

from stagepipe.timing.board import LAYOUT_VERSION, Board, BoardLayout, make_board_fd, read_layout_version
from stagepipe.timing.counters import (
    RECEIVE_PHASES,
    SEND_PHASES,
    DeliveryCounter,
    ProcessCounter,
    ProcessState,
    StageCounter,
)
from stagepipe.timing.histogram import BUCKET_COUNT, HISTOGRAM_WORDS, Histogram, bucket_index
from stagepipe.timing.ledger import LEDGER_WORDS, CostLedger, LedgerEntry, TransferKind
from stagepipe.timing.process_region import (
    QUEUE_COUNT_WORDS,
    QUEUE_SUM_WORD,
    STAGE_WORDS,
    ProcessRegion,
    SlowItemRow,
    StageRegion,
)
from stagepipe.timing.recorder import DurationRecorder
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
