"""The caller's end of a run: it delivers items from the last hop. In the caller's process, on the iterating thread.

consumer   Consumer: receives, reorders and yields items; starts epochs and seeks
position   the cursor of what was delivered
"""

from stagepipe.runtime.consumer.consumer import Consumer, MemoryHandle

__all__ = ["Consumer", "MemoryHandle"]
