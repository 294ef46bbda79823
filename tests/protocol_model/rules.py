"""The rules of the protocol that the model can break, one at a time, to show that its checks notice."""

from __future__ import annotations

import enum


class Rule(enum.Enum):
    """A rule that keeps the output right. The value is its name on the command line."""

    COPY_OLD_BLOCKS = "copy-old-blocks"
    """A process copies a block of an older era before it passes the block on."""
    TAG_PROGRESS = "tag-progress"
    """The source reads a progress word only if the word carries the source's generation."""
    REMEMBER_LAST_LEAF = "remember-last-leaf"
    """An order point that resumes inside an item does not output the leaves up to the cursor's last leaf again."""
    CARRY_SKIPS = "carry-skips"
    """A cursor inside an item carries the error skips that shaped that item."""
    STOP_SINK_FIRST = "stop-sink-first"
    """The sink stops and answers with its committed cursor before a seek names a cursor."""
    WIPE_AFTER_ENTRY = "wipe-after-entry"
    """Blocks of an older era are wiped only when every process has entered the new era."""
    REMEMBER_EMITTED_KEYS = "remember-emitted-keys"
    """In any order, a cursor carries the leaves that came out before their turn; they do not come out again."""
    RESUME_AT_LOWEST_OPEN = "resume-at-lowest-open"
    """In any order, a cursor names the lowest item that is not wholly out, not the one after the last delivered."""
    CLEAR_CURRENT_ITEM = "clear-current-item"
    """A worker that has finished an item takes its name off the board: a later death is not the item's fault."""
    BLAME_IN_ITS_EPOCH = "blame-in-its-epoch"
    """A death is blamed on an item of the epoch in which the worker was, which may not have learnt of the next one."""
    RETRY_BEFORE_SKIP = "retry-before-skip"
    """An item is poison only when it has killed as many workers as it may: fewer deaths may have another cause."""
    KEEP_POISON_SKIPS = "keep-poison-skips"
    """Every later seek of the epoch names the poison items, not only the one after the death."""
    SEEK_WHEN_STALLED = "seek-when-stalled"
    """When nothing can move, a seek makes the items in flight again."""
    FORGET_STALLS = "forget-stalls"
    """A delivery ends a stall: only stalls without one between them count towards the failure of the run."""
