"""The built-in sinks.

npz_sink      `NpzSink`, in YAML `stagepipe.sinks.npz`: one NumPy archive per item, in the calling process
stored_values  what a value is in a file: plain arrays, named arrays of an item, JSON
part_sink     `PartSink`: the interface of sinks with workers
jsonl_sink    `JsonlSink`, in YAML `stagepipe.sinks.jsonl`: lines of JSON
parquet_sink  `ParquetSink`, `parquet`: rows of Parquet files; parquet_footer, parquet_dictionary, arrow_columns
webdataset_sink  `WebDatasetSink`, `webdataset`: samples of tar files
npy_sink      `NpySink`, `npy`: rows of one array per file; `NpzShardSink`, `npz_shards`: many items per archive
hugging_face_sink  `HuggingFaceSink`, `huggingface`: a dataset for `datasets.load_from_disk`
file_tree_sink  `FileTreeSink`: the interface of sinks whose parts are many files
images_sink   `ImagesSink`, `images`: an image file per item
zarr_sink     `ZarrSink`, `zarr`: rows of Zarr arrays
measured_sink stands for a sink with workers in the probe of `stagepipe plan`
parts, part   groups items into the parts that the workers of a sink write; packed_items

A sink without workers is called with each item where the pipeline's output arrives; its `close`, if it has one, is
called at the end of the run.

A lower-case name is an alias of the class, for `uses: stagepipe.sinks.npz`.
"""

from stagepipe.sinks.file_tree_sink import FileTreeSink
from stagepipe.sinks.hugging_face_sink import HuggingFaceSink
from stagepipe.sinks.images_sink import ImagesSink
from stagepipe.sinks.jsonl_sink import JsonlSink
from stagepipe.sinks.measured_sink import MeasuredPartRecord, MeasuredSink
from stagepipe.sinks.npy_sink import NpySink, NpzShardSink
from stagepipe.sinks.npz_sink import NpzSink
from stagepipe.sinks.parquet_sink import ParquetSink
from stagepipe.sinks.part import Part, PartRecord
from stagepipe.sinks.part_sink import OPEN_PREFIX, OWN_PREFIX, PART_PREFIX, PartPlace, PartSink
from stagepipe.sinks.parts import Parts, count_bytes
from stagepipe.sinks.webdataset_sink import WebDatasetSink
from stagepipe.sinks.zarr_sink import ZarrSink

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
    "count_bytes",
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
