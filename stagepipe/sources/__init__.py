"""The built-in sources. They run in the source's process; record sources also in the workers of the source.

files_source      `FilesSource`, in YAML `stagepipe.sources.files`: the files that match a pattern
dataset_source    `DatasetSource`, in YAML `stagepipe.sources.dataset`: a map-style or iterable dataset
numbers_source    `NumbersSource`, in YAML `stagepipe.sources.numbers`: whole numbers
record_files/     `TextSource`, `JsonlSource`, `CsvSource`, `WebdatasetSource`: lines of files, samples of tar files
tables/           `ParquetSource`, `ArrowSource`, `HuggingFaceSource`, `LanceSource`: rows of tables
arrays/           `NpySource`, `Hdf5Source`, `ZarrSource`: rows of arrays
joined/           `ConcatSource`, `ZipSource`, `MixSource`: several sources as one

record_source     `RecordSource`: the base of sources that read records from files
seeded_stream     a stream that is told seed and epoch
order/            the order of an epoch: shuffled, in blocks, by a sampler, in lists
storage/          the files of a source, local or remote, and what is kept about them in the cache folder
item_identities   what identifies a source's items: outputs that are kept for them are found again
columns           checks the names of columns

A source is a class with `__len__` and `__getitem__`, which can start at any position; or a class with `__iter__`, a
stream; or a function that returns an iterable. If it has a method `begin(epoch, seed)`, that is called before the first
item and after each seek. A `RecordSource` is a map-style dataset, which workers read.

The lower-case names are aliases of the classes, for `uses: stagepipe.sources.files`.
"""

from stagepipe.sources.arrays import Hdf5Source, NpySource, ZarrSource
from stagepipe.sources.dataset_source import DatasetSource
from stagepipe.sources.files_source import FilesSource
from stagepipe.sources.item_identities import ListedItems as ListedItems
from stagepipe.sources.item_identities import identify_items as identify_items
from stagepipe.sources.item_identities import is_known_source as is_known_source
from stagepipe.sources.joined import ConcatSource, MixSource, ZipSource
from stagepipe.sources.numbers_source import NumbersSource
from stagepipe.sources.record_files import CsvSource, JsonlSource, TextSource, WebdatasetSource
from stagepipe.sources.record_source import RecordSource
from stagepipe.sources.tables import ArrowSource, HuggingFaceSource, LanceSource, ParquetSource

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
