"""Sources whose records are ranges of bytes of files: lines, and the samples of tar files.

text_source         `TextSource`: the lines of text files
jsonl_source        `JsonlSource`: the lines of JSON Lines files
csv_source          `CsvSource`: the rows of CSV files
webdataset_source   `WebdatasetSource`: the samples of tar files
line_source         the base of those whose records are lines
line_bounds         finds where the lines of a file begin
byte_range_source   the base of all of them
"""

from stagepipe.sources.record_files.csv_source import CsvSource
from stagepipe.sources.record_files.jsonl_source import JsonlSource
from stagepipe.sources.record_files.text_source import TextSource
from stagepipe.sources.record_files.webdataset_source import WebdatasetSource

__all__ = ["CsvSource", "JsonlSource", "TextSource", "WebdatasetSource"]
