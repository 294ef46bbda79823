"""The names of the board's words: what each process, and each of its stages, counts."""

from __future__ import annotations

from enum import IntEnum

SEND_PHASES = ("encode_ns", "copy_ns", "send_ns", "send_wait_ns")
RECEIVE_PHASES = ("queue_ns", "receive_ns", "decode_ns", "cost_ns")


class Word(IntEnum):
    """The words of a process. Durations in ns."""

    STARTED_NS = 0
    READY_NS = 1
    STARVED_NS = 2
    BLOCKED_NS = 3
    CPU_NS = 4
    LIVE_BYTES = 5
    PEAK_BYTES = 6
    PIPE = 7
    SHARED_MEMORY = 8
    MIXED = 9
    INLINE_BYTES = 10
    COPIED_BYTES = 11
    ZERO_COPY_BYTES = 12
    COPIED_OUT = 13
    ITEMS_IN = 14
    TOTAL = 15  # 1 + the number of items of an epoch, once known
    EPOCH_END_NS = 16
    EPOCH = 17
    AT_ITEM = 18  # 1 + the item number that is worked on
    SENT = 19  # items that the source has sent, all epochs together
    STATE = 20
    STOPPED_NS = 21
    HELD_BYTES = 22  # of blocks on which it has leases; by the consumer: what its caller keeps
    LARGEST_BYTES = 23  # of the blocks that it took
    RESTARTING_NS = 24  # how long it was dead, or its successor not ready, all deaths together
    AT_STAGE = 25  # which of the process's stages works on it
    AT_PART = 26  # 1 + the part of the item, part of the part ... that is worked on, 0 behind the last
    AT_LAST = 30  # 1 + the last of several items that are worked on at once
    TICK_NS = 31  # when it last waited for something
    LAST = 39


MOST_PARTS = 4
"""How deep a key the board has room for."""


class State(IntEnum):
    """What a process is doing."""

    STARTING = 0
    STARVED = 1
    BUSY = 2
    BLOCKED = 3
    STOPPED = 4


class StageWord(IntEnum):
    """The words of a stage in a process."""

    ITEMS = 0
    SKIPPED = 1
    ERRORS = 2  # failed attempts
    BUSY_NS = 3
    RETRIES = 4
    LETTERS = 5  # dead letters that it has sent
    LAST = 7
