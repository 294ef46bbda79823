"""How parts become shards, exactly once through any kill. Runs in the calling process of `stagepipe run`.

folder    `ShardFolder`: the shards of one sink, finished and open
journal   `Journal`: what is durable, and the position to which it belongs
locking   `FolderLock`: one run per folder
"""

from stagepipe.shards.folder import FinishedShard, ShardFolder, ShardPosition
from stagepipe.shards.journal import Journal, JournalRecord
from stagepipe.shards.locking import FolderLock

__all__ = ["FinishedShard", "FolderLock", "Journal", "JournalRecord", "ShardFolder", "ShardPosition"]
