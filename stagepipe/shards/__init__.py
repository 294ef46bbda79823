"""Turns parts into shards, exactly once through any kill. Runs in the calling process of `stagepipe run`.

folder   `SinkFolder`: the folder of one sink; `ShardFolder` for shards; `FileTree` for many files per part
letters  `LetterFile`: the items that failed up to the durable position
journal  `Journal`: the durable position and its files; `FolderLock`: one run per folder
"""

from stagepipe.shards.folder import FileTree, ShardFolder, SinkFolder
from stagepipe.shards.journal import FinishedShard, FolderLock, Journal, JournalRecord, ShardPosition
from stagepipe.shards.letters import LetterFile
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
    "LetterFile",
    "ShardFolder",
    "ShardPosition",
    "SinkFolder",
    "open_folder",
]
