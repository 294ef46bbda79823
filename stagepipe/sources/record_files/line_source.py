"""`LineSource`: the base of sources with a record in each line. Runs where it is built and where it is read."""

from __future__ import annotations

from stagepipe.sources.record_files.byte_range_source import ByteRangeSource
from stagepipe.sources.record_files.line_bounds import find_line_bounds
from stagepipe.sources.storage import Bounds, StoredFile, decompress_into_cache


class LineSource(ByteRangeSource):
    """Lines of text files, which may be compressed. Blank lines are left out unless `keeps_blank_lines`."""

    index_kind = "lines"
    keeps_blank_lines = False

    def find_bounds(self, file: StoredFile) -> Bounds:
        """Return where the lines of a file begin."""
        return find_line_bounds(file, keep_blank=self.keeps_blank_lines)

    def prepare_file(self, file: StoredFile) -> StoredFile:
        """Return the decompressed copy of a compressed file."""
        return decompress_into_cache(file)
