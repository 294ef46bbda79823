"""The built-in sources. They run in the source's process; record sources also run in the workers of the source.

files_source         `FilesSource`, in YAML `stagepipe.sources.files`; `NumbersSource`, `numbers`
dataset_source       `DatasetSource`, `dataset`: a map-style or iterable dataset; streams that get seed and epoch
line_sources         `TextSource`, `JsonlSource`, `CsvSource`: the lines of files
webdataset_source    `WebdatasetSource`: the samples of tar files
table_sources        `ParquetSource`, `ArrowSource`, `LanceSource`: the rows of tables
hugging_face_source  `HuggingFaceSource`: a dataset of Hugging Face
array_sources        `NpySource`, `Hdf5Source`, `ZarrSource`: the rows of arrays
joined_sources       `ConcatSource`, `ZipSource`, `MixSource`: several sources as one; joined_order, joined_streams

record_source        `RecordSource`: the base of sources that read records from files
order                the order of an epoch: shuffled, in blocks, by a sampler, in lists
stored_files         the files of a source, local or remote
remote_requests      requests to remote files: complete ranges, retries, errors with the URL
source_cache         indexes and decompressed files in the cache folder
item_identities      the identities of a source's items, for finding cached outputs again

A source is a class with `__len__` and `__getitem__`, which can start at any position; or a class with `__iter__`, a
stream; or a function that returns an iterable. If it has a method `begin(epoch, seed)`, stagepipe calls it before the
first item and after each seek. A `RecordSource` is a map-style dataset that workers read.

The lower-case names are aliases of the classes, for `uses: stagepipe.sources.files`.
"""

from stagepipe.sources.array_sources import Hdf5Source, NpySource, ZarrSource
from stagepipe.sources.dataset_source import DatasetSource
from stagepipe.sources.dataset_source import StatefulWorkerStream as StatefulWorkerStream
from stagepipe.sources.dataset_source import WorkerStream as WorkerStream
from stagepipe.sources.files_source import FilesSource, NumbersSource
from stagepipe.sources.hugging_face_source import HuggingFaceSource
from stagepipe.sources.item_identities import ListedItems as ListedItems
from stagepipe.sources.item_identities import identify_items as identify_items
from stagepipe.sources.item_identities import is_known_source as is_known_source
from stagepipe.sources.joined_sources import ConcatSource, MixSource, ZipSource
from stagepipe.sources.line_sources import CsvSource, JsonlSource, TextSource
from stagepipe.sources.order import DrawnOrder as DrawnOrder
from stagepipe.sources.record_source import RecordSource
from stagepipe.sources.table_sources import ArrowSource, LanceSource, ParquetSource
from stagepipe.sources.webdataset_source import WebdatasetSource

arrow = ArrowSource
"""Alias of `ArrowSource`."""
concat = ConcatSource
"""Alias of `ConcatSource`."""
csv = CsvSource
"""Alias of `CsvSource`."""
dataset = DatasetSource
"""Alias of `DatasetSource`."""
files = FilesSource
"""Alias of `FilesSource`."""
hdf5 = Hdf5Source
"""Alias of `Hdf5Source`."""
huggingface = HuggingFaceSource
"""Alias of `HuggingFaceSource`."""
jsonl = JsonlSource
"""Alias of `JsonlSource`."""
lance = LanceSource
"""Alias of `LanceSource`."""
mix = MixSource
"""Alias of `MixSource`."""
npy = NpySource
"""Alias of `NpySource`."""
numbers = NumbersSource
"""Alias of `NumbersSource`."""
parquet = ParquetSource
"""Alias of `ParquetSource`."""
text = TextSource
"""Alias of `TextSource`."""
webdataset = WebdatasetSource
"""Alias of `WebdatasetSource`."""
zarr = ZarrSource
"""Alias of `ZarrSource`."""
zip = ZipSource  # noqa: A001 - in YAML `stagepipe.sources.zip`
"""Alias of `ZipSource`."""

__all__ = [
    "ArrowSource",
    "ConcatSource",
    "CsvSource",
    "DatasetSource",
    "FilesSource",
    "Hdf5Source",
    "HuggingFaceSource",
    "JsonlSource",
    "LanceSource",
    "MixSource",
    "NpySource",
    "NumbersSource",
    "ParquetSource",
    "RecordSource",
    "TextSource",
    "WebdatasetSource",
    "ZarrSource",
    "ZipSource",
    "arrow",
    "concat",
    "csv",
    "dataset",
    "files",
    "hdf5",
    "huggingface",
    "jsonl",
    "lance",
    "mix",
    "npy",
    "numbers",
    "parquet",
    "text",
    "webdataset",
    "zarr",
    "zip",
]
