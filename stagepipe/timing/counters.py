"""The names of the counters on the board, for a process and for a stage, and of the timed phases of a hop."""

from __future__ import annotations

from enum import IntEnum

# The names of report fields. `cost_ns` is the work of both sides for an item, without queues and waits.
SEND_PHASES = ("encode_ns", "copy_ns", "pack_wait_ns", "send_ns", "send_wait_ns")
RECEIVE_PHASES = ("queue_ns", "receive_ns", "decode_ns", "cost_ns")


class ProcessCounter(IntEnum):
    """The counters of a process, by their offset in words. Durations and times are in ns."""

    STARTED_NS = 0
    READY_NS = 1
    STARVED_NS = 2
    BLOCKED_NS = 3
    CPU_NS = 4
    LIVE_BYTES = 5
    PEAK_BYTES = 6
    PIPE_MESSAGES = 7
    SHARED_MEMORY_MESSAGES = 8
    MIXED_MESSAGES = 9
    INLINE_BYTES = 10
    COPIED_BYTES = 11
    ZERO_COPY_BYTES = 12
    COPIED_OUT_ITEMS = 13
    ITEMS_IN = 14
    EPOCH_ITEMS_PLUS_ONE = 15  # 1 + the number of items of an epoch; 0 while unknown
    EPOCH_END_NS = 16
    CURRENT_ITEM_PLUS_ONE = 17  # 1 + the number of the item being processed
    ITEMS_SENT = 18  # items that the source has sent, in all epochs; one that is read again counts once
    PROCESS_STATE = 19
    STOPPED_NS = 20
    HELD_BYTES = 21  # of blocks that it leases; for the consumer, of blocks that its caller holds
    LARGEST_BLOCK_BYTES = 22  # of the blocks that it has allocated
    DOWNTIME_NS = 23  # from each death of the worker until its successor was ready, in total
    CURRENT_STAGE = 24  # the index of the process's stage that is processing it
    CURRENT_PARTS_PLUS_ONE = 25  # four words: 1 + the part of the item, the part of the part ...; 0 after the last
    LAST_CURRENT_ITEM_PLUS_ONE = 29  # 1 + the number of the last of several items being processed together
    HEARTBEAT_NS = 30  # the last tick of a wait
    CURRENT_EPOCH = 31  # the epoch of that item
    CHUNK_ITEM_NS = 32  # what an item of its last chunk took, on average; a worker that sends chunks
    CHUNK_ITEM_BYTES = 33  # and how many bytes a row of it had
    FLUSHED_NS = 34  # when these counters were last written
    PID = 35  # of the worker
    INCARNATION = 36  # 0 for the first worker in its slot, 1 for its successor
    LAST_RESERVED = 39


class DeliveryCounter(IntEnum):
    """What the consumer has counted, by the offset in words. Durations and times are in ns."""

    STARTED_NS = 0  # when the start of the run began
    WALL_NS = 1  # from there until these words were written
    ITEMS = 2
    SAMPLES = 3
    FIRST_ITEM_NS = 4
    WAIT_NS = 5
    BUSY_NS = 6
    OUTSIDE_NS = 7
    FILES = 8  # that sinks have written in this run


MAX_KEY_PARTS = 4
"""The parts of a key for which the board has room."""


class ProcessState(IntEnum):
    """The state of a process."""

    STARTING = 0
    RUNNING = 1
    STOPPED = 2


class StageCounter(IntEnum):
    """The counters of a stage in a process, by their offset in words."""

    ITEMS = 0
    SKIPPED = 1
    FAILED_ATTEMPTS = 2
    BUSY_NS = 3
    RETRIES = 4
    DEAD_LETTERS = 5
    PASSED_BY = 6  # items that its `when` does not match
    REPEATED_NS = 7  # in attempts that failed and were repeated; not in BUSY_NS
    LAST_RESERVED = 15
