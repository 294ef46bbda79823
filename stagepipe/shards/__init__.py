"""How parts become shards, exactly once through any kill. Runs in the calling process of `stagepipe run`.

sink_folder  `SinkFolder`: the folder of one sink
folder    `ShardFolder`: one whose files are shards, finished and open
file_tree `FileTree`: one whose parts are files of their own, such as images
position  what the journal records of a folder
journal   `Journal`: what is durable, and the position to which it belongs
locking   `FolderLock`: one run per folder
"""

from stagepipe.shards.file_tree import FileTree
from stagepipe.shards.folder import ShardFolder
from stagepipe.shards.journal import Journal, JournalRecord
from stagepipe.shards.locking import FolderLock
from stagepipe.shards.position import FinishedShard, ShardPosition
from stagepipe.shards.sink_folder import SinkFolder
from stagepipe.sinks import FileTreeSink, PartSink


def open_folder(sink: PartSink, name: str) -> SinkFolder:
    """Lock the folder of a sink. `name` is the sink's, for messages. Raises UsageError: see `SinkFolder`."""
    return FileTree(sink, name) if isinstance(sink, FileTreeSink) else ShardFolder(sink, name)


__all__ = [
    "FileTree",
    "FinishedShard",
    "FolderLock",
    "Journal",
    "JournalRecord",
    "ShardFolder",
    "ShardPosition",
    "SinkFolder",
    "open_folder",
]
