"""The built-in sinks.

part_sink      `PartSink`: the base of sinks with workers; `FileTreeSink`: the base of sinks whose parts are many files;
               `Part`: their input; `MeasuredSink` replaces a sink in the probe of `stagepipe plan`
stored_values  conversion of values for files: plain arrays, named arrays of an item, JSON
array_sinks    `NpzSink`, in YAML `stagepipe.sinks.npz`: one NumPy archive per item, in the calling process; `NpySink`,
               `npy`: rows of one array per file; `NpzShardSink`, `npz_shards`: many items per archive; `ZarrSink`
record_sinks   `JsonlSink`, `jsonl`: lines of JSON; `WebDatasetSink`, `webdataset`: samples of tar files
images_sink    `ImagesSink`, `images`: an image file per item
parquet_sink   `ParquetSink`, `parquet`: rows of Parquet files
arrow_sinks    `HuggingFaceSink`, `huggingface`: a dataset for `datasets.load_from_disk`; Arrow tables of items

A sink without workers is called with each item in the process that receives the pipeline's output; its `close`, if it
has one, is called at the end of the run.

A lower-case name is an alias of the class, for `uses: stagepipe.sinks.npz`.
"""

from stagepipe.sinks.array_sinks import NpySink, NpzShardSink, NpzSink, ZarrSink
from stagepipe.sinks.arrow_sinks import HuggingFaceSink
from stagepipe.sinks.images_sink import ImagesSink
from stagepipe.sinks.parquet_sink import ParquetSink
from stagepipe.sinks.part_sink import (
    OPEN_PREFIX,
    OWN_PREFIX,
    PART_PREFIX,
    FileTreeSink,
    MeasuredPartRecord,
    MeasuredSink,
    Part,
    PartPlace,
    PartRecord,
    Parts,
    PartSink,
)
from stagepipe.sinks.record_sinks import JsonlSink, WebDatasetSink

npz = NpzSink
"""Alias of `NpzSink`."""
huggingface = HuggingFaceSink
"""Alias of `HuggingFaceSink`."""
images = ImagesSink
"""Alias of `ImagesSink`."""
jsonl = JsonlSink
"""Alias of `JsonlSink`."""
npy = NpySink
"""Alias of `NpySink`."""
npz_shards = NpzShardSink
"""Alias of `NpzShardSink`."""
parquet = ParquetSink
"""Alias of `ParquetSink`."""
webdataset = WebDatasetSink
"""Alias of `WebDatasetSink`."""
zarr = ZarrSink
"""Alias of `ZarrSink`."""

__all__ = [
    "OPEN_PREFIX",
    "OWN_PREFIX",
    "PART_PREFIX",
    "FileTreeSink",
    "HuggingFaceSink",
    "ImagesSink",
    "JsonlSink",
    "MeasuredPartRecord",
    "MeasuredSink",
    "NpySink",
    "NpzShardSink",
    "NpzSink",
    "ParquetSink",
    "Part",
    "PartPlace",
    "PartRecord",
    "PartSink",
    "Parts",
    "WebDatasetSink",
    "ZarrSink",
    "huggingface",
    "images",
    "jsonl",
    "npy",
    "npz",
    "npz_shards",
    "parquet",
    "webdataset",
    "zarr",
]
