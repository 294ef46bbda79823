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
