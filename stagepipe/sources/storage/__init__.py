"""The files of a source, on this machine or remote, and what is kept about them in the cache folder.

stored_files    `StoredFile`, and the files that match a pattern
range_reader    reads ranges of bytes of many files
decompression   decompresses a file into the cache folder
record_index    where the records of files begin; kept in the cache folder
content_samples  hashes of some blocks of some files
source_cache    the files in the cache folder: made once, removed when nobody uses them
unreadable_folders  the folders whose files a pattern leaves out, because they cannot be read
"""

from stagepipe.sources.storage.content_samples import sample_contents
from stagepipe.sources.storage.decompression import decompress_into_cache
from stagepipe.sources.storage.range_reader import REMOTE_BLOCK_BYTES, RangeReader
from stagepipe.sources.storage.record_index import Bounds, RecordIndex, load_index
from stagepipe.sources.storage.stored_files import (
    StoredFile,
    describe_stored_files,
    find_stored_files,
    is_remote,
    require_unchanged,
)
from stagepipe.sources.storage.unreadable_folders import check_folders

__all__ = [
    "REMOTE_BLOCK_BYTES",
    "Bounds",
    "RangeReader",
    "RecordIndex",
    "StoredFile",
    "check_folders",
    "decompress_into_cache",
    "describe_stored_files",
    "find_stored_files",
    "is_remote",
    "load_index",
    "require_unchanged",
    "sample_contents",
]
