"""Dead letters: the items that failed and were skipped.

store   DeadLetterStore: keeps a run's letters and enforces `max_skipped`; in the caller's process
writer  DeadLetterWriter: makes a letter in the process in which the item failed
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.runtime.dead_letters.store import DeadLetterStore, make_letter_counters
    from stagepipe.runtime.dead_letters.writer import DeadLetterWriter

__all__ = ["DeadLetterStore", "DeadLetterWriter", "make_letter_counters"]

__getattr__ = lazy_names(
    __name__,
    {
        "DeadLetterStore": "store",
        "DeadLetterWriter": "writer",
        "make_letter_counters": "store",
    },
)
