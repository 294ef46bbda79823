"""The built-in sources. They run in the source's process; record sources also in the workers of the stage `dataset`.

files_source     `FilesSource`, in YAML `stagepipe.sources.files`: the files that match a pattern
dataset_source   `DatasetSource`, in YAML `stagepipe.sources.dataset`: a map-style or iterable dataset
item_identities  what identifies a source's items: outputs that are kept for them are found again
numbers_source   `NumbersSource`, in YAML `stagepipe.sources.numbers`: whole numbers
text_source      `TextSource`: the lines of text files
jsonl_source     `JsonlSource`: the lines of JSON Lines files
csv_source       `CsvSource`: the rows of CSV files
parquet_source   `ParquetSource`: the rows of Parquet files
arrow_source     `ArrowSource`: the rows of Arrow IPC files
webdataset_source   `WebdatasetSource`: the samples of tar files
npy_source       `NpySource`: the rows of memory-mapped `.npy` files
hdf5_source      `Hdf5Source`: the rows of datasets in HDF5 files
zarr_source      `ZarrSource`: the rows of Zarr arrays
hugging_face_source   `HuggingFaceSource`: a dataset of Hugging Face, map-style or streamed
lance_source     `LanceSource`: the rows of a Lance dataset
concat_source    `ConcatSource`: sources one after the other
zip_source       `ZipSource`: the items of several sources side by side
mix_source       `MixSource`: several sources in given proportions
record_source    `RecordSource`: the base of sources that read records from files
byte_range_source, line_source   the bases of sources whose records are ranges of bytes, or lines
arrow_groups     the base of sources whose records are rows of groups that are read whole
arrow_rows       the rows of a table of pyarrow, each as a dict
columns          checks the names of columns
line_bounds      finds where the lines of a file begin
record_index     where the records of files begin; kept in the cache folder
source_cache     what sources keep in the user's cache folder
decompression    decompresses a file into the cache folder
range_reader     reads ranges of bytes of many files
row_array_source, row_arrays   the base of sources whose records are rows of arrays, and the rows of several files
array_store_source   the base of those whose files hold several arrays
joined_source, source_parts   the base of `concat` and `mix`, and what they put together
mix_order, mix_schedule   the order of an epoch of a mix, and where its items come from
joined_stream, stream_turns   the same where a part is a stream
seeded_stream    a stream that is told seed and epoch
recently_used    what is costly to open or read, kept for a few keys
stored_files     the files of a source, on this machine or remote
extras           imports the package of an extra
epoch_order      the type of an epoch's order
batched_order    the order of an epoch in lists of `batch_size` indices
shuffled_order   the order of an epoch, drawn from the seed
block_shuffled_order   the same, block by block
sampler_order    the order of an epoch, drawn by a sampler

A source is a class with `__len__` and `__getitem__`, which can start at any position; or a class with `__iter__`, a
stream; or a function that returns an iterable. If it has a method `begin(epoch, seed)`, that is called before the first
item and after each seek. A `RecordSource` is a map-style dataset, which workers read.

The lower-case names are aliases of the classes, for `uses: stagepipe.sources.files`.
"""

from stagepipe.sources.arrow_source import ArrowSource
from stagepipe.sources.concat_source import ConcatSource
from stagepipe.sources.csv_source import CsvSource
from stagepipe.sources.dataset_source import DatasetSource
from stagepipe.sources.files_source import FilesSource
from stagepipe.sources.hdf5_source import Hdf5Source
from stagepipe.sources.hugging_face_source import HuggingFaceSource
from stagepipe.sources.item_identities import ListedItems as ListedItems
from stagepipe.sources.item_identities import identify_items as identify_items
from stagepipe.sources.item_identities import is_known_source as is_known_source
from stagepipe.sources.jsonl_source import JsonlSource
from stagepipe.sources.lance_source import LanceSource
from stagepipe.sources.mix_source import MixSource
from stagepipe.sources.npy_source import NpySource
from stagepipe.sources.numbers_source import NumbersSource
from stagepipe.sources.parquet_source import ParquetSource
from stagepipe.sources.record_source import RecordSource
from stagepipe.sources.text_source import TextSource
from stagepipe.sources.webdataset_source import WebdatasetSource
from stagepipe.sources.zarr_source import ZarrSource
from stagepipe.sources.zip_source import ZipSource

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
