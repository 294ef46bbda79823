"""The files of a source, on this machine or remote, and what is kept about them in the cache folder.

stored_files    `StoredFile`, and the files that match paths and patterns: the finder of all sources
range_reader    reads ranges of bytes of many files
decompression   decompresses a file into the cache folder
record_index    where the records of files begin; kept in the cache folder
content_samples  hashes of some blocks of some files
source_cache    the files in the cache folder: made once, removed when nobody uses them
"""

from stagepipe.sources.storage.content_samples import sample_contents
from stagepipe.sources.storage.decompression import decompress_into_cache
from stagepipe.sources.storage.range_reader import REMOTE_BLOCK_BYTES, RangeReader
from stagepipe.sources.storage.record_index import Bounds, RecordIndex, load_index
from stagepipe.sources.storage.stored_files import (
    Paths,
    StoredFile,
    describe_stored_files,
    find_stored_files,
    find_stores,
    is_remote,
    iterate_files,
    list_paths,
    require_unchanged,
)

__all__ = [
    "REMOTE_BLOCK_BYTES",
    "Bounds",
    "Paths",
    "RangeReader",
    "RecordIndex",
    "StoredFile",
    "decompress_into_cache",
    "describe_stored_files",
    "find_stored_files",
    "find_stores",
    "is_remote",
    "iterate_files",
    "list_paths",
    "load_index",
    "require_unchanged",
    "sample_contents",
]
